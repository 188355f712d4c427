#!/usr/bin/env python3
"""Checks the house rules that no compiler sees: layers, includes, banned calls, sizes, docs.

    tools/tidy.py [--root FOLDER]

Prints one line per finding, `file:line: rule: what to do`, then advice on large files, and exits 1
if there was a finding. A line that has to break a rule says so itself, with its reason:

    throw std::bad_alloc();  // tidy: allow-throw operator new has no other way to fail

Only files that git would commit are looked at, or all but build/ outside a repository.
"""

import argparse
import os
import re
import subprocess
import sys
from typing import Iterator, NamedTuple

# ---- the house -----------------------------------------------------------------------------------

# Layer folder -> its number and what it may include besides itself and the standard library: layer
# folders, or single headers of one. Public headers are given by number: see PUBLIC_LAYERS.
LAYERS = {
    "base": (0, []),
    "spec": (1, ["base"]),
    "prefix": (2, ["base", "spec"]),
    "device": (2, ["base", "spec"]),
    "storage": (2, ["base", "spec"]),
    "policy": (3, ["base", "spec", "prefix"]),
    "pool": (3, ["base", "spec", "device"]),
    "cache": (4, ["base", "spec", "prefix", "policy", "pool/page_allocator.h"]),
    "transfer": (4, ["base", "spec", "pool", "storage", "device"]),
    "runtime": (5, ["base", "spec", "prefix", "device", "storage", "policy", "pool", "cache",
                    "transfer"]),
    "replay": (5, ["base", "spec", "prefix", "policy", "pool/page_allocator.h", "cache"]),
    "engine": (6, ["base", "spec"]),
    "server": (6, ["base", "spec", "engine"]),
    "capi": (6, []),
}
APPS = (7, ["engine", "server", "spec", "replay", "base/mutex.h"])

# Public header include/hitide/NAME.h -> its layer. A layer may include public headers up to its own
# number, and so may a public header.
PUBLIC_LAYERS = {
    "status": 0, "result": 0, "types": 0,
    "options": 1, "stats": 1, "events": 1, "object_store": 1, "mooncake_options": 1, "device": 1,
    "explanation": 1, "file_store": 1, "emulated_device": 1,
    "model_spec": 1, "page_hash": 1, "request": 1, "registration": 1,
    "prefix_file": 1, "machine": 1,
    "cache": 5, "prefix_handle": 5, "page_store": 5,
}
PUBLIC_LINES_MAX = 2000

WIDTH_MAX = 100
LINES_MAX = 1000
LINES_ADVISED = {".h": 300, ".cc": 600, ".py": 600}  # a test file may use all of LINES_MAX
TEST_SUFFIXES = ("_test.cc", "_test.py")

STANDARD_HEADERS = set("""
algorithm any array atomic barrier bit bitset cassert ccomplex cctype cerrno cfenv cfloat charconv
chrono cinttypes climits clocale cmath codecvt compare complex concepts condition_variable coroutine
csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque
exception execution filesystem forward_list fstream functional future initializer_list iomanip ios
iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new
numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set
shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map
unordered_set utility valarray variant vector version stdint.h stddef.h stdbool.h
""".split())
SYSTEM_HEADERS = re.compile(
    r"(sys|linux|netinet|arpa|net|asm|sanitizer)/[\w./]+$|\w*intrin\.h$|"
    r"(dirent|dlfcn|errno|fcntl|netdb|poll|pthread|sched|signal|spawn|unistd|cpuid)\.h$")


class Ban(NamedTuple):
    """A pattern that the code of some files must not contain."""
    rule: str
    where: "re.Pattern[str]"
    pattern: "re.Pattern[str]"
    advice: str


LIBRARY = re.compile(r"(src|include)/(?!.*_test\.cc$)")
BANS = [
    Ban("getenv", LIBRARY, re.compile(r"\b(secure_)?getenv\s*\("),
        "read the environment in apps/ and hand the value down as an option"),
    Ban("print", LIBRARY,
        re.compile(r"\bstd::(cout|cerr|clog)\b|\bfmt::print(ln)?\s*\(|"
                   r"(?<![\w.>])(std::)?v?f?(printf|puts|putc|putchar)\s*\("),
        "log through base/log.h, or return the text"),
    Ban("dynamic-cast", re.compile(r"src/"), re.compile(r"\bdynamic_cast\b"),
        "ask the interface, or hold the concrete type"),
    Ban("throw", re.compile(r"src/"), re.compile(r"\bthrow\b"),
        "return a Status or a Result"),
    Ban("sleep", re.compile(r"tests/|src/.*_test\.cc$"),
        re.compile(r"\bsleep_(for|until)\b|(?<![\w.])(std::|::)?(u|nano)?sleep\s*\(|"
                   r"\btime\.sleep\b"),
        "wait for the event itself, or step a manual clock"),
    Ban("std-mutex", re.compile(r"(src|apps)/(?!base/mutex\.h$)(?!.*_test\.cc$)"),
        re.compile(r"\bstd::((recursive_|shared_)?(timed_)?mutex|condition_variable(_any)?|"
                   r"lock_guard|(unique|shared|scoped)_lock)\b"),
        "use Mutex, MutexLock and CondVar of base/mutex.h, and say what is guarded"),
    Ban("using-namespace", re.compile(r".*\.h$"), re.compile(r"\busing\s+namespace\b"),
        "name what is used; a header must not change its reader's scope"),
]
# In all text, comments included. Put together here so that this file passes its own check.
LEFTOVER = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|X" + r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}$~-])/(home|Users|root|work)/|\.\./" + r"shared\b")

