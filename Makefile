# The commands of the README, and short names for the rest. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PORT ?= 30000
JOBS ?= $(shell nproc)
MODEL ?= build/deps/model/SmolLM2-135M-Instruct.Q4_1.gguf
# More arguments for `make serve`, `make bench` and pytest in `make test`.
ARGS ?=
# Options of scripts/setup, such as --no-system where there is no apt.
SETUP_ARGS ?=

PYTHON := build/venv/bin/python
CLANG_FORMAT := build/venv/bin/clang-format
SOURCES = $(shell git ls-files -co --exclude-standard '*.h' '*.cc' '*.cu')

# Nothing is written outside build/, and clones in other folders share what was compiled.
export PYTHONDONTWRITEBYTECODE := 1
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export JOBS

# $(call compile,PRESET): configure and build it, each as a step with its own log.
define compile
@scripts/step configure-$(1) cmake --preset $(1)
@scripts/step build-$(1) cmake --build --preset $(1) -j $(JOBS)
endef

# $(call ctest,PRESET,ARGUMENTS): run its tests; what they print is kept too.
define ctest
ctest --test-dir build/$(1) --output-on-failure --no-tests=error $(2) 2>&1 \
  | tee build/log/ctest-$(1).log
endef

.PHONY: help setup build run demo-mooncake serve test asan tsan bench format tidy lint clean

export HITIDE_TEST_MODEL ?= $(CURDIR)/$(MODEL)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install packages, fetch and build what HiTide needs (what is there is skipped)
	@scripts/setup $(SETUP_ARGS)

build: setup ## build the program: build/bin/hitide
	$(call compile,release)

run: build ## set up, build, then hold a conversation with a real model, with and without cache
	@$(PYTHON) scripts/demo

demo-mooncake: build ## two servers on one Mooncake store: a conversation moves between them
	@$(PYTHON) scripts/demo-mooncake $(ARGS)

serve: build ## set up, build, then serve the model on PORT (30000) until Ctrl-C
	@exec build/bin/hitide serve --model-path $(MODEL) --port $(PORT) --enable-cache-report $(ARGS)

test: setup ## set up, build, then run every test
	$(call compile,dev)
	@status=0; \
	( $(call ctest,dev,-j $(JOBS)) ) || status=1; \
	HITIDE_BUILD_DIR=$(CURDIR)/build/dev $(PYTHON) -m pytest -ra -o cache_dir=build/pytest-cache \
	  tests tools $(ARGS) 2>&1 | tee build/log/pytest.log || status=1; \
	exit $$status

asan: setup ## build with AddressSanitizer and UBSan and run the C++ tests
	$(call compile,asan)
	@UBSAN_OPTIONS=print_stacktrace=1 $(call ctest,asan,-LE '^(slow|tidy)$$' -j $(JOBS))

tsan: setup ## build with ThreadSanitizer and run the tests that start threads
	$(call compile,tsan)
	@TSAN_OPTIONS=halt_on_error=1 $(call ctest,tsan,-L '^threads$$')

bench: build ## print the table of measured ratios and write build/bench.json
	@build/bin/hitide_bench --model-path $(MODEL) --json build/bench.json $(ARGS)

format: setup ## format the C++ sources in place
	@$(CLANG_FORMAT) -i $(SOURCES)

tidy: setup ## check layers, includes, sizes, banned calls, links and format
	@python3 tools/tidy.py
	@$(CLANG_FORMAT) --dry-run --Werror $(SOURCES)

lint: ## ask clang: thread-safety analysis and clang-tidy over every source file
	@scripts/setup $(SETUP_ARGS) --lint
	@scripts/step configure-dev cmake --preset dev
	@tools/lint.py --build build/dev --jobs $(JOBS) $(ARGS)

clean: ## remove everything that was built, fetched into the tree or logged
	@rm -rf build
