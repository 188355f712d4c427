"""lint.py with tools that are scripts: what it asks, what it remembers, and what it passes on."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LINT = pathlib.Path(__file__).resolve().parent / "lint.py"

# Notes each question; finds something in every file that says "bad".
TOOL = """#!/bin/sh
case "$*" in
  *--version*) echo "version $(cat "$HERE/version")"; exit 0 ;;
  *-M*) echo "a.o: $HERE/src/a.cc \\\\"; echo "  $HERE/src/a.h"; exit 0 ;;
esac
echo "$(basename "$0")" >> "$HERE/asked"
if grep -q bad "$HERE/src/a.cc"; then echo "$HERE/src/a.cc:1:2: warning: bad [check]"; exit 1; fi
"""


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        for name in ("tools", "src", "bin", "build"):
            (self.root / name).mkdir()
        (self.root / "tools/lint.py").write_bytes(LINT.read_bytes())
        for tool in ("clang++-14", "clang-tidy-14"):
            (self.root / "bin" / tool).write_text(TOOL, encoding="utf-8")
            (self.root / "bin" / tool).chmod(0o755)
        self.put(".clang-tidy", "Checks: one")
        self.put("version", "14")
        self.put("src/a.cc", "good")
        self.put("src/a.h", "")
        self.configure("-DA=1")

    def put(self, name, text):
        (self.root / name).write_text(text, encoding="utf-8")

    def configure(self, flag):
        entry = {"file": str(self.root / "src/a.cc"), "command": f"g++ {flag} -O2 -c a.cc"}
        self.put("build/compile_commands.json", json.dumps([entry]))

    def lint(self, *options):
        """Its exit code, its output, and which tools were asked about the file."""
        environment = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "HERE": str(self.root),
                       "XDG_CACHE_HOME": str(self.root / "cache")}
        self.put("asked", "")
        done = subprocess.run(
            [sys.executable, str(self.root / "tools/lint.py"), "--build",
             str(self.root / "build"), *options],
            capture_output=True, text=True, env=environment, check=False)
        asked = (self.root / "asked").read_text(encoding="utf-8").split()
        return done.returncode, done.stdout + done.stderr, sorted(asked)

    def test_what_was_clean_is_not_asked_again(self):
        both = ["clang++-14", "clang-tidy-14"]
        code, output, asked = self.lint()
        self.assertEqual((code, asked), (0, both), output)
        self.assertEqual(self.lint()[::2], (0, []))
        for change in (lambda: self.put("src/a.cc", "good too"),
                       lambda: self.put("src/a.h", "new"),
                       lambda: self.put("version", "14.1"),
                       lambda: self.configure("-DA=2")):
            change()
            self.assertEqual(self.lint()[::2], (0, both))
            self.assertEqual(self.lint()[::2], (0, []))
        self.put(".clang-tidy", "Checks: two")
        self.assertEqual(self.lint()[::2], (0, ["clang-tidy-14"]))

    def test_one_of_the_two(self):
        self.assertEqual(self.lint("--only", "tidy")[::2], (0, ["clang-tidy-14"]))
        self.assertEqual(self.lint("--only", "thread-safety")[::2], (0, ["clang++-14"]))
        self.assertEqual(self.lint()[::2], (0, []))

    def test_findings_are_told_every_time(self):
        self.put("src/a.cc", "bad")
        for _ in range(2):
            code, output, asked = self.lint()
            self.assertEqual((code, len(asked)), (1, 2))
            self.assertEqual(output.count("src/a.cc:1:2: bad [check]"), 1, "once for both tools")
            self.assertNotIn(str(self.root), output)

    def test_nothing_to_ask_about_is_a_failure(self):
        self.put("build/compile_commands.json", "[]")
        self.assertEqual(self.lint()[0], 1)
        (self.root / "build/compile_commands.json").unlink()
        self.assertEqual(self.lint()[0], 2)


if __name__ == "__main__":
    unittest.main()
