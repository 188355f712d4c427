"""`make demo-mooncake` as people run it: two servers share a store whose owner dies."""

import os
import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.mark.parametrize("mode", ["standalone", "embedded"])
def test_two_servers_share_a_store_and_outlive_its_owner(program, model, mode):
    command = [sys.executable, os.path.join(ROOT, "scripts", "demo-mooncake"), "--program", program,
               "--model", model]
    ran = subprocess.run(command + (["--embedded"] if mode == "embedded" else []), text=True,
                         capture_output=True, timeout=400, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "both went on without the store" in ran.stdout
