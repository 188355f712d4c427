"""What any command may be given: nothing, everything, closed streams, servers that never end."""

import os
import socket
import subprocess
import threading

import pytest

from conftest import run_program

USAGE, UNAVAILABLE = 2, 3


@pytest.mark.parametrize("arguments", [
    ["import", "file", ""], ["import", ""], ["import", "file", "--namespace", ""],
    ["export", "", "-o", "x"], ["export", "prompt", "-o", ""],
    ["export", "prompt", "-o", "x", "--directory", ""], ["export", "--tokens-file", "", "-o", "x"],
    ["inspect", ""], ["verify", ""], ["man", ""], ["man", "--directory", ""],
    ["doctor", "--directory", ""], ["doctor", "--python", ""], ["doctor", "--url", ""],
    ["keys", "--tokens-file", ""], ["warm", ""], ["replay", ""], ["store", "up", "--python", ""],
    ["explain", "id", "--url", ""], ["explain", "id", "--api-key", "k\r\nX-A: b"],
    ["replay", "trace", "--storage-latency", "nan"], ["replay", "trace", "--storage-speed", "-nan"],
], ids=" ".join)
def test_what_says_nothing_is_not_taken_for_what_was_not_given(program, tmp_path, arguments):
    result = run_program(program, *arguments, env={**os.environ, "HOME": str(tmp_path),
                                                   "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert result.returncode == USAGE, (result.stdout, result.stderr)
    assert len(result.stderr.splitlines()) == 1 and not result.stdout
    assert not list(tmp_path.rglob("store")), "nothing was made"


@pytest.mark.parametrize("command", [["keys", "--tokens-file"], ["replay"], ["warm"]],
                         ids=lambda command: command[0])
def test_a_file_without_an_end_has_a_limit(program, command):
    result = run_program(program, *command, "/dev/zero")
    assert result.returncode == USAGE and "256 MiB" in result.stderr, result.stderr


@pytest.mark.parametrize("closed", [(0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_no_file_takes_the_place_of_a_closed_stream(program, tmp_path, closed):
    def close():
        for descriptor in closed:
            os.close(descriptor)
    store = tmp_path / "store"
    subprocess.run([program, "doctor", "--hicache-storage-backend", "file", "--directory",
                    str(store)], preexec_fn=close, timeout=60, check=False)
    assert (store / "LOCK").read_bytes().strip().isdigit() or not (store / "LOCK").read_bytes()


class EndlessServer:
    """Answers a request with a body that goes on for as long as anybody reads it."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        connection, _ = self.listener.accept()
        try:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
            while True:
                connection.sendall(b"x" * (1 << 20))
        except OSError:
            connection.close()


def test_an_answer_without_an_end_has_a_limit(program):
    server = EndlessServer()
    result = run_program(program, "explain", "id", "--url", server.url)
    assert result.returncode == UNAVAILABLE and "64 MiB" in result.stderr, result.stderr
