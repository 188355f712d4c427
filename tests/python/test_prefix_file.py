"""hitide export and import: a prefix as one file, from one store to another."""

import json
import os

import pytest

from conftest import cached_of, long_prompt, run_program, storage_arguments, text_of

DONE, FAILED, USAGE, UNAVAILABLE, NOT_FOUND, DAMAGED = 0, 1, 2, 3, 4, 5
SMALL = ["--context-length", "2048", "--threads", "1", "--log-level", "warning"]


def one_line(result, code):
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith(("hitide export: ", "hitide import: ")), result.stderr
    return line


def json_of(result):
    assert result.returncode == DONE, (result.returncode, result.stdout, result.stderr)
    return json.loads(result.stdout)


CHAT = [{"role": "user", "content": long_prompt("bridges")}]


@pytest.fixture(scope="module")
def warmed(program, model, tmp_path_factory):
    """A store with a chat and, under a salt, the same text; and the file of the chat."""
    folder = tmp_path_factory.mktemp("warmed")
    (folder / "chat.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    (folder / "all.jsonl").write_text(
        json.dumps({"messages": CHAT}) + "\n" +
        json.dumps({"prompt": long_prompt("lamps"), "cache_salt": "a"}) + "\n")
    warm = run_program(program, "warm", folder / "all.jsonl", "--model-path", model, *SMALL,
                       "--hicache-size", "300MB", *storage_arguments(folder / "store"), timeout=180)
    assert warm.returncode == DONE, warm.stderr
    out = json_of(run_program(program, "export", folder / "chat.jsonl", "-o", folder / "chat.htp",
                              "--model-path", model, *SMALL, "--directory", folder / "store",
                              "--json", timeout=180))
    assert out["pages"] == out["prompt_pages"] == out["objects"] > 8
    assert out["tokens"] == out["pages"] * 32 <= out["prompt_tokens"]
    assert out["file_bytes"] == os.path.getsize(folder / "chat.htp")
    return folder, out


def test_a_server_serves_what_was_imported_with_the_same_text(program, start, reference, warmed,
                                                              tmp_path):
    folder, exported = warmed
    target = tmp_path / "other"
    first = json_of(run_program(program, "import", folder / "chat.htp", target, "--json"))
    assert first["pages"] == first["objects_written"] == exported["pages"]
    assert first["objects_present"] == 0
    for field in ("namespace", "last_page", "tokens", "file_bytes"):
        assert first[field] == exported[field]
    again = json_of(run_program(program, "import", folder / "chat.htp", target, "--json"))
    assert again["objects_written"] == 0 and again["objects_present"] == first["pages"]
    stored = json_of(run_program(program, "inspect", target, "--json"))["stores"][0]
    assert stored["pages"] == first["pages"]
    assert stored["namespaces"][0]["name"] == first["namespace"]
    assert json_of(run_program(program, "verify", target, "--json"))["sound"]

    server = start(*storage_arguments(target))
    answer = server.chat(CHAT, tokens=24)
    assert cached_of(answer)["storage"] == first["tokens"]
    assert text_of(answer) == text_of(reference.chat(CHAT, tokens=24))
    refused = one_line(run_program(program, "import", folder / "chat.htp", target), UNAVAILABLE)
    assert str(target) in refused


def test_while_a_server_has_the_store_open(program, model, start, tmp_path):
    store = storage_arguments(tmp_path / "store")
    server = start(*store)
    server.chat(CHAT, tokens=1)
    server.wait_stored(10)
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": CHAT}))
    out = json_of(run_program(program, "export", tmp_path / "chat.jsonl", "-o", tmp_path / "f",
                              "--model-path", model, *SMALL, *store[2:], "--json", timeout=180))
    assert out["pages"] >= 10
    assert cached_of(server.chat(CHAT, tokens=1))["device"] > 0


def test_by_tokens_and_with_a_salt(program, model, warmed, tmp_path):
    folder, _ = warmed
    (tmp_path / "lamps.txt").write_text(long_prompt("lamps"))
    ours = ["--model-path", model, *SMALL, "--directory", folder / "store"]
    salted = json_of(run_program(program, "export", tmp_path / "lamps.txt", "-o", tmp_path / "f",
                                 *ours, "--cache-salt", "a", "--json", timeout=180))
    assert salted["pages"] > 8
    line = one_line(run_program(program, "export", tmp_path / "lamps.txt", "-o", tmp_path / "g",
                                *ours, timeout=180), NOT_FOUND)
    assert str(folder / "store") in line and salted["namespace"] in line
    assert not (tmp_path / "g").exists()
    (tmp_path / "ids.json").write_text(json.dumps(list(range(64))))
    keys = run_program(program, "keys", "--tokens-file", tmp_path / "ids.json").stdout.split()
    line = one_line(run_program(program, "export", "--tokens-file", tmp_path / "ids.json", "-o",
                                tmp_path / "g", *ours, timeout=180), NOT_FOUND)
    assert keys[0] in line


def test_another_model_is_refused_with_both_namespaces(program, model, warmed, tmp_path):
    folder, exported = warmed
    target = tmp_path / "other"
    line = one_line(run_program(program, "import", folder / "chat.htp", target, "--model-path",
                                model, *SMALL, "--page-size", "16", timeout=180), USAGE)
    assert exported["namespace"] in line and "pool kv page_size: 32 in the file, 16 here" in line
    assert not target.exists()
    done = json_of(run_program(program, "import", folder / "chat.htp", target, "--model-path",
                               model, *SMALL, "--json", timeout=180))
    assert done["objects_written"] == exported["objects"]


