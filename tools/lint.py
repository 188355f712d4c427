#!/usr/bin/env python3
"""Asks clang about every source file: its thread-safety analysis (src/base/mutex.h) and clang-tidy
(.clang-tidy says what for).

    tools/lint.py [--build build/dev] [--jobs 2] [--only thread-safety] [FILE ...]

Needs a configured build folder for its compile_commands.json. Each finding is printed once, also
where many files include it. A file in which nothing was found is not asked about again as long as
it, all that it includes, its flags, the tools and what they are asked for stay as they are: that is
remembered in $XDG_CACHE_HOME/hitide/lint (default: ~/.cache). Exit code: 0 nothing found; 1
findings; 2 clang is missing, or the build folder is not configured."""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "apps", "examples")
CLEAN_KEPT_DAYS = 30
FINDING = re.compile(r"^(?P<place>[^\s:]+:\d+:\d+): (?:fatal )?(?:error|warning): (?P<text>.*)$")


@functools.cache
def find_tool(name):
    """The tool and what tells its releases apart."""
    for candidate in (f"{name}-14", name):
        if shutil.which(candidate):
            done = subprocess.run([candidate, "--version"], capture_output=True, check=False)
            return candidate, done.stdout
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


@functools.cache
def digest_of(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).digest()


def digest_of_inputs(name, flags):
    """Of the file and all that it includes. None: clang cannot say what that is."""
    listed = subprocess.run([find_tool("clang++")[0], "-M", *flags, str(ROOT / name)], cwd=ROOT,
                            capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        return None
    digest = hashlib.sha256()
    for path in shlex.split(listed.stdout.replace("\\\n", " "))[1:]:
        digest.update(digest_of(ROOT / path))
    return digest.digest()


def folder_of_clean():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache) / "hitide/lint"


def ask(command):
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


def lint(name, flags, questions):
    """Findings of all questions about one file; those known to have none are not asked."""
    inputs = digest_of_inputs(name, flags)
    findings, asked = [], 0
    for tool, before, after, asks_for in questions:
        tool, version = find_tool(tool)
        command = [tool, *before, str(ROOT / name), *after, *flags]
        what = shlex.join(command).replace(str(ROOT), "").encode()
        clean = None
        if inputs is not None:
            digest = hashlib.sha256(b"\0".join([version, what, asks_for, inputs]))
            clean = folder_of_clean() / digest.hexdigest()
        if clean is not None and clean.exists():
            clean.touch()
            continue
        asked += 1
        found = ask(command)
        findings += found
        if clean is not None and not found:
            clean.parent.mkdir(parents=True, exist_ok=True)
            clean.touch()
    return findings, asked


def forget_old():
    for clean in folder_of_clean().glob("*"):
        if clean.stat().st_mtime < time.time() - CLEAN_KEPT_DAYS * 24 * 3600:
            clean.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=("thread-safety", "tidy"), help="one of the two")
    parser.add_argument("files", nargs="*", help="relative to the repository; default: all")
    options = parser.parse_args()

    commands = read_commands(options.build.resolve(), set(options.files))
    questions = []
    if options.only != "tidy":
        questions.append(("clang++", ["-fsyntax-only", "-Wthread-safety",
                                      "-Werror=thread-safety"], [], b""))
    if options.only != "thread-safety":
        questions.append(("clang-tidy", ["--quiet"], ["--"], (ROOT / ".clang-tidy").read_bytes()))
    findings, asked = {}, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(lint, name, flags, questions) for name, flags in sorted(
            commands.items())]
        for job in jobs:
            found, count = job.result()
            findings.update(dict.fromkeys(found))
            asked += count
    forget_old()
    for finding in sorted(findings):
        print(finding)
    print(f"lint: {len(commands)} files, {asked} of {len(commands) * len(questions)} questions "
          f"asked, {len(findings)} findings")
    return 1 if findings or not commands else 0


if __name__ == "__main__":
    sys.exit(main())
