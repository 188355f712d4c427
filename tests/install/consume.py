#!/usr/bin/env python3
"""Installs a build, moves the prefix, and uses it as somebody else's project would.

    tests/install/consume.py --build FOLDER --source FOLDER

Fails with what a step printed. Nothing of the source or the build folder may be needed, or named,
by what was installed.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

LIMIT_S = 600
TINY_ENGINE_LINES_MAX = 150


def run(*command: "str | pathlib.Path", **more: object) -> str:
    """What the command printed; ends the program where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT_S, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout}\ninstall: exit code {done.returncode}")
    return done.stdout


def require(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"install: {what}")


def install(build: pathlib.Path, source: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    """The prefix, moved away from where it was installed."""
    run("cmake", "--install", build, "--prefix", work / "first")
    prefix = work / "moved"
    (work / "first").rename(prefix)
    for file in prefix.rglob("*"):
        if file.suffix in (".cmake", ".h", ".txt", ".py"):
            text = file.read_text(encoding="utf-8")
            for folder in (build, source, work / "first"):
                require(str(folder) not in text, f"{file.relative_to(prefix)} names {folder}")
    return prefix


def build_consumer(prefix: pathlib.Path, source: pathlib.Path, work: pathlib.Path) -> None:
    """Configures, builds and tests the installed examples with the installed package alone."""
    shutil.copytree(prefix / "share/hitide/examples", work / "examples")
    environment = {name: value for name, value in os.environ.items() if name != "CMAKE_PREFIX_PATH"}
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    run("cmake", "-S", work / "examples", "-B", work / "consumer", "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror", *launcher, env=environment)
    commands = json.loads((work / "consumer/compile_commands.json").read_text(encoding="utf-8"))
    for entry in commands:
        require(str(source) not in entry["command"], f"compiled with {source}: {entry['command']}")
    run("cmake", "--build", work / "consumer", env=environment)
    print(run("ctest", "--test-dir", work / "consumer", "--output-on-failure", "--no-tests=error"))
    print(run(work / "consumer/tiny_engine"))
    lines = (work / "examples/tiny_engine.cc").read_text(encoding="utf-8").count("\n")
    require(lines <= TINY_ENGINE_LINES_MAX, f"tiny_engine.cc has {lines} lines")


def use_program(prefix: pathlib.Path, work: pathlib.Path) -> None:
    """The installed program runs, and hands its own Python package to the interpreter."""
    program = prefix / "bin/hitide"
    print(run(program, "version"))
    python = work / "interpreter"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH"\n', encoding="utf-8")
    python.chmod(0o755)
    said = run(program, "store", "up", "--python", python).strip()
    package = prefix / "share/hitide/python"
    require(said == str(package), f"the package is looked for in '{said}', not in {package}")
    for module in ("hitide/store_agent/__main__.py", "hitide/store/up.py"):
        require((package / module).is_file(), f"{module} is not installed")


def main() -> int:
    parser = argparse.ArgumentParser(description="Installs a build and uses it from outside.")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    build, source = arguments.build.resolve(), arguments.source.resolve()
    with tempfile.TemporaryDirectory(prefix="hitide-install-") as folder:
        work = pathlib.Path(folder).resolve()
        prefix = install(build, source, work)
        build_consumer(prefix, source, work)
        use_program(prefix, work)
    print("install: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
