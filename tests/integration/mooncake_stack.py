"""A real Mooncake for tests: a master and an owner of a segment, on free ports of this machine.

    PYTHON tests/integration/mooncake_stack.py [--segment-mb N] [--lease SECONDS] [--daemon]

Needs an interpreter that has the package. Speaks in lines: first
`ready MASTER METRICS_PORT DAEMON_PORT`, then one answer, `ok` or `error WHY`, to each command on
standard input: `clear`, `stop-owner` (SIGSTOP), `continue-owner`, `kill-owner`, `start-owner`, and
the same four for the master. With --daemon the owner is a store daemon for thin clients. It stops
everything and ends when standard input closes.
"""

import argparse
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
os.environ["MC_LOG_LEVEL"] = "ERROR"  # also for a client in this process
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

from hitide.store_agent import process  # pylint: disable=wrong-import-position

READY_SECONDS = 30.0


def die_with_this(parent=os.getpid()):
    """In a child: so that nothing stays when this process is killed. Its own end, and with it an
    orderly stop, follows from that of its input."""
    process.die_with_parent(parent)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def wait_for(condition, what):
    end = time.monotonic() + READY_SECONDS
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {READY_SECONDS} s")
        pause.wait(0.01)


class Stack:
    """The two processes."""

    def __init__(self, segment_mb, lease, daemon):
        import mooncake  # pylint: disable=import-outside-toplevel
        self.folder = os.path.dirname(mooncake.__file__)
        self.segment_bytes = segment_mb << 20
        self.lease = lease
        self.port, self.metrics = free_port(), free_port()
        # The daemon for thin clients owns the segment in the owner's place.
        self.daemon_port = free_port() if daemon else 0
        self.master = self.owner = self.client = None

    def start_master(self):
        self.master = subprocess.Popen(
            [os.path.join(self.folder, "mooncake_master"), "--rpc_address=127.0.0.1",
             f"--rpc_port={self.port}", "--metrics_host=127.0.0.1",
             f"--metrics_port={self.metrics}", f"--default_kv_lease_ttl={self.lease}s",
             "--client_ttl=3", "--put_start_discard_timeout_sec=5",
             "--eviction_high_watermark_ratio=0.7", "--eviction_ratio=0.2",
             "--enable_metric_reporting=false"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=die_with_this, env={**os.environ, "GLOG_minloglevel": "2"})
        wait_for(lambda: self._alive(self.master, "master") and
                 '"service_ready":true' in get(self.metrics, "/health").replace(" ", ""),
                 "master")

    def start_owner(self):
        if self.daemon_port:
            self.start_daemon()
            return
        self.owner = subprocess.Popen(
            [sys.executable, "-m", "hitide.store_agent.owner", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"),
                 "PYTHONDONTWRITEBYTECODE": "1", "MC_STORE_CLIENT_SETUP_RETRIES": "1"})
        self._ask_owner(f"local_hostname=127.0.0.1\nglobal_segment_size={self.segment_bytes}\n"
                        f"master_server_address=127.0.0.1:{self.port}\n\n", "ready ")
        wait_for(lambda: get(self.metrics, "/get_all_segments").strip(), "segment")

    def start_daemon(self):
        self.owner = subprocess.Popen(
            [os.path.join(self.folder, "mooncake_client"), "--host=127.0.0.1",
             f"--port={self.daemon_port}", "--metadata_server=P2PHANDSHAKE",
             f"--master_server_address=127.0.0.1:{self.port}", "--protocol=tcp",
             f"--global_segment_size={self.segment_bytes >> 20}MB"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=die_with_this,
            env={**os.environ, "MC_TCP_ENABLE_CONNECTION_POOL": "1"})
        wait_for(lambda: self._alive(self.owner, "daemon") and
                 get(self.metrics, "/get_all_segments").strip(), "segment")

    def clear(self):
        if self.daemon_port:
            self._clear_through_client()
            return
        self._ask_owner("clear\n", "cleared ")

    def _clear_through_client(self):
        if self.client is None:
            from mooncake.store import MooncakeDistributedStore  # pylint: disable=C0415
            client = MooncakeDistributedStore()
            address = f"127.0.0.1:{self.port}"
            if client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", address) != 0:
                raise RuntimeError("no client to clear the store with")
            self.client = client
        self.client.remove_all(True)

    def _ask_owner(self, text, wanted):
        self.owner.stdin.write(text)
        self.owner.stdin.flush()
        line = self.owner.stdout.readline()
        if not line.startswith(wanted):
            raise RuntimeError(f"owner said {line!r}")

    @staticmethod
    def _alive(child, name):
        if child.poll() is not None:
            raise RuntimeError(f"{name} ended with {child.returncode}")
        return True

    def signal(self, name, number):
        child = getattr(self, name)
        child.send_signal(number)
        if number == signal.SIGKILL:
            child.wait()

    def close(self):
        for child, number in ((self.owner, None), (self.master, signal.SIGTERM)):
            if child is None or child.poll() is not None:
                continue
            child.send_signal(signal.SIGCONT)
            if number is None and not self.daemon_port:
                child.stdin.close()  # it unmounts, then ends
            else:
                child.send_signal(number or signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


SIGNALS = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "kill": signal.SIGKILL}


def carry_out(stack, command):
    verb, _, name = command.partition("-")
    if command == "clear":
        stack.clear()
    elif verb == "start" and name in ("owner", "master"):
        getattr(stack, f"start_{name}")()
    elif verb in SIGNALS and name in ("owner", "master"):
        stack.signal(name, SIGNALS[verb])
    else:
        raise RuntimeError(f"there is no command {command!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--segment-mb", type=int, default=512)
    parser.add_argument("--lease", type=int, default=2)
    parser.add_argument("--daemon", action="store_true", help="for thin clients")
    arguments = parser.parse_args()
    stack = Stack(arguments.segment_mb, arguments.lease, arguments.daemon)
    try:
        stack.start_master()
        stack.start_owner()
        print(f"ready 127.0.0.1:{stack.port} {stack.metrics} {stack.daemon_port}", flush=True)
        for line in sys.stdin:
            try:
                carry_out(stack, line.strip())
                print("ok", flush=True)
            except Exception as error:  # pylint: disable=broad-except
                print(f"error {error}", flush=True)
    finally:
        stack.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
