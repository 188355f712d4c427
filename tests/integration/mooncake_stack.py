"""A real Mooncake for tests: a master and an owner of a segment, on free ports of this machine, as
`hitide store up` starts them.

    PYTHON tests/integration/mooncake_stack.py [--segment-mb N] [--lease SECONDS] [--daemon]
           [--offload]

Needs an interpreter that has the package. Speaks in lines: first
`ready MASTER METRICS_PORT DAEMON_PORT`, then one answer, `ok` or `error WHY`, to each command on
standard input: `clear`, `stop-owner` (SIGSTOP), `continue-owner`, `kill-owner`, `start-owner`, and
the same four for the master. With --daemon the owner is a store daemon for thin clients, with
--offload owners may keep objects on their disks. It stops everything and ends when standard input
closes.
"""

import argparse
import os
import signal
import sys

sys.dont_write_bytecode = True
os.environ["MC_LOG_LEVEL"] = "ERROR"  # also for a client in this process
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

from hitide.store import servers  # pylint: disable=wrong-import-position

# Short times, so that tests see what happens when they are over; room, so that puts find some.
MASTER_FLAGS = ("--client_ttl=3", "--put_start_discard_timeout_sec=5",
                "--eviction_high_watermark_ratio=0.7", "--eviction_ratio=0.2")


class Stack:
    """The two processes, and the commands of the tests."""

    def __init__(self, segment_mb, lease, daemon, offload):
        self.running = servers.Servers(servers.Settings(
            segment_bytes=segment_mb << 20, embedded=not daemon,
            master_flags=(f"--default_kv_lease_ttl={lease}s", *MASTER_FLAGS,
                          *(("--enable_offload=true",) if offload else ()))))
        self.client = None

    def start(self):
        self.running.start()
        return (f"ready {self.running.master_address()} {self.running.metrics_port} "
                f"{self.running.daemon_port}")

    def clear(self):
        if not self.running.settings.embedded:
            self._clear_through_client()
        elif not self.running.ask_owner("clear\n").startswith("cleared "):
            raise RuntimeError("the owner did not clear the store")

    def _clear_through_client(self):
        if self.client is None:
            from mooncake.store import MooncakeDistributedStore  # pylint: disable=C0415
            client = MooncakeDistributedStore()
            if client.setup(servers.HOST, "P2PHANDSHAKE", 0, 0, "tcp", "",
                            self.running.master_address()) != 0:
                raise RuntimeError("no client to clear the store with")
            self.client = client
        self.client.remove_all(True)

    def signal(self, name, number):
        child = getattr(self.running, name)
        child.signal(number)
        if number == signal.SIGKILL:
            child.process.wait()


SIGNALS = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "kill": signal.SIGKILL}


def carry_out(stack, command):
    verb, _, name = command.partition("-")
    if command == "clear":
        stack.clear()
    elif verb == "start" and name in ("owner", "master"):
        getattr(stack.running, f"start_{name}")()
    elif verb in SIGNALS and name in ("owner", "master"):
        stack.signal(name, SIGNALS[verb])
    else:
        raise RuntimeError(f"there is no command {command!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--segment-mb", type=int, default=512)
    parser.add_argument("--lease", type=int, default=2)
    parser.add_argument("--daemon", action="store_true", help="for thin clients")
    parser.add_argument("--offload", action="store_true", help="owners may use their disks")
    arguments = parser.parse_args()
    stack = Stack(arguments.segment_mb, arguments.lease, arguments.daemon, arguments.offload)
    try:
        print(stack.start(), flush=True)
        for line in sys.stdin:
            try:
                carry_out(stack, line.strip())
                print("ok", flush=True)
            except Exception as error:  # pylint: disable=broad-except
                print(f"error {error}", flush=True)
    finally:
        stack.running.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
