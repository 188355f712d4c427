"""`hitide serve` on a real Mooncake, in every row of the registration table a target can be in.

Each start is asked twice, with the cache flushed in between, so that only storage can serve it.
"""

import json
import os

import pytest

from conftest import Server, cached_of, long_prompt, run_program, text_of, wait_for
from mooncake_tools import StoreUp, children, find_mooncake_python, free_port, is_running

SEGMENT = ("--segment-gb", "0.25")
SERVE = ("--context-length", "2048", "--hicache-size", "100MB", "--hicache-storage-backend",
         "mooncake", "--hicache-storage-prefetch-policy", "wait_complete")


@pytest.fixture(scope="module")
def python():
    return find_mooncake_python()


@pytest.fixture(scope="module", params=["standalone", "embedded"])
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def store(program, python, mode):
    arguments = ("--embedded",) if mode == "embedded" else ()
    with StoreUp(program, python, *SEGMENT, *arguments) as running:
        yield running.wait_ready()


def serve(program, model, python, variables, *arguments):
    config = {"python": python, "prefetch_threshold": 32}
    known = {name: value for name, value in os.environ.items() if "MOONCAKE" not in name}
    return Server(program, model, *SERVE, "--hicache-storage-backend-extra-config",
                  json.dumps(config), *arguments, env={**known, **variables}).wait_ready()


def storage_of(server):
    return server.http.get("/hitide/storage").json()


def ask_past_device_and_host(server, about):
    """The answer to a prompt whose pages only storage can have."""
    first = server.chat(long_prompt(about))
    server.wait_idle()
    assert server.http.post("/flush_cache").status_code == 200
    again = server.chat(long_prompt(about))
    assert text_of(first) == text_of(again)
    return again


# What the host memory is, and what becomes of it: by mode, (verdict, path).
ROWS = {
    "shm": ((), {"standalone": ("ok", "zero_copy"), "embedded": ("ok", "zero_copy")}),
    "store": (("--host-allocator", "store"),
              {"standalone": ("ok", "zero_copy"), "embedded": ("ok", "zero_copy")}),
    "mmap": (("--host-allocator", "mmap"),
             {"standalone": ("outside_store_segment", "staged"),
              "embedded": ("not_shareable", "staged")}),
    "mmap without staging": (("--host-allocator", "kv=mmap", "--no-staging"),
                             {"standalone": ("outside_store_segment", "off"),
                              "embedded": ("not_shareable", "off")}),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_kind_of_host_memory_starts_and_serves(program, model, python, store, mode, name):
    arguments, expected = ROWS[name]
    server = serve(program, model, python, store.variables(), *arguments)
    try:
        state = storage_of(server)
        (pool,) = state["registration"]
        verdict, path = expected[mode]
        assert (pool["verdict"], pool["path"], pool["client"]) == (verdict, path, mode), state
        answer = ask_past_device_and_host(server, f"{mode} {name}")
        if path == "off":
            assert state["status"] == "off" and pool["advice"], state
            assert cached_of(answer)["storage"] == 0
            again = server.chat(long_prompt(f"{mode} {name}"))
            assert cached_of(again)["device"] > 0, "L1 goes on"
        else:
            assert state["status"] == "on", state
            assert cached_of(answer)["storage"] > 0
        warnings = [line for line in server.warnings() if "pool_registration" in line]
        assert len(warnings) == (0 if path == "zero_copy" else 1), server.log()
        assert server.stop() == 0
    finally:
        server.process.kill()


def test_a_store_that_dies_is_said_and_found_again(program, model, python):
    ports = ("--port", str(free_port()), "--daemon-port", str(free_port()))
    with StoreUp(program, python, *SEGMENT, *ports) as first:
        server = serve(program, model, python, first.wait_ready().variables())
        assert cached_of(ask_past_device_and_host(server, "before"))["storage"] > 0
    try:
        # Whoever asks storage finds out; from then on it is said, until it serves again.
        def failing():
            server.http.post("/flush_cache")
            server.chat(long_prompt("between"), tokens=1)
            return storage_of(server)["status"] == "failing"
        wait_for(failing, 60, "the loss of the store")
        assert server.metric('hitide_store_up{backend="mooncake"}') == 0
        with StoreUp(program, python, *SEGMENT, *ports) as second:
            second.wait_ready()

            def serving():
                server.http.post("/flush_cache")
                server.chat(long_prompt("after"), tokens=1)
                return storage_of(server)["status"] == "on"
            wait_for(serving, 60, "the store's return")
            assert cached_of(ask_past_device_and_host(server, "returned"))["storage"] > 0
            assert server.metric('hitide_store_up{backend="mooncake"}') == 1
            assert server.metric('hitide_store_outages_total{backend="mooncake"}') >= 1
    finally:
        assert server.stop() == 0


def test_nothing_outlives_a_killed_server_whatever_the_interpreter_does(program, model, tmp_path):
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n")
    hanging.chmod(0o755)
    config = {"python": str(hanging), "start_limit": 1}
    variables = {"MOONCAKE_MASTER": "127.0.0.1:1", "MOONCAKE_PROTOCOL": "tcp",
                 "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(64 << 20)}
    known = {name: value for name, value in os.environ.items() if "MOONCAKE" not in name}
    server = Server(program, model, *SERVE, "--hicache-storage-backend-extra-config",
                    json.dumps(config), env={**known, **variables}).wait_ready()
    try:
        wait_for(lambda: len(children(server.process.pid)) >= 2, 60, "an agent and an owner")
        left = children(server.process.pid)
        assert all("sleep" in command for command in left.values()), left
    finally:
        server.kill()
    for pid in left:
        wait_for(lambda one=pid: not is_running(one), 60, f"the end of process {pid}")


def test_a_pool_that_the_model_does_not_have_is_refused(program, model):
    answer = run_program(program, "serve", "-m", model, "--host-allocator", "draft=shm",
                         "--hicache-storage-backend", "none")
    assert answer.returncode != 0
    assert "--host-allocator draft=shm: the model has no pool of that name" in answer.stderr


def test_a_store_that_comes_later_is_attached_while_serving(program, model, python):
    with StoreUp(program, python, *SEGMENT, "--embedded") as first:
        variables = first.wait_ready().variables()
    # Nobody is there any more; later a second store takes the same port.
    server = serve(program, model, python, variables)
    try:
        state = storage_of(server)
        assert (state["status"], state["registration"][0]["verdict"]) == ("waiting", "client_down")
        assert text_of(server.chat(long_prompt("nobody")))
        port = variables["MOONCAKE_MASTER"].rpartition(":")[2]
        with StoreUp(program, python, *SEGMENT, "--embedded", "--port", port) as second:
            second.wait_ready()
            wait_for(lambda: storage_of(server)["status"] == "on", 60, "storage")
            assert cached_of(ask_past_device_and_host(server, "later"))["storage"] > 0
    finally:
        assert server.stop() == 0