CODE_SUFFIXES = (".h", ".cc", ".cu", ".py", ".cmake", ".sh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.advice}"


# ---- reading -------------------------------------------------------------------------------------


def list_files(root: str) -> "list[str]":
    """Paths below root, with forward slashes, sorted."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"],
                             check=True, capture_output=True).stdout.decode()
        top = subprocess.run(["git", "-C", root, "rev-parse", "--show-toplevel"], check=True,
                             capture_output=True).stdout.decode().strip()
        if os.path.realpath(top) == os.path.realpath(root):
            names = {name for name in out.split("\0") if name}
            return sorted(name for name in names if os.path.isfile(os.path.join(root, name)))
    except (OSError, subprocess.CalledProcessError):
        pass
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", "build", "__pycache__")]
        for name in names:
            found.append(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/"))
    return sorted(found)


_TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"([^()\\ \n]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
    r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def code_only(text: str) -> str:
    """C++ text with comments and the insides of literals blanked; lines stay where they are."""
    def blank(match: "re.Match[str]") -> str:
        return re.sub(r"[^\n]", " ", match.group(0))
    return _TOKENS.sub(blank, text)


def waived(line: str, rule: str) -> bool:
    """True when the line itself allows the rule to be broken, and says why."""
    return re.search(r"tidy: allow-" + re.escape(rule) + r"\s+\S", line) is not None


# ---- checks of one file --------------------------------------------------------------------------


def check_text(path: str, text: str) -> Iterator[Finding]:
    is_code = (path.endswith(CODE_SUFFIXES) or os.path.basename(path) == "CMakeLists.txt" or
               (path.startswith(("scripts/", ".ci/")) and "." not in os.path.basename(path)))
    own = path in ("tools/tidy.py", "tools/tidy_test.py")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.isascii():
            yield Finding(path, number, "ascii", "write plain ASCII (an escape in a literal)")
        if is_code and len(line) > WIDTH_MAX and not waived(line, "width"):
            yield Finding(path, number, "width", f"break the line: {len(line)} > {WIDTH_MAX}")
        if not own and LEFTOVER.search(line) and not waived(line, "leftover"):
            yield Finding(path, number, "leftover", "finish it, or file an issue and say why here")
        if not own and MACHINE_PATH.search(line) and not waived(line, "machine-path"):
            yield Finding(path, number, "machine-path", "use a path relative to the repository")


def check_bans(path: str, text: str) -> Iterator[Finding]:
    is_python = path.endswith(".py")
    if not (is_python or path.endswith((".h", ".cc", ".cu"))):
        return
    raw = text.split("\n")
    code = raw if is_python else code_only(text).split("\n")
    for ban in BANS:
        if not ban.where.match(path):
            continue
        for number, line in enumerate(code, 1):
            if is_python:
                line = line.split("#")[0]
            if ban.pattern.search(line) and not waived(raw[number - 1], ban.rule):
                yield Finding(path, number, ban.rule, ban.advice)


def public_name(include: str) -> "str | None":
    """The name of a public header, or None for any other include."""
    if include == "hitide.h":
        return "hitide"
    match = re.match(r"hitide/(.+)\.h$", include)
    return match.group(1) if match else None


def check_public_include(path: str, number: int, name: str, layer: int) -> Iterator[Finding]:
    if name == "hitide":  # the C ABI: beside the C++ headers, for capi and the apps
        if layer < 6:
            yield Finding(path, number, "layer", "hitide.h is for src/capi and programs only")
    elif name not in PUBLIC_LAYERS:
        yield Finding(path, number, "layer",
                      f"give hitide/{name}.h a layer in PUBLIC_LAYERS of tools/tidy.py")
    elif PUBLIC_LAYERS[name] > layer:
        yield Finding(path, number, "layer",
                      f"layer {layer} must not include hitide/{name}.h of layer "
                      f"{PUBLIC_LAYERS[name]}: move what is needed down")


def layer_of(path: str) -> "tuple[str, int, list[str]] | None":
    """Name, number and allowed includes of the layer that the file belongs to."""
    parts = path.split("/")
    if parts[0] == "apps":
        return ("apps", *APPS)
    if parts[0] == "src" and len(parts) > 2 and parts[1] in LAYERS:
        return (parts[1], *LAYERS[parts[1]])
    return None


def check_quoted(path: str, number: int, include: str) -> Iterator[Finding]:
    """An include of one of our headers in src/ or apps/ (public ones may come in <> too)."""
    layer = layer_of(path)
    if layer is None:
        return
    name, level, allowed = layer
    folder = include.split("/")[0]
    public = public_name(include)
    if public is not None:
        yield from check_public_include(path, number, public, level)
    elif include.startswith("tests/support/") and path.endswith("_test.cc"):
        pass
    elif name == "apps" and (include.startswith("apps/") or "/" not in include):
        pass
    elif folder not in LAYERS:
        yield Finding(path, number, "include",
                      f'"{include}": write our headers as "layer/file.h" from src/, others in <>')
    elif folder != name and folder not in allowed and include not in allowed:
        yield Finding(path, number, "layer",
                      f"{name} must not include {include}; allowed: public headers, "
                      f"{', '.join(allowed) or 'nothing else'}")


def check_angled(path: str, number: int, include: str) -> Iterator[Finding]:
    """A standard, system or third-party include."""
    if include in STANDARD_HEADERS:
        return
    if path.startswith("include/"):
        yield Finding(path, number, "public-include",
                      f"<{include}>: public headers include the standard library only")
    elif path.startswith(("src/", "apps/")) and path.endswith(".h"):
        if include.split("/")[0] in LAYERS:
            yield Finding(path, number, "include", f'write "{include}": our headers go in quotes')
        elif not SYSTEM_HEADERS.match(include):
            yield Finding(path, number, "third-party",
                          f"<{include}>: include other libraries in .cc files only")


def check_includes(path: str, text: str) -> Iterator[Finding]:
    if not path.endswith((".h", ".cc", ".cu")):
        return
    parts = path.split("/")
    if parts[0] == "src" and (len(parts) < 3 or parts[1] not in LAYERS):
        yield Finding(path, 1, "layer", "put it into a layer folder (LAYERS of tools/tidy.py)")
        return
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if not match or any(waived(line, rule) for rule in ("layer", "include", "third-party")):
            continue
        quote, include = match.groups()
        if quote == "<" and public_name(include) is None:
            yield from check_angled(path, number, include)
        elif path.startswith("include/"):
            own = os.path.splitext(parts[-1])[0]
            name = public_name(include)
            if name is None:
                yield Finding(path, number, "public-include",
                              f'"{include}": public headers include public headers only')
            else:
                yield from check_public_include(path, number, name, PUBLIC_LAYERS.get(own, 5))
        else:
            yield from check_quoted(path, number, include)


def check_header(path: str, text: str) -> Iterator[Finding]:
    if path.endswith(".h") and not re.search(r"^#pragma once$", text, re.MULTILINE):
        yield Finding(path, 1, "pragma-once", "begin the header with #pragma once")
    if path.startswith("include/hitide/"):
        name = path[len("include/hitide/"):-len(".h")]
        if path.endswith(".h") and name not in PUBLIC_LAYERS:
            yield Finding(path, 1, "layer", "give it a layer in PUBLIC_LAYERS of tools/tidy.py")


def check_doc(root: str, path: str, text: str) -> Iterator[Finding]:
    if not path.endswith(".md"):
        return
    titles = []
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
            continue
        if fenced:
            continue
        if line.startswith("# "):
            titles.append(number)
        for link in re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", re.sub(r"`[^`]*`", "", line)):
            target = link.split("#")[0]
            if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            base = root if target.startswith("/") else os.path.join(root, os.path.dirname(path))
            if not os.path.exists(os.path.join(base, target.lstrip("/"))):
                yield Finding(path, number, "link", f"{link} leads nowhere: correct or remove it")
    if "CHANGELOG.d/" in path:
        return
    if not titles:
        yield Finding(path, 1, "title", "begin the document with one '# Title' line")
    for number in titles[1:]:
        yield Finding(path, number, "title", "a document has one '# ' title: use '## ' here")


def check_size(path: str, text: str) -> Iterator[Finding]:
    count = text.count("\n")
    if os.path.splitext(path)[1] in LINES_ADVISED and count > LINES_MAX:
        yield Finding(path, LINES_MAX, "size", f"split it: {count} > {LINES_MAX} lines")


# ---- checks across files -------------------------------------------------------------------------


def cmake_tokens(text: str) -> "list[str]":
    """The arguments of a CMake text that name C++ sources, globs included."""
    text = re.sub(r"#[^\n]*", "", text)
    return [token.strip('"') for token in re.findall(r'"[^"\n]*"|[^\s()"]+', text)
            if token.strip('"').endswith((".cc", ".cu"))]


def as_pattern(token: str, folder: str, first: "str | None") -> "re.Pattern[str]":
    """A regular expression for the repository paths that a CMake source token can mean."""
    if first is not None:
        token = token.replace("${name}", first)
    here = (folder + "/") if folder else ""
    token = re.sub(r"\$\{CMAKE_CURRENT_(SOURCE|LIST)_DIR\}/", lambda _: "\0" + here, token)
    token = re.sub(r"\$\{(PROJECT|CMAKE|hitide)_SOURCE_DIR\}/", "\0", token)
    token = token.rsplit("\0", 1)[-1] if "\0" in token else here + token
    token = re.sub(r"\$\{\w+\}", "*", token)
    token = os.path.normpath(token)
    return re.compile(re.escape(token).replace(r"\*", "[^/]*") + "$")


def check_cmake(root: str, files: "list[str]") -> Iterator[Finding]:
    """Every C++ source is built by a CMakeLists.txt that the top one leads to."""
    if "CMakeLists.txt" not in files:
        return

    def read(path: str) -> str:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return re.sub(r"#[^\n]*", "", file.read())

    helpers = {}  # function -> the source tokens of its body
    for path in files:
        if path.endswith(".cmake"):
            for name, body in re.findall(r"function\(\s*(\w+)(.*?)endfunction", read(path), re.S):
                helpers[name.lower()] = cmake_tokens(body)
    patterns, queue, seen = [], [""], set()
    while queue:
        folder = queue.pop()
        path = f"{folder}/CMakeLists.txt".lstrip("/")
        if folder in seen or path not in files:
            continue
        seen.add(folder)
        text = read(path)
        patterns += [as_pattern(token, folder, None) for token in cmake_tokens(text)]
        for name, first in re.findall(r"\b(\w+)\s*\(\s*([^\s()]+)", text):
            if name.lower() == "add_subdirectory":
                queue.append(os.path.normpath(os.path.join(folder, first)))
            for token in helpers.get(name.lower(), []):
                patterns.append(as_pattern(token, folder, first))
    for path in files:
        if path.endswith((".cc", ".cu")) and not any(p.match(path) for p in patterns):
            yield Finding(path, 1, "cmake", "no CMakeLists.txt builds it: list it or delete it")


def check_public_size(texts: "dict[str, str]") -> Iterator[Finding]:
    total = sum(text.count("\n") for path, text in texts.items()
                if path.startswith("include/") and path.endswith(".h"))
    if total > PUBLIC_LINES_MAX:
        yield Finding("include", 1, "public-size",
                      f"public headers have {total} lines, {PUBLIC_LINES_MAX} are allowed: move "
                      "what a user need not see into src/")


def advise_sizes(texts: "dict[str, str]") -> "list[str]":
    """Lines of advice on files above the soft limits."""
    advice = []
    for path, text in texts.items():
        limit = LINES_ADVISED.get(os.path.splitext(path)[1])
        if limit is None or path.endswith(TEST_SUFFIXES) or path.startswith("tests/"):
            continue
        count = text.count("\n")
        if limit < count <= LINES_MAX:
            advice.append(f"{path}: {count} lines (advised: {limit})")
    return advice


# ---- main ----------------------------------------------------------------------------------------


def check(root: str) -> "tuple[list[Finding], list[str]]":
    """All findings below root, and the advice on sizes."""
    files = list_files(root)
    texts = {}
    for path in files:
        with open(os.path.join(root, path), "rb") as file:
            data = file.read()
        if b"\0" not in data[:8192] and not path.startswith("tests/golden/"):
            texts[path] = data.decode("utf-8", errors="replace")
    findings: "list[Finding]" = []
    for path, text in texts.items():
        findings += check_text(path, text)
        findings += check_bans(path, text)
        findings += check_includes(path, text)
        findings += check_header(path, text)
        findings += check_doc(root, path, text)
        findings += check_size(path, text)
    findings += check_cmake(root, files)
    findings += check_public_size(texts)
    return sorted(findings), advise_sizes(texts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the house rules; see the top of the file.")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), ".."),
                        help="the repository (default: the one this file is in)")
    root = os.path.abspath(parser.parse_args().root)
    findings, advice = check(root)
    for finding in findings:
        print(finding)
    if advice:
        print("advice: large files, each may only shrink:")
        for line in advice:
            print(f"  {line}")
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
