"""hitide warm: prompts are in the store before they are asked for."""

import json
import subprocess

import pytest

from conftest import cached_of, long_prompt, run_program, storage_arguments

DONE, FAILED, USAGE, UNAVAILABLE = 0, 1, 2, 3
SMALL = ["--context-length", "2048", "--hicache-size", "300MB"]


def one_line(result, code):
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("hitide warm: "), result.stderr
    return line


def test_by_its_own_engine_for_a_server_that_starts_later(program, model, start, tmp_path):
    chat = [{"role": "user", "content": long_prompt("bridges")}]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"messages": chat}) + "\n\n" + json.dumps(long_prompt("lamps")) +
                    "\n" + json.dumps({"prompt": long_prompt("lamps"), "cache_salt": "a"}) + "\n")
    store = storage_arguments(tmp_path / "store")
    command = ["warm", path, "--model-path", model, "--threads", "1", *SMALL, *store, "--json"]
    result = run_program(program, *command, timeout=180)
    assert result.returncode == DONE, result.stderr
    out = json.loads(result.stdout)
    assert out["prompts"] == 3 and out["failed"] == 0
    assert out["cached_tokens"] == 0, "another salt shares nothing"
    pages = out["stored_pages"]
    assert pages >= out["prompt_tokens"] // 32 - 3
    stored = json.loads(run_program(program, "inspect", tmp_path / "store", "--json").stdout)
    assert stored["stores"][0]["pages"] == pages

    again = json.loads(run_program(program, *command, timeout=180).stdout)
    assert again["stored_pages"] == 0
    assert again["cached_tokens"] > again["prompt_tokens"] * 3 // 4

    server = start(*store)
    assert cached_of(server.chat(chat, tokens=1))["storage"] > 200


def test_by_a_server_that_runs(program, server, tmp_path):
    path = tmp_path / "manual.txt"
    path.write_text(long_prompt("elevators"))
    before = server.metric('hitide_backed_up_pages_total{tier="storage"}')
    out = json.loads(run_program(program, "warm", path, "--url", server.url, "--json").stdout)
    assert out["prompts"] == 1 and out["prompt_tokens"] > 200 and out["stored_pages"] is None
    server.wait_stored(before + out["prompt_tokens"] // 32 - 1)
    again = run_program(program, "warm", path, "--url", server.url + "/")
    assert again.returncode == DONE and "cached already" in again.stdout
    lines = subprocess.run([program, "warm", "-", "--format", "lines", "--url", server.url,
                            "--json"],
                           input="one two three\n\nfour five six\n", capture_output=True, text=True,
                           timeout=60)
    assert json.loads(lines.stdout)["prompts"] == 2


def test_a_prompt_that_the_server_refuses_is_named_and_the_others_go_on(program, server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(long_prompt("x") * 40) + "\n" + json.dumps("a short one") + "\n")
    result = run_program(program, "warm", path, "--url", server.url, "--json")
    assert result.returncode == FAILED
    assert "line 1" in result.stderr and "400" in result.stderr
    out = json.loads(result.stdout)
    assert out["prompts"] == 2 and out["failed"] == 1 and out["prompt_tokens"] > 0


@pytest.mark.parametrize("content, part", [
    ("", "no prompt"), ("\n \n", "no prompt"), ("{", "line 1"), ("\n3\n", "line 2"),
    ("{}", "prompt"),
    ('{"prompt": "x", "messages": []}', "one of"), ('{"prompt": 3}', "'prompt'"), ('""', "empty"),
    ('{"messages": [{"role": "user"}]}', "'content'"), ('{"messages": 1}', "'messages'"),
    ('{"prompt": "x", "cache_salt": 1}', "'cache_salt'"),
])
def test_prompts_that_are_none(program, tmp_path, content, part):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    line = one_line(run_program(program, "warm", path, "--url", "http://127.0.0.1:1"), USAGE)
    assert str(path) in line and part in line


@pytest.mark.parametrize("arguments, code, parts", [
    ([], USAGE, ["--url", "--model-path"]),
    (["--url", "nonsense"], USAGE, ["--url", "nonsense"]),
    (["--url", "http://127.0.0.1:1"], UNAVAILABLE, ["http://127.0.0.1:1"]),
    (["--url", "http://127.0.0.1:1", "--page-size", "32"], USAGE, ["--page-size"]),
    (["--api-key", "x", "--model-path", "m"], USAGE, ["--api-key", "--url"]),
    (["--model-path", "m.gguf", "--hicache-storage-backend", "none"], USAGE, ["none", "file"]),
    (["--model-path", "m.gguf", "--page-size", "0"], USAGE, ["--page-size", "1..1024"]),
    (["--model-path", "/none.gguf"], USAGE, ["/none.gguf", "No such file"]),
    (["--format", "yaml"], USAGE, ["--format", "yaml"]),
    (["--port", "1"], USAGE, ["--port"]),
])
def test_wrong_usage_and_nobody_there(program, tmp_path, arguments, code, parts):
    path = tmp_path / "prompt.txt"
    path.write_text("a prompt")
    line = one_line(run_program(program, "warm", path, *arguments), code)
    for part in parts:
        assert part in line


def test_a_store_in_use_is_refused_with_its_reason(program, model, start, tmp_path):
    store = storage_arguments(tmp_path / "store")
    start(*store)
    path = tmp_path / "prompt.txt"
    path.write_text("a prompt")
    line = one_line(run_program(program, "warm", path, "--model-path", model, *SMALL, *store),
                    UNAVAILABLE)
    assert str(tmp_path / "store") in line


def test_a_file_that_is_not_there(program):
    line = one_line(run_program(program, "warm", "/none.txt", "--url", "http://127.0.0.1:1"), USAGE)
    assert "/none.txt" in line and "No such file" in line
