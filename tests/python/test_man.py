"""Manual pages: every command has one, with every option that it has."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT, run_program

DONE, FAILED, USAGE = 0, 1, 2


def commands_of(program):
    text = run_program(program, "--help").stdout
    names = re.findall(r"^  ([a-z]+) ", text[text.index("Subcommands:"):], re.MULTILINE)
    return [name for name in names if name != "store"] + ["store up"]


def plain(page):
    """What a reader sees, as far as letters go."""
    return re.sub(r"\\f[BIR]", "", page).replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def test_each_command_has_a_page_with_its_options_and_the_exit_codes(program):
    commands = commands_of(program)
    assert {"serve", "replay", "inspect", "verify", "warm", "man"} <= set(commands)
    overview = plain(run_program(program, "man").stdout)
    for command in commands:
        page = run_program(program, "man", command)
        assert page.returncode == DONE, page.stderr
        text = plain(page.stdout)
        help_text = run_program(program, *command.split(), "--help").stdout
        for option in set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]+)", help_text, re.MULTILINE)):
            assert option in text, (command, option)
        assert ".SH EXIT STATUS" in text
        assert "hitide-" + command.replace(" ", "-") in overview


def test_the_exit_codes_of_the_pages_are_those_of_the_manual(program):
    with open(os.path.join(ROOT, "docs", "cli.md"), encoding="ascii") as file:
        manual = file.read()
    table = manual[manual.index("## Exit codes"):]
    codes = re.findall(r"^\| (\d) \|", table, re.MULTILINE)
    status = plain(run_program(program, "man").stdout).split(".SH EXIT STATUS")[1]
    assert codes == re.findall(r"^\.TP\n(\d)$", status, re.MULTILINE)


def test_all_pages_are_written_and_can_be_formatted(program, tmp_path):
    assert run_program(program, "man", "--directory", tmp_path / "man1").returncode == DONE
    names = sorted(os.listdir(tmp_path / "man1"))
    assert "hitide.1" in names and "hitide-serve.1" in names and "hitide-store-up.1" in names
    for name in names:
        text = (tmp_path / "man1" / name).read_text()
        assert text.startswith(".TH ") and text.isascii()
        requests = re.findall(r"^[.'](\S*)", text, re.MULTILINE)
        assert set(requests) <= {"TH", "SH", "SS", "TP", "BR"}, name
    if shutil.which("groff"):
        page = str(tmp_path / "man1" / "hitide-serve.1")
        result = subprocess.run(["groff", "-man", "-Tascii", "-ww", page], capture_output=True,
                                text=True, timeout=60)
        assert result.returncode == 0 and result.stderr == ""


@pytest.mark.parametrize("arguments, code, part", [
    (["nonsense"], USAGE, "'nonsense'"),
    (["serve", "--directory", "x"], USAGE, "--directory"),
    (["--directory", "/proc/none"], FAILED, "/proc/none"),
])
def test_wrong_usage(program, arguments, code, part):
    result = run_program(program, "man", *arguments)
    assert result.returncode == code and part in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
