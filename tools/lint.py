#!/usr/bin/env python3
"""Asks clang about every source file: its thread-safety analysis (src/base/mutex.h) and clang-tidy
(.clang-tidy says what for).

    tools/lint.py [--build build/dev] [--jobs 2] [--only thread-safety] [FILE ...]

Needs a configured build folder for its compile_commands.json. Each finding is printed once, also
where many files include it. Exit code: 0 nothing found; 1 findings; 2 clang is missing, or the
build folder is not configured."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "apps", "examples")
FINDING = re.compile(r"^(?P<place>[^\s:]+:\d+:\d+): (?:fatal )?(?:error|warning): (?P<text>.*)$")


def find_tool(name):
    for candidate in (f"{name}-14", name):
        if shutil.which(candidate):
            return candidate
    print(f"lint: no {name}: run `make setup`", file=sys.stderr)
    sys.exit(2)


def read_commands(build, chosen):
    """{file: flags that clang needs of its command}."""
    database = build / "compile_commands.json"
    if not database.is_file():
        print(f"lint: no {database}: run `cmake --preset dev` first", file=sys.stderr)
        sys.exit(2)
    commands = {}
    for entry in json.loads(database.read_text()):
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.name.endswith("_test.cc"):
            continue
        name = str(path.relative_to(ROOT))
        if not name.startswith(FOLDERS) or (chosen and name not in chosen):
            continue
        words = shlex.split(entry["command"])
        flags = [word for word in words if word.startswith(("-I", "-D", "-std="))]
        for at, word in enumerate(words):
            if word == "-isystem":
                flags += [word, words[at + 1]]
        commands[name] = flags
    return commands


def run(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    findings = {}
    for line in (done.stdout + done.stderr).splitlines():
        match = FINDING.match(line)
        if match:
            place = match["place"].removeprefix(f"{ROOT}{os.sep}")
            findings[f"{place}: {match['text']}"] = None
    if done.returncode != 0 and not findings:
        findings[f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr}"] = None
    return list(findings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=("thread-safety", "tidy"), help="one of the two")
    parser.add_argument("files", nargs="*", help="relative to the repository; default: all")
    options = parser.parse_args()

    commands = read_commands(options.build.resolve(), set(options.files))
    jobs = []
    for name, flags in sorted(commands.items()):
        if options.only != "tidy":
            jobs.append([find_tool("clang++"), "-fsyntax-only", "-Wthread-safety",
                         "-Werror=thread-safety", *flags, str(ROOT / name)])
        if options.only != "thread-safety":
            jobs.append([find_tool("clang-tidy"), "--quiet", str(ROOT / name), "--", *flags])
    findings = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(run, jobs):
            findings.update(dict.fromkeys(found))
    for finding in sorted(findings):
        print(finding)
    print(f"lint: {len(commands)} files, {len(findings)} findings")
    return 1 if findings or not commands else 0


if __name__ == "__main__":
    sys.exit(main())
