"""Plants violations of the house rules in a scratch tree; tidy.py must find each, and only it."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402

HEADER = "// What it is.\n#pragma once\n"


class TidyTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.root = self._folder.name

    def put(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def found(self):
        return [(f.path, f.line, f.rule) for f in tidy.check(self.root)[0]]

    def expect(self, path, text, *expected):
        """Puts the file and expects exactly these (line, rule) in it."""
        self.put(path, text)
        self.assertEqual(self.found(), [(path, line, rule) for line, rule in expected])

    # ---- layers and includes ----

    def test_empty_tree_is_clean(self):
        self.assertEqual(self.found(), [])

    def test_lower_layer_must_not_include_higher(self):
        self.expect("src/base/a.cc", '#include "pool/arena.h"\n', (1, "layer"))

    def test_every_forbidden_pair_is_found(self):
        for name, (_, allowed) in tidy.LAYERS.items():
            for other in tidy.LAYERS:
                with self.subTest(layer=name, includes=other):
                    self.put("src/%s/a.cc" % name, '#include "%s/x.h"\n' % other)
                    ok = other == name or other in allowed
                    self.assertEqual(self.found(),
                                     [] if ok else [("src/%s/a.cc" % name, 1, "layer")])
                    os.remove(os.path.join(self.root, "src/%s/a.cc" % name))

    def test_cache_may_include_only_the_page_allocator_of_pool(self):
        self.expect("src/cache/a.cc",
                    '#include "pool/page_allocator.h"\n#include "pool/arena.h"\n', (2, "layer"))

    def test_apps_do_not_reach_into_the_core(self):
        self.expect("apps/hitide/main.cc",
                    '#include "hitide/cache.h"\n#include "server/server.h"\n'
                    '#include "spec/serve_options.h"\n#include "commands.h"\n'
                    '#include "cache/cache_core.h"\n', (5, "layer"))

    def test_unit_tests_may_use_test_support_and_sources_may_not(self):
        self.put("src/pool/a_test.cc", '#include "tests/support/rig.h"\n')
        self.expect("src/pool/a.cc", '#include "tests/support/rig.h"\n', (1, "include"))

    def test_layer_binds_unit_tests_too(self):
        self.expect("src/base/a_test.cc", '#include "spec/layout.h"\n', (1, "layer"))

    def test_source_outside_a_layer(self):
        self.expect("src/misc/a.cc", "int x;\n", (1, "layer"))

    def test_quoted_include_without_its_layer(self):
        self.expect("src/base/a.cc", '#include "log.h"\n', (1, "include"))

    def test_public_header_layers(self):
        self.put("include/hitide/status.h", HEADER + '#include "hitide/options.h"\n')
        self.put("include/hitide/options.h", HEADER + "#include <hitide/status.h>\n")
        self.assertEqual(self.found(), [("include/hitide/status.h", 3, "layer")])

    def test_layers_include_public_headers_of_their_height_only(self):
        self.put("src/base/a.cc", "#include <hitide/status.h>\n#include <hitide/options.h>\n")
        self.put("src/runtime/a.cc", '#include "hitide/cache.h"\n')
        self.put("src/cache/a.cc", '#include "hitide/cache.h"\n')
        self.assertEqual(self.found(),
                         [("src/base/a.cc", 2, "layer"), ("src/cache/a.cc", 1, "layer")])

    def test_unknown_public_header(self):
        self.expect("include/hitide/novel.h", HEADER, (1, "layer"))

    def test_public_headers_hold_no_other_library(self):
        self.expect("include/hitide/types.h",
                    HEADER + "#include <cstdint>\n#include <unistd.h>\n#include <fmt/core.h>\n"
                    '#include "base/log.h"\n',
                    (4, "public-include"), (5, "public-include"), (6, "public-include"))

    def test_other_libraries_only_in_sources(self):
        self.put("src/base/a.cc", "#include <spdlog/spdlog.h>\n")
        self.expect("src/base/a.h", HEADER + "#include <sys/mman.h>\n#include <spdlog/spdlog.h>\n",
                    (4, "third-party"))

    # ---- banned calls ----

    def test_banned_calls(self):
        for path, line, rule in [
            ("src/base/a.cc", 'auto x = std::getenv("HOME");', "getenv"),
            ("src/base/a.cc", "std::cout << 1;", "print"),
            ("src/base/a.cc", 'std::fprintf(stderr, "x");', "print"),
            ("src/base/a.cc", 'printf("x");', "print"),
            ("src/base/a.cc", "auto* y = dynamic_cast<A*>(x);", "dynamic-cast"),
            ("src/base/a.cc", "throw 1;", "throw"),
            ("src/base/a_test.cc", "std::this_thread::sleep_for(1ms);", "sleep"),
            ("tests/model/a_test.cc", "usleep(1);", "sleep"),
            ("tests/python/test_a.py", "time.sleep(1)", "sleep"),
            ("src/base/a.h", "using namespace std;", "using-namespace"),
            ("src/base/a.h", "std::mutex mutex_;", "std-mutex"),
            ("src/base/a.h", "mutable std::shared_timed_mutex mutex_;", "std-mutex"),
            ("apps/hitide/a.cc", "const std::lock_guard lock(mutex_);", "std-mutex"),
            ("apps/hitide/a.cc", "std::unique_lock<M> lock(mutex_);", "std-mutex"),
            ("src/base/a.cc", "std::condition_variable changed_;", "std-mutex"),
        ]:
            with self.subTest(line=line):
                text = (HEADER if path.endswith(".h") else "\n\n") + line + "\n"
                self.expect(path, text, (3, rule))
                os.remove(os.path.join(self.root, path))

    def test_allowed_look_alikes(self):
        self.put("apps/hitide/main.cc", 'auto x = std::getenv("HOME"); printf("x");\n')
        self.put("src/base/a_test.cc", 'auto x = std::getenv("MODEL");\nstd::mutex mutex;\n')
        self.put("src/base/mutex.h", HEADER + "std::mutex mutex_;\n")
        self.put("src/base/a.cc",
                 "// throw nothing, printf( nothing\n"
                 "/* dynamic_cast\n   getenv( */\n"
                 'auto s = "throw std::cout printf( ";\n'
                 'auto r = R"(throw\n dynamic_cast)";\n'
                 'int n = std::snprintf(b, 3, "x"); auto c = \'"\'; int k = 1\'000;\n')
        self.assertEqual(self.found(), [])

    def test_waiver_needs_a_reason_and_the_right_rule(self):
        self.expect("src/base/a.cc",
                    "throw 1;  // tidy: allow-throw operator new must\n"
                    "throw 2;  // tidy: allow-throw\n"
                    "throw 3;  // tidy: allow-print reason\n",
                    (2, "throw"), (3, "throw"))

    def test_leftovers(self):
        self.expect("src/base/a.cc", "// TO" + "DO: later\n\n// FIX" + "ME\n// X" + "XX\n",
                    (1, "leftover"), (3, "leftover"), (4, "leftover"))

    # ---- text ----

    def test_ascii_and_width(self):
        self.expect("src/base/a.cc", "// caf\u00e9\n// " + "x" * 97 + "\n// " + "x" * 98 + "\n",
                    (1, "ascii"), (3, "width"))

    def test_machine_paths(self):
        self.expect("docs/a.md", "# A\nsee /" + "home/me/x\nand build/" + "home/x\n"
                    "and ../" + "shared/y\n", (2, "machine-path"), (4, "machine-path"))

    def test_pragma_once(self):
        self.expect("src/base/a.h", "int x;\n", (1, "pragma-once"))

    # ---- sizes ----

    def test_file_size(self):
        self.put("src/base/b.cc", "\n" * 1000)
        self.expect("src/base/a.cc", "\n" * 1001, (1000, "size"))

    def test_advice_is_no_finding(self):
        self.put("src/base/a.h", HEADER + "\n" * 299)
        self.put("src/base/a_test.cc", "\n" * 900)
        findings, advice = tidy.check(self.root)
        self.assertEqual(findings, [])
        self.assertEqual(len(advice), 1)
        self.assertIn("src/base/a.h", advice[0])

    def test_public_headers_in_total(self):
        for name in ("status", "result", "types"):
            self.put("include/hitide/%s.h" % name, HEADER + "\n" * 700)
        self.assertEqual(self.found(), [("include", 1, "public-size")])

    # ---- docs ----

    def test_links(self):
        self.put("docs/b.md", "# B\n")
        self.expect("docs/a.md",
                    "# A\n[b](b.md#b) [up](../docs/b.md) [w](https://example.org/x) [s](#a)\n"
                    "`[code](none.md)`\n```\n[fenced](none.md)\n```\n[bad](none.md)\n",
                    (7, "link"))

    def test_one_title(self):
        self.put("docs/none.md", "text\n")
        self.put("docs/two.md", "# A\n\n```\n# comment\n```\n\n# B\n")
        self.assertEqual(self.found(), [("docs/none.md", 1, "title"), ("docs/two.md", 7, "title")])

    # ---- CMake ----

    def test_sources_that_nothing_builds(self):
        self.put("CMakeLists.txt", "include(Layer)\nadd_subdirectory(src)\n"
                 "add_subdirectory(tests)\n")
        self.put("cmake/Layer.cmake",
                 "function(layer name)\n"
                 "  file(GLOB s ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)\nendfunction()\n")
        self.put("src/CMakeLists.txt", "layer(base)\n# layer(spec)\n")
        self.put("tests/CMakeLists.txt", "add_executable(t model/a.cc)  # model/b.cc\n")
        self.put("bench/CMakeLists.txt", "add_executable(b b.cc)\n")
        for path in ("src/base/a.cc", "src/base/deep/a.cc", "src/spec/a.cc", "tests/model/a.cc",
                     "tests/model/b.cc", "bench/b.cc"):
            self.put(path, "int x;\n")
        self.assertEqual(self.found(), [(path, 1, "cmake") for path in (
            "bench/b.cc", "src/base/deep/a.cc", "src/spec/a.cc", "tests/model/b.cc")])

    # ---- the program ----

    def test_program_prints_findings_and_fails(self):
        self.put("src/base/a.cc", "throw 1;\n")
        run = subprocess.run([sys.executable, tidy.__file__, "--root", self.root],
                             capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 1)
        self.assertIn("src/base/a.cc:1: throw: return a Status or a Result\n", run.stdout)
        os.remove(os.path.join(self.root, "src/base/a.cc"))
        run = subprocess.run([sys.executable, tidy.__file__, "--root", self.root],
                             capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stdout), (0, "tidy: 0 findings\n"))


if __name__ == "__main__":
    unittest.main()
