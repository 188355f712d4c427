"""A master and the owner of a segment, as children of this process.

The owner is the package's daemon, which thin clients need, or a Python process that unmounts its
segment when it is stopped. Everything is stopped in order (owner, then master), and ends with this
process when that is killed.
"""

import collections
import dataclasses
import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from hitide.store_agent import process

PACKAGE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
SYSTEM_PACKAGES = "libibverbs1 libcurl4 libnuma1"
HOST = "127.0.0.1"
READY_SECONDS = 30.0
MASTER_STOP_SECONDS = 5.0
DAEMON_STOP_SECONDS = 5.0
OWNER_STOP_SECONDS = 13.0  # it gives up unmounting after ten
PORT_TRIES = 3
ASK_SECONDS = 1.0
LINES_KEPT = 20
PYTHON_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class StoreError(RuntimeError):
    """It cannot be started or does not go on; one line for people."""


def programs_folder():
    """Where the package keeps its programs. StoreError: it is not installed."""
    spec = importlib.util.find_spec("mooncake")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.access(os.path.join(folder, "mooncake_master"), os.X_OK):
            return folder
    raise StoreError(f"{sys.executable} has no Mooncake: install it with {sys.executable} -m pip "
                     f"install {PACKAGE} (and the system packages {SYSTEM_PACKAGES}), or name "
                     "another interpreter with --python")


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def require_free(port, option="--port"):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise StoreError(f"port {port} of {HOST} cannot be taken: {error.strerror}; choose "
                             f"another {option}, or none for a free one") from None


def ask(port, path):
    """What a server of this machine answers; "" where there is no answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def accepts(port):
    try:
        with socket.create_connection((HOST, port), timeout=ASK_SECONDS):
            return True
    except OSError:
        return False


def pause_on_event(seconds, event=threading.Event()):
    event.wait(seconds)


@dataclasses.dataclass
class Settings:
    segment_bytes: int = 4 << 30
    embedded: bool = False  # a Python owner in the daemon's place
    master_port: int = 0    # 0: a free one
    daemon_port: int = 0    # 0: a free one
    master_flags: tuple = ()


class Child:
    """A program that dies with this process, in a session of its own: Ctrl-C at a terminal is this
    process's business first. Keeps the last lines of its standard error."""

    def __init__(self, name, command, environment, **pipes):
        self.name = name
        parent = os.getpid()
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            env={**os.environ, **environment}, preexec_fn=lambda: process.die_with_parent(parent),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **pipes})
        self._lines = collections.deque(maxlen=LINES_KEPT)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            if line.strip():
                self._lines.append(line.strip())

    def alive(self):
        return self.process.poll() is None

    def end(self):
        """How it ended, for people."""
        code = self.process.wait()
        self._reader.join(ASK_SECONDS)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        said = f" ({self._lines[-1]})" if self._lines else ""
        return f"the {self.name} (process {self.process.pid}) ended {how}{said}"

    def signal(self, number):
        if self.alive():
            self.process.send_signal(number)

    def stop(self, seconds, pause, ask_to_end):
        """Ends it, by force where it does not by itself."""
        if not self.alive():
            return
        self.process.send_signal(signal.SIGCONT)
        ask_to_end()
        limit = time.monotonic() + seconds
        while self.alive() and time.monotonic() < limit:
            pause(0.01)
        self.kill()

    def kill(self):
        if self.alive():
            self.process.kill()
        self.process.wait()


