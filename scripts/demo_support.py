"""What the demos share: servers as processes, and questions to them over HTTP."""

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time

try:
    import httpx
except ImportError:
    sys.exit("demo: httpx is missing; run `make setup`, then use build/venv/bin/python")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = "build/deps/model/SmolLM2-135M-Instruct.Q4_1.gguf"
ANSWER_TOKENS_MAX = 32
START_SECONDS_MAX = 120

# A system prompt of more than 400 tokens: storage is not asked for less than 256.
GUIDE = """You are the guide of a small museum. Visitors ask you short questions and you give \
short and friendly answers of one sentence. You never make up facts. You know the following about \
the museum and about the world.

The museum is called the Harbour House. It stands in the old town of Lisbon, close to the river. \
It was opened in 1921 by a captain named Maria Costa, who had sailed around the world three times. \
The museum is open from Tuesday to Sunday, from ten in the morning to six in the evening. It is \
closed on Mondays. A ticket costs five euros. Children under twelve years come in for free.

On the ground floor there is a large hall with six wooden boats. The oldest boat was built in 1790 \
and is painted blue. Next to it stands a lighthouse lamp made of glass and brass, which is taller \
than a man. On the first floor there are maps, compasses and old letters. The most famous map \
shows the coast of Africa and was drawn by hand in 1502. On the second floor there is a library \
with four thousand books about the sea, and a cafe with a view over the river. The cafe sells tea, \
coffee, apple cake and soup. In summer there is music on the roof every Friday evening, played by \
students of the school next door.

The museum has a cat. The cat is called Pepper, is black and white, and likes to sleep on the \
maps. Visitors may stroke the cat, but they must not feed it. Dogs are not allowed inside.

Some facts about the world: Paris is the capital of France. Madrid is the capital of Spain. Rome \
is the capital of Italy. Lisbon is the capital of Portugal. The largest ocean is the Pacific \
Ocean. Water freezes at zero degrees Celsius and boils at one hundred degrees. The earth has one \
moon. A compass points to the north. Whales are mammals and not fish. A week has seven days, and a \
year has twelve months. The sun rises in the east and sets in the west.
"""


# ---- servers -------------------------------------------------------------------------------------


class Failure(Exception):
    """Something that ends the demo; its text says what, and where to look."""


def say(text=""):
    print(text, flush=True)


def show(path):
    """A path as short as it can be written from where the reader stands."""
    near = os.path.relpath(path)
    return near if len(near) < len(path) else path


def log_tail(path, lines=12):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join("    " + line for line in file.readlines()[-lines:])


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def die_with_parent():
    """Runs in the child: the kernel kills the server should this script be killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Server:
    """One `hitide serve` process, with its log and a connection to it."""

    def __init__(self, name, program, arguments, environment=None):
        self.name = name
        self.log = os.path.join(ROOT, "build", "log", f"demo-{name}.log")
        self.port = free_port()
        command = [program, "serve", "--port", str(self.port), *arguments]
        with open(self.log, "w", encoding="utf-8") as log:
            log.write("$ " + " ".join(command) + "\n")
            log.flush()
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {})}, preexec_fn=die_with_parent)
            except OSError as error:
                raise Failure(f"{program} does not start: {error}; run `make build`") from error
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120.0,
                                   trust_env=False)

    def wait_until_healthy(self):
        start = time.monotonic()
        while time.monotonic() - start < START_SECONDS_MAX:
            if self.process.poll() is not None:
                raise Failure(f"the {self.name} server ended with status "
                              f"{self.process.returncode} before it was ready; the last lines:\n"
                              f"{log_tail(self.log)}log: {show(self.log)}")
            try:
                if self.client.get("/health", timeout=5.0).status_code == 200:
                    say(f"  the {self.name} server is ready after "
                        f"{time.monotonic() - start:.1f} s (log: {show(self.log)})")
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise Failure(f"the {self.name} server was not ready within {START_SECONDS_MAX} s; the "
                      f"last lines:\n{log_tail(self.log)}log: {show(self.log)}")

    def kill(self):
        """SIGKILL: the server gets no chance to tidy up. Harmless when it has ended."""
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


# ---- questions -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Answer:
    text: str
    ttft_s: float
    usage: dict

    @property
    def cached(self):
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def tier(self, name):
        details = self.usage.get("prompt_tokens_details") or {}
        return (details.get("cached_tokens_details") or {}).get(name) or 0

    @property
    def explanation_id(self):
        return (self.usage.get("hitide") or {}).get("explanation_id")


def ask(server, messages, on_first=None):
    """Streams one answer; its time to first token is taken at the first piece of text. on_first()
    is called then."""
    body = {"model": "default", "messages": messages, "temperature": 0,
            "max_tokens": ANSWER_TOKENS_MAX, "stream": True,
            "stream_options": {"include_usage": True}}
    pieces, usage, first, finished = [], None, None, False
    start = time.perf_counter()
    try:
        with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise Failure(f"the {server.name} server answered {response.status_code}: "
                              f"{response.text[:500]}")
            for line in response.iter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[len("data:"):].strip()
                if data == "[DONE]":
                    finished = True
                    break
                chunk = json.loads(data)
                if "error" in chunk:
                    raise Failure(f"the {server.name} server stopped an answer: {chunk['error']}")
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices") or []:
                    text = (choice.get("delta") or {}).get("content") or ""
                    if first is None and (text or choice.get("finish_reason")):
                        first = time.perf_counter()
                        if on_first:
                            on_first()
                    pieces.append(text)
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        state = server.process.poll()
        alive = "still runs" if state is None else f"ended with status {state}"
        raise Failure(f"an answer of the {server.name} server broke off ({error!r}); the server "
                      f"{alive}; the last lines:\n{log_tail(server.log)}log: "
                      f"{show(server.log)}") from error
    if not finished or first is None or usage is None:
        raise Failure(f"an answer of the {server.name} server is not whole: "
                      f"[DONE] {finished}, text {first is not None}, usage {usage is not None}; "
                      f"log: {show(server.log)}")
    return Answer("".join(pieces), first - start, usage)


# ---- the frame of a demo -------------------------------------------------------------------------


def require_files(options):
    for path, remedy in ((options.program, "make build"), (options.model, "make setup")):
        if not os.path.exists(path):
            raise Failure(f"{show(path)} is missing: run `{remedy}`")
    os.makedirs(os.path.join(ROOT, "build", "log"), exist_ok=True)


def add_common_options(parser):
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "bin", "hitide"))
    parser.add_argument("--model", default=os.path.join(ROOT, MODEL))


def carry_out(run, options):
    """Runs a demo, run(options, started): started, a list, gets what has to be killed at the end.
    The exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = []
    try:
        return run(options, started)
    except Failure as failure:
        say(f"demo: FAILED: {failure}")
        return 1
    except KeyboardInterrupt:
        say("demo: stopped")
        return 130
    finally:
        for one in reversed(started):
            one.kill()


def print_line(cells, widths):
    """One line of a table: the first cell to the left, the others to the right."""
    say("  ".join(cell.ljust(width) if index == 0 else cell.rjust(width)
                  for index, (cell, width) in enumerate(zip(cells, widths))).rstrip())


def print_verdict(wrong):
    for line in wrong:
        say(f"demo: WRONG: {line}")
    if wrong:
        say(f"demo: failed; logs: {show(os.path.join(ROOT, 'build', 'log'))}/demo-*.log")
