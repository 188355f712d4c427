"""Servers to test over HTTP: the real `hitide serve` with the real model.

HITIDE_BIN names the program (default: the one in HITIDE_BUILD_DIR), HITIDE_TEST_MODEL the model.
Without them the tests are skipped and say so.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time

import httpx
import openai
import pytest

from process_lines import ProcessLines

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = "build/deps/model/SmolLM2-135M-Instruct.Q4_1.gguf"
START_SECONDS = 120.0
ANSWER_SECONDS = 120.0


def wait_for(condition, seconds, what):
    """Returns the first true value of condition(); fails when there is none in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        pause.wait(0.05)


def find_program():
    build = os.environ.get("HITIDE_BUILD_DIR", os.path.join(ROOT, "build", "dev"))
    named = os.environ.get("HITIDE_BIN")
    candidates = [named] if named else [os.path.join(build, "apps", "hitide", "hitide"),
                                        os.path.join(build, "bin", "hitide"),
                                        os.path.join(ROOT, "build", "bin", "hitide")]
    for path in candidates:
        if path and os.access(path, os.X_OK):
            return path
    pytest.skip(f"no program at {', '.join(candidates)}: build it, or set HITIDE_BIN")


def find_model():
    path = os.environ.get("HITIDE_TEST_MODEL", os.path.join(ROOT, MODEL))
    if not os.path.isfile(path):
        pytest.skip(f"no model at {path}: run scripts/setup, or set HITIDE_TEST_MODEL")
    return path


@pytest.fixture(scope="session")
def program():
    return find_program()


@pytest.fixture(scope="session")
def model():
    return find_model()


def run_program(program, *arguments, timeout=60, env=None):
    """Runs a command that ends by itself."""
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=timeout,
                          env=env, stdin=subprocess.DEVNULL)


class Server(ProcessLines):
    """One `hitide serve`, on a free port, with one thread so that tests do not contend."""

    def __init__(self, program, model, *arguments, env=None):
        self.command = [program, "serve", "--model-path", model, "--port", "0", "--threads", "1",
                        "--enable-cache-report", *arguments]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                                        env=env)
        self.read_lines()

    def _ready_line(self):
        return next((line for line in self.out if line.startswith("ready: ")), None)

    def wait_ready(self):
        def settled():
            return self._ready_line() or not any(reader.is_alive() for reader in self._readers[:1])
        with self._changed:
            assert self._changed.wait_for(settled, START_SECONDS), f"not ready: {self.log()}"
            line = self._ready_line()
        assert line, f"ended instead of serving: {self.log()}"
        self.url = re.match(r"ready: (http://\S+)/v1$", line).group(1)
        self.http = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS)
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="unused", max_retries=0,
                                    timeout=ANSWER_SECONDS)
        return self

    def log(self):
        return "\n".join([" ".join(self.command), *self.out, *self.err])

    def warnings(self):
        return [line for line in self.err if re.match(r"\S+ [WE] ", line)]

    def metric(self, sample):
        """The value of one sample of /metrics, by its whole name with labels."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(sample + " "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no sample {sample} in /metrics")

    def wait_stored(self, pages):
        """Waits until so many pages have been written to storage since the start."""
        name = 'hitide_backed_up_pages_total{tier="storage"}'
        wait_for(lambda: self.metric(name) >= pages, 60, f"{pages} pages in storage")

    def wait_idle(self):
        """Waits until no page is held by a request or an operation."""
        names = [f'hitide_pages_by_state{{tier="{tier}",state="{state}"}}'
                 for tier in ("device", "host") for state in ("pinned", "in_flight")]
        wait_for(lambda: not any(self.metric(name) for name in names), 60, "an idle cache")

    def chat(self, messages, tokens=12, **fields):
        """A greedy answer."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.client.chat.completions.create(model="any", messages=messages, temperature=0,
                                                   max_tokens=tokens, **fields)

    def signal(self, number):
        self.process.send_signal(number)

    def wait_end(self, seconds=60):
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def stop(self):
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_end()

    def kill(self):
        self.process.kill()
        return self.wait_end()


@pytest.fixture(scope="session")
def session_servers():
    started = []
    yield started
    for server in started:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture
def start(program, model):
    """start(*arguments): a ready server, ended after the test. Its memory and context are small."""
    started = []

    def start_one(*arguments, model_path=model, env=None, wait=True):
        server = Server(program, model_path, "--context-length", "2048", "--hicache-size", "300MB",
                        *arguments, env=env)
        started.append(server)
        return server.wait_ready() if wait else server

    yield start_one
    for server in started:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture(scope="session")
def server(program, model, session_servers, tmp_path_factory):
    """A server with all tiers, shared by the tests that only ask."""
    store = tmp_path_factory.mktemp("store")
    shared = Server(program, model, "--context-length", "2048", "--hicache-size", "300MB",
                    *storage_arguments(store))
    session_servers.append(shared)
    return shared.wait_ready()


@pytest.fixture(scope="session")
def reference(program, model, session_servers):
    """A server without cache: what the texts must be."""
    bare = Server(program, model, "--context-length", "2048", "--disable-radix-cache")
    session_servers.append(bare)
    return bare.wait_ready()


def storage_arguments(folder, **keys):
    """A file store in `folder` that is asked for short prefixes too."""
    config = {"path": str(folder), "max_size": "1GB", "prefetch_threshold": 32, **keys}
    return ["--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config",
            json.dumps(config)]


def text_of(answer):
    return answer.choices[0].message.content


def cached_of(answer):
    """Tokens served by tier, from the cache report; they must sum to cached_tokens."""
    details = answer.usage.prompt_tokens_details
    tiers = details.cached_tokens_details
    assert tiers["device"] + tiers["host"] + tiers["storage"] == details.cached_tokens
    return tiers


def long_prompt(about, sentences=14):
    """About twenty tokens a sentence, different for each `about`."""
    return " ".join(f"Note {i} about {about}: the {about} number {i} stands in the hall and is "
                    f"looked after by guard {i * 7 + 3}." for i in range(sentences))
