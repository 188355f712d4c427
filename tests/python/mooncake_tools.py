"""What tests with a real Mooncake share: the interpreter that has it, and processes to look at."""

import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from process_lines import ProcessLines

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECONDS = 60.0


def find_mooncake_python():
    path = os.environ.get("HITIDE_MOONCAKE_PYTHON",
                          os.path.join(ROOT, "build", "venv", "bin", "python"))
    found = os.access(path, os.X_OK) and subprocess.run(
        [path, "-c", "import mooncake.store"], capture_output=True, check=False).returncode == 0
    if not found:
        pytest.skip(f"{path} cannot import mooncake.store: run scripts/setup, or set "
                    "HITIDE_MOONCAKE_PYTHON")
    return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, what):
    deadline = time.monotonic() + SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS} s"
        pause.wait(0.02)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid):
    """{process id: command line} of the processes that `pid` has started."""
    out = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                command = line.read().replace("\0", " ")
        except OSError:
            continue
        if parent == pid and is_running(int(name)):
            out[int(name)] = command
    return out


def listening(pid):
    """(address in hex, port) of each TCP socket that a process listens on."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        match = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        if match:
            inodes.add(match.group(1))
    out = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 9 and fields[3] == "0A" and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    out.add((address, int(port, 16)))
    return out


class StoreUp(ProcessLines):
    """One `hitide store up`."""

    def __init__(self, program, python, *arguments):
        self.process = subprocess.Popen(
            [program, "store", "up", "--python", python, *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.read_lines()

    def wait_ready(self):
        def settled():
            return "# ready" in self.out or not self._readers[0].is_alive()
        with self._changed:
            assert self._changed.wait_for(settled, SECONDS), f"not ready: {self.log()}"
        assert "# ready" in self.out, f"it ended: {self.log()}"
        self.parts = children(self.process.pid)
        return self

    def log(self):
        return "\n".join([*self.out, *self.err])

    def variables(self):
        """As a shell understands them that had other values before."""
        script = "\n".join([*self.out, "env"])
        old = {"MOONCAKE_CLIENT": "old:1", "MOONCAKE_STANDALONE_STORAGE": "1",
               "PATH": os.environ["PATH"]}
        text = subprocess.run(["sh", "-eu", "-c", script], env=old, capture_output=True, text=True,
                              check=True).stdout
        return {name: value for name, _, value in (line.partition("=") for line in
                                                   text.splitlines()) if "MOONCAKE" in name}

    def part(self, word):
        """The process id of the child whose command line has this word."""
        return next(pid for pid, command in self.parts.items() if word in command)

    def wait(self):
        """The exit code; nothing it has started runs on."""
        code = self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        for pid, command in self.parts.items() if hasattr(self, "parts") else ():
            wait_until(lambda one=pid: not is_running(one), f"the end of {command}")
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.wait()
        self.process.stdout.close()
        self.process.stderr.close()
