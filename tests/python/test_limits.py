"""Limits and keys of the server: what is beyond them is refused with the right status, costs nobody
else anything, and leaves nothing behind."""

import concurrent.futures
import socket

import httpx

from conftest import run_program, wait_for

CHAT = "/v1/chat/completions"
USAGE = 2


def body(tokens=4, **fields):
    return {"messages": [{"role": "user", "content": "Say a word."}], "max_tokens": tokens,
            "temperature": 0, **fields}


def answers(server, status):
    name = f'hitide_http_requests_total{{route="{CHAT}",status="{status}"}}'
    page = server.http.get("/metrics").text
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
               if line.startswith(name + " "))


def test_what_is_too_large_is_refused_and_the_server_goes_on(start):
    server = start("--max-body-bytes", "4096", "--max-header-bytes", "2048", "--max-connections",
                   "8")
    assert server.http.post(CHAT, json=body()).status_code == 200
    large = server.http.post(CHAT, json=body(user="x" * 5000))
    assert large.status_code == 413 and "4096" in large.json()["error"]["message"]
    heads = server.http.post(CHAT, json=body(), headers={"X-Large": "x" * 3000})
    assert heads.status_code == 431 and "2048" in heads.json()["error"]["message"]
    host, port = server.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(20)]
    try:
        assert server.http.post(CHAT, json=body()).status_code == 200, "idle ones make room"
    finally:
        for connection in idle:
            connection.close()
    wait_for(lambda: server.metric("hitide_requests_in_flight") == 0, 30, "nothing in flight")


def test_beyond_the_queue_429_says_when_to_come_back_and_nothing_is_lost(start):
    server = start("--max-running-requests", "1", "--max-queued-requests", "1")
    def ask(_):
        return httpx.post(server.url + CHAT, json=body(tokens=40, ignore_eos=True), timeout=120)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(ask, range(12)))
    codes = [reply.status_code for reply in replies]
    assert set(codes) == {200, 429}, codes
    for reply in replies:
        if reply.status_code == 429:
            assert int(reply.headers["Retry-After"]) >= 1
            assert reply.json()["error"]["code"] == "server_busy"
        else:
            assert reply.json()["usage"]["completion_tokens"] == 40
    assert answers(server, 200) == codes.count(200)
    page = server.http.get("/metrics").text
    refused = sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                  if line.startswith("hitide_http_requests_total{") and 'status="429"' in line)
    assert refused == codes.count(429)
    wait_for(lambda: server.metric("hitide_requests_in_flight") == 0, 30, "nothing in flight")
    # Three answers are more than one that is computed and one that waits, whoever else is there.
    assert server.http.post(CHAT, json=body(n=3)).status_code == 400
    assert server.http.post(CHAT, json=body(n=2)).status_code == 200


def test_keys(start):
    server = start("--api-key", "user", "--admin-api-key", "admin")
    def status(method, path, key=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return server.http.request(method, path, headers=headers).status_code
    assert status("GET", "/health") == status("GET", "/metrics") == 200
    for key, models, flush in ((None, 401, 401), ("wrong", 401, 401), ("user", 200, 401),
                               ("admin", 200, 200), ("useradmin", 401, 401)):
        assert status("GET", "/v1/models", key) == models, key
        assert status("POST", "/flush_cache", key) == flush, key


def test_without_a_key_only_this_machine_changes_state(start):
    server = start("--host", "0.0.0.0")
    assert server.http.post("/flush_cache").status_code == 403
    assert server.http.get("/v1/models").status_code == 200


def test_limits_that_cannot_be_are_refused(program):
    for arguments in (["--max-body-bytes", "5"], ["--max-header-bytes", "0"],
                      ["--max-header-bytes", "2MiB"], ["--max-connections", "0"],
                      ["--max-queued-requests", "-1"]):
        result = run_program(program, "serve", "-m", "model.gguf", *arguments)
        assert result.returncode == USAGE
        assert arguments[0] + ": '" + arguments[1] + "'" in result.stderr
