"""hitide store up: a Mooncake store on this machine until it is stopped.

Standard output: shell lines that set the variables of its clients, once it is ready; the last line
is `# ready`. Everything else goes to standard error. Exit codes: 0 stopped by SIGINT, SIGTERM or
SIGHUP; 1 it could not be started, or a part of it ended; 2 wrong option; 128 + n ended by signal n
before it was ready, or at once by a second signal.
"""

import argparse
import errno
import os
import select
import shlex
import signal
import socket
import sys

from hitide.store import servers
from hitide.store_agent import process

COMMAND = "hitide store up"
SEGMENT_BYTES_MIN = 16 << 20
SOCKET_FD = 3
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    def __init__(self, number):
        super().__init__(number)
        self.number = number


class Signals:
    """Waits, and sees signals while it waits."""

    def __init__(self, closed=None):
        """closed: a socket whose end is a SIGTERM."""
        read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._read, self._closed = read, closed
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: None)
        self.force = False  # the next one ends everything at once

    def pause(self, seconds):
        """Until so many seconds (None: no limit) are over or a child has ended. Interrupted: the
        first signal to stop. Does not come back from the second one."""
        watched = [self._read] + ([self._closed] if self._closed and not self.force else [])
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._closed in ready:
            self._stop(signal.SIGTERM)
        if self._read in ready:
            for number in os.read(self._read, 64):
                if number in STOP_SIGNALS:
                    self._stop(number)

    def _stop(self, number):
        if self.force:
            os._exit(128 + number)  # the children are killed with this process
        self.force = True
        raise Interrupted(number)


def complain(text):
    print(f"{COMMAND}: {text}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        complain(message)
        sys.exit(2)


def memory_available():
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return sys.maxsize


def segment_bytes(text):
    try:
        size = int(float(text) * (1 << 30))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of GiB") from None
    if size < SEGMENT_BYTES_MIN:
        raise argparse.ArgumentTypeError(
            f"'{text}': a segment has at least {SEGMENT_BYTES_MIN / (1 << 30)} GiB")
    if size > memory_available():
        raise argparse.ArgumentTypeError(
            f"'{text}': only {memory_available() / (1 << 30):.2f} GiB of memory are free")
    return size


def port_number(text):
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port, 1 to 65535")
    return int(text)


def parse(arguments):
    parser = Parser(prog=COMMAND, add_help=False, allow_abbrev=False)
    parser.add_argument("--segment-gb", type=segment_bytes, default="4", dest="segment_bytes")
    parser.add_argument("--port", type=port_number, default=0)
    parser.add_argument("--daemon-port", type=port_number, default=0)
    parser.add_argument("--embedded", action="store_true")
    # A program that starts this one: lines go to its socket, whose end stops the store.
    parser.add_argument("--parent", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.embedded and options.daemon_port:
        parser.error("--daemon-port and --embedded exclude each other: there is no daemon then")
    return options


def shell_lines(running):
    size = running.settings.segment_bytes / (1 << 30)
    owner = "an owner process" if running.settings.embedded else "a daemon"
    lines = [f"# A Mooncake store on this machine: {size:.4g} GiB in {owner}."]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in running.variables()]
    if running.settings.embedded:
        lines.append("unset MOONCAKE_STANDALONE_STORAGE MOONCAKE_CLIENT")
    return "\n".join([*lines, "# ready", ""])


def explain(running):
    name = running.owner.name
    daemon = f", {running.daemon_port} (daemon)" if running.daemon_port else ""
    complain(f"on {servers.HOST}: ports {running.master_port} (master), {running.metrics_port} "
             f"(its HTTP, which may remove everything){daemon}")
    complain(f"on ALL addresses: two ports of the {name} between 15000 and 17000, which its "
             "library does not bind to loopback; who reaches them can read and write the store: "
             "close them to other machines")
    complain("stops with Ctrl-C or SIGTERM; what it holds is gone then")


def watch(running, signals):
    """Until a child ends: says so. Interrupted: asked to stop."""
    while True:
        ended = running.ended()
        if ended:
            complain(f"{ended}; stopping the rest")
            return
        signals.pause(None)


def run(options, signals, write):
    running = servers.Servers(
        servers.Settings(segment_bytes=options.segment_bytes, embedded=options.embedded,
                         master_port=options.port, daemon_port=options.daemon_port),
        signals.pause)
    status, ready = 1, False
    try:
        running.start()
        write(shell_lines(running))
        ready = True
        explain(running)
        watch(running, signals)
    except Interrupted as stop:
        status = 0 if ready else 128 + stop.number
    except servers.StoreError as error:
        complain(error)
    except OSError as error:
        complain(f"standard output does not take the variables: {error.strerror}")
    signals.force = True
    running.stop()
    return status


def main():
    options = parse(sys.argv[1:])
    connection = None
    if options.parent:
        process.die_with_parent(options.parent)
        process.close_inherited(SOCKET_FD + 1)
        connection = socket.socket(fileno=SOCKET_FD)
        connection.set_inheritable(False)

    def write(text):
        if connection is not None:
            connection.sendall(text.encode())
        elif sys.stdout is None:  # closed before we came
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
    try:
        return run(options, Signals(connection), write)
    except servers.StoreError as error:
        complain(error)
        return 1


if __name__ == "__main__":
    try:
        STATUS = main()
    except KeyboardInterrupt:  # before there were handlers of ours
        STATUS = 128 + signal.SIGINT
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        STATUS = STATUS or 1
    os._exit(STATUS)  # what could not be written must not be tried again, and no thread held on to