def test_a_store_of_another_model_takes_it_only_when_it_is_told(program, model, warmed, tmp_path):
    folder, exported = warmed
    target = tmp_path / "f16"
    (tmp_path / "prompt.txt").write_text(long_prompt("lamps", 4))
    warm = run_program(program, "warm", tmp_path / "prompt.txt", "--model-path", model, *SMALL,
                       "--kv-cache-dtype", "f16", "--hicache-size", "300MB",
                       *storage_arguments(target), timeout=180)
    assert warm.returncode == DONE, warm.stderr
    theirs = json_of(run_program(program, "inspect", target, "--json"))["stores"][0]["namespaces"]
    line = one_line(run_program(program, "import", folder / "chat.htp", target), USAGE)
    assert exported["namespace"] in line and theirs[0]["name"] in line and "--namespace" in line
    done = json_of(run_program(program, "import", folder / "chat.htp", target, "--namespace",
                               exported["namespace"], "--json"))
    assert done["objects_written"] == exported["objects"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "longer"])
def test_a_damaged_file_imports_nothing(program, warmed, tmp_path, damage):
    folder, _ = warmed
    content = bytearray((folder / "chat.htp").read_bytes())
    if damage == "cut":
        del content[-1000:]
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    else:
        content += b"more"
    path = tmp_path / "damaged"
    path.write_bytes(content)
    line = one_line(run_program(program, "import", path, tmp_path / "store"), DAMAGED)
    assert str(path) in line and "export it again" in line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("arguments, code, parts", [
    (["export"], USAGE, ["--output"]),
    (["export", "-o", "f"], USAGE, ["PROMPT", "--tokens-file"]),
    (["export", "PROMPT", "-o", "f"], USAGE, ["--model-path"]),
    (["export", "/none.txt", "-o", "f", "--model-path", "m"], USAGE, ["/none.txt", "No such"]),
    (["export", "PROMPT", "--tokens-file", "t", "-o", "f"], USAGE, ["--tokens-file"]),
    (["export", "--tokens-file", "/none", "-o", "f"], USAGE, ["--tokens-file", "/none"]),
    (["export", "--tokens-file", "PROMPT", "-o", "f"], USAGE, ["--tokens-file", "prompt.txt"]),
    (["export", "PROMPT", "-o", "f", "--format", "yaml"], USAGE, ["--format", "yaml"]),
    (["export", "PROMPT", "-o", "f", "--format", "lines", "--model-path", "m"], USAGE,
     ["2 prompts"]),
    (["export", "PROMPT", "-o", "f", "--model-path", "/none.gguf"], USAGE, ["/none.gguf"]),
    (["export", "PROMPT", "-o", "f", "--model-path", "m", "--page-size", "-1"], USAGE,
     ["--page-size", "'-1'"]),
    (["import"], USAGE, ["file"]),
    (["import", "/none.htp"], NOT_FOUND, ["/none.htp", "No such"]),
    (["import", "FOLDER"], USAGE, ["no plain file"]),
    (["import", "/dev/zero"], USAGE, ["/dev/zero", "no plain file"]),
    (["import", "PROMPT"], USAGE, ["prompt.txt", "hitide export"]),
    (["import", "PROMPT", "--namespace", "xyz"], USAGE, ["--namespace", "64"]),
])
def test_wrong_usage(program, tmp_path, arguments, code, parts):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("one\ntwo\n")
    names = {"PROMPT": prompt, "FOLDER": tmp_path, "f": tmp_path / "f"}
    line = one_line(run_program(program, *[names.get(a, a) for a in arguments]), code)
    for part in parts:
        assert part in line
    assert not (tmp_path / "f").exists()


def test_outputs_that_take_nothing(program, model, warmed, tmp_path):
    folder, _ = warmed
    ours = ["export", folder / "chat.jsonl", "--model-path", model, *SMALL, "--directory",
            folder / "store", "-o"]
    assert "No space left" in one_line(run_program(program, *ours, "/dev/full", timeout=180),
                                       FAILED)
    assert "directory" in one_line(run_program(program, *ours, tmp_path, timeout=180), UNAVAILABLE)
    assert not os.listdir(tmp_path)


def test_options_of_a_model_need_one(program, warmed, tmp_path):
    folder, _ = warmed
    line = one_line(run_program(program, "import", folder / "chat.htp", tmp_path / "s",
                                "--page-size", "32"), USAGE)
    assert "--page-size" in line and "--model-path" in line


def test_a_store_that_is_too_small_says_so(program, warmed, tmp_path):
    folder, _ = warmed
    config = json.dumps({"path": str(tmp_path / "s"), "max_size": "2MB"})
    line = one_line(run_program(program, "import", folder / "chat.htp",
                                "--hicache-storage-backend-extra-config", config), FAILED)
    assert "max_size" in line
    answer = json.loads(run_program(program, "inspect", str(tmp_path / "s"), "--json").stdout)
    (held,) = answer["stores"]
    assert held["objects"] == held["dead_bytes"] == 0, "nothing was given up or begun for it"
