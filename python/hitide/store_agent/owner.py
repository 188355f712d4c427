"""python -m hitide.store_agent.owner [--socket] PARENT_PID: owns a segment of the store.

Speaks in lines on standard input and output, or, with --socket, on descriptor 3. Its settings come
first, name=value, ended by an empty line. It answers `ready HOST:PORT` once the segment is mounted,
and `failed CODE` for each try before that; `unsupported NAME ...` where the client does not know
settings that are asked for and can be done without. It is never killed for a slow call; when its
input closes it unmounts the segment and ends, and so it does when its parent ends. A line `clear`
removes every object of the store and is answered with `cleared COUNT`: for tests.
"""

import os
import socket
import sys
import threading

from hitide.store_agent import client_setup, process

DEFAULTS = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
            "device_name": "", "tenant_id": "default"}
SOCKET_FD = 3
RETRY_PAUSE_S = 1.0
CLOSE_LIMIT_S = 10.0


def read_settings(lines):
    """name=value lines up to an empty one."""
    settings = dict(DEFAULTS)
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            break
        name, _, value = line.partition("=")
        settings[name] = value
    return settings


def mount(package, settings, closed, answer):
    """The client, once it owns its segment; None when the input closed first."""
    told = False
    while not closed.is_set():
        store = package.MooncakeDistributedStore()
        code, left_out = client_setup.set_up(store, settings, int(settings["global_segment_size"]))
        if left_out and not told:
            answer(f"unsupported {' '.join(left_out)}")
            told = True
        if code == 0:
            answer(f"ready {store.get_hostname()}")
            return store
        answer(f"failed {code}")
        closed.wait(RETRY_PAUSE_S)
    return None


class Commands:
    """Reads the lines after the settings on a thread, so that the end of input is seen at once."""

    def __init__(self, lines):
        self.closed = threading.Event()
        self._ready = threading.Condition()
        self._lines = []
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines):
        try:
            for line in lines:
                with self._ready:
                    self._lines.append(line.strip())
                    self._ready.notify()
        except OSError:
            pass  # the other side is gone
        finally:
            self.closed.set()
            with self._ready:
                self._ready.notify()

    def __iter__(self):
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._lines or self.closed.is_set())
                if not self._lines:
                    return
                line = self._lines.pop(0)
            yield line


def serve(store, commands, answer):
    """Until the commands end."""
    for command in commands:
        if command == "clear":
            answer(f"cleared {int(store.remove_all(True))}")


def open_lines(arguments):
    """(lines, answer) of the connection that the arguments name."""
    if "--socket" not in arguments:
        return sys.stdin, lambda text: print(text, flush=True)
    connection = socket.socket(fileno=SOCKET_FD)
    return (connection.makefile("r", encoding="utf-8"),
            lambda text: connection.sendall(f"{text}\n".encode()))


def main():
    arguments = sys.argv[1:]
    if not arguments or not arguments[-1].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    process.close_inherited(SOCKET_FD + 1 if "--socket" in arguments else SOCKET_FD)
    lines, answer = open_lines(arguments)
    import mooncake.store  # pylint: disable=import-outside-toplevel
    settings = read_settings(lines)
    commands = Commands(lines)
    store = mount(mooncake.store, settings, commands.closed, answer)
    if store is not None:
        serve(store, commands, answer)
        # Unmounting asks the master, who may be gone.
        limit = threading.Timer(CLOSE_LIMIT_S, os._exit, (3,))
        limit.daemon = True
        limit.start()
        store.close()
    return 0


if __name__ == "__main__":
    STATUS = 1
    try:
        STATUS = main()
    finally:
        sys.stderr.flush()
        os._exit(STATUS)