class Servers:
    """Start with start(); stop() or kill() at the end. One thread. pause(seconds) is called while
    something is waited for; what it raises ends the waiting."""

    def __init__(self, settings, pause=pause_on_event):
        self.settings = settings
        self.folder = programs_folder()
        self.pause = pause
        self.master = self.owner = None
        self.master_port = settings.master_port
        self.metrics_port = 0
        self.daemon_port = 0

    def start(self):
        for port, option in ((self.settings.master_port, "--port"),
                             (self.settings.daemon_port, "--daemon-port")):
            if port:
                require_free(port, option)
        self._choose_ports()
        for left in reversed(range(PORT_TRIES)):
            try:
                self.start_master()
                break
            except StoreError:
                # A port that was free a moment ago may be somebody's by now.
                if left == 0:
                    raise
                self._choose_ports()
        self.start_owner()

    def _choose_ports(self):
        self.master_port = self.settings.master_port or free_port()
        self.metrics_port = free_port()
        self.daemon_port = 0 if self.settings.embedded else (self.settings.daemon_port or
                                                             free_port())

    def start_master(self):
        self.master = Child(
            "master",
            [os.path.join(self.folder, "mooncake_master"), f"--rpc_address={HOST}",
             f"--rpc_port={self.master_port}", f"--metrics_host={HOST}",
             f"--metrics_port={self.metrics_port}", "--enable_metric_reporting=false",
             *self.settings.master_flags],
            {"GLOG_minloglevel": "2"})
        self._wait_for(lambda: '"service_ready":true' in
                       ask(self.metrics_port, "/health").replace(" ", ""), self.master)

    def start_owner(self):
        if self.settings.embedded:
            self._start_python_owner()
        else:
            self._start_daemon()

    def _segments(self):
        return ask(self.metrics_port, "/get_all_segments").split()

    def _start_daemon(self):
        known = self._segments()
        self.owner = Child(
            "daemon",
            [os.path.join(self.folder, "mooncake_client"), f"--host={HOST}",
             f"--port={self.daemon_port}", "--metadata_server=P2PHANDSHAKE",
             f"--master_server_address={self.master_address()}", "--protocol=tcp",
             f"--global_segment_size={self.settings.segment_bytes}"],
            {"MC_LOG_LEVEL": "ERROR", "MC_TCP_ENABLE_CONNECTION_POOL": "1"})
        # It mounts its segment first and listens for thin clients after that.
        self._wait_for(lambda: set(self._segments()) - set(known) and accepts(self.daemon_port),
                       self.owner)

    def _start_python_owner(self):
        self.owner = Child(
            "owner", [sys.executable, "-m", "hitide.store_agent.owner", str(os.getpid())],
            {"PYTHONPATH": PYTHON_FOLDER, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1",
             "MC_LOG_LEVEL": "ERROR", "MC_STORE_CLIENT_SETUP_RETRIES": "1",
             "MC_TCP_ENABLE_CONNECTION_POOL": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answer = self.ask_owner(f"local_hostname={HOST}\n"
                                f"global_segment_size={self.settings.segment_bytes}\n"
                                f"master_server_address={self.master_address()}\n\n")
        if not answer.startswith("ready "):
            raise StoreError(f"the owner could not mount its segment of "
                             f"{self.settings.segment_bytes} bytes: {answer}")

    def ask_owner(self, text):
        """One answer line of the Python owner."""
        lines = []
        pipes = self.owner.process

        def exchange():
            try:
                pipes.stdin.write(text)
                pipes.stdin.flush()
                lines.append(pipes.stdout.readline().strip())
            except (OSError, ValueError):
                pass  # it has ended
        thread = threading.Thread(target=exchange, daemon=True)
        thread.start()
        self._wait_for(lambda: not thread.is_alive(), self.owner)
        if not lines or not lines[0]:
            raise StoreError(self.owner.end())
        return lines[0]

    def _wait_for(self, condition, child):
        limit = time.monotonic() + READY_SECONDS
        while not condition():
            if not child.alive():
                raise StoreError(f"{child.end()} before it was ready")
            if time.monotonic() > limit:
                raise StoreError(f"the {child.name} was not ready within {READY_SECONDS:.0f} s")
            self.pause(0.01)

    def master_address(self):
        return f"{HOST}:{self.master_port}"

    def variables(self):
        """What a client of this store has to know: (name, value)."""
        out = [("MOONCAKE_MASTER", self.master_address()),
               ("MOONCAKE_MASTER_METRICS_PORT", str(self.metrics_port)),
               ("MOONCAKE_PROTOCOL", "tcp"),
               ("MOONCAKE_LOCAL_HOSTNAME", HOST),
               ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")]
        if self.daemon_port:
            out += [("MOONCAKE_STANDALONE_STORAGE", "1"),
                    ("MOONCAKE_CLIENT", f"{HOST}:{self.daemon_port}")]
        return out

    def ended(self):
        """How a child ended that should run; "" while all run."""
        for child in (self.master, self.owner):
            if child is not None and not child.alive():
                return child.end()
        return ""

    def stop(self):
        """The owner before the master, which has to be told of an unmounted segment."""
        owner, master = self.owner, self.master
        if owner is not None:
            if self.settings.embedded:
                owner.stop(OWNER_STOP_SECONDS, self.pause, owner.process.stdin.close)
            else:
                owner.stop(DAEMON_STOP_SECONDS, self.pause, owner.process.terminate)
        if master is not None:
            master.stop(MASTER_STOP_SECONDS, self.pause, master.process.terminate)

    def kill(self):
        for child in (self.owner, self.master):
            if child is not None:
                child.kill()
