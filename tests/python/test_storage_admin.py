"""Storage that is attached, detached and cleared while a real server answers: by an operator's
calls, with requests beside them, and with wrong input."""

import json
import threading

import pytest

from conftest import cached_of, long_prompt, storage_arguments, text_of, wait_for

PATH = "/hicache/storage-backend"


@pytest.fixture
def served(start, tmp_path):
    return start("--enable-cache-report", *storage_arguments(tmp_path / "first"))


def put(server, backend, extra=None, **fields):
    body = {"hicache_storage_backend": backend, **fields}
    if extra is not None:
        body["hicache_storage_backend_extra_config_json"] = json.dumps(extra)
    return server.http.put(PATH, json=body)


def message_of(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["message"]


def objects(server):
    lines = server.http.get("/metrics").text.split("\n")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines
               if line.startswith("hitide_store_objects{"))


def stored(server, prompt):
    """Sends the prompt twice, so that what was computed before an attach is stored as well."""
    text = text_of(server.chat(prompt, tokens=4))
    server.chat(prompt, tokens=4)
    server.wait_idle()
    return text


def test_storage_moves_to_another_directory_and_is_cleared(served, tmp_path):
    prompt = long_prompt("lighthouse", 8)
    text = stored(served, prompt)
    first = objects(served)
    assert first > 0
    shown = served.http.get(PATH).json()
    assert shown["hicache_storage_backend"] == "file" and shown["status"] == "on"
    assert shown["hicache_write_policy"] == "write_through"

    elsewhere = {"path": str(tmp_path / "second"), "max_size": "1gb", "prefetch_threshold": 32}
    assert "detach it first" in message_of(put(served, "file", elsewhere))
    answer = served.http.delete(PATH)
    assert answer.status_code == 200 and answer.json()["success"] is True, answer.text
    assert served.http.get(PATH).json()["hicache_storage_backend"] is None
    assert "no storage" in message_of(served.http.delete(PATH))
    assert "no storage" in message_of(served.http.post(PATH + "/clear"))
    assert text_of(served.chat(prompt, tokens=4)) == text

    answer = put(served, "file", elsewhere, hicache_storage_prefetch_policy="wait_complete")
    assert answer.status_code == 200, answer.text
    assert served.http.get(PATH).json()["hicache_storage_prefetch_policy"] == "wait_complete"
    assert stored(served, prompt) == text
    wait_for(lambda: objects(served) >= first, 30, "everything stored anew")
    assert served.http.post("/flush_cache").status_code == 200
    again = served.chat(prompt, tokens=4)
    assert cached_of(again)["storage"] > 0 and cached_of(again)["storage_backend"] == "file"
    assert text_of(again) == text

    served.wait_idle()
    cleared = served.http.post(PATH + "/clear").json()
    assert cleared["success"] is True and cleared["removed_objects"] >= first
    assert objects(served) == 0
    assert served.http.post("/flush_cache").status_code == 200
    assert cached_of(served.chat(prompt, tokens=4))["storage"] == 0

    served.wait_idle()
    assert served.http.delete(PATH).status_code == 200
    assert put(served, "file", {"path": str(tmp_path / "first")}).status_code == 200
    served.http.post("/flush_cache")
    again = served.chat(prompt, tokens=4)
    assert cached_of(again)["storage"] > 0, "what the first store held is still there"
    assert text_of(again) == text


def test_requests_beside_every_change_are_answered_alike(served, tmp_path):
    prompt = long_prompt("observatory", 6)
    text = text_of(served.chat(prompt, tokens=6))
    stop, wrong = threading.Event(), []

    def ask():
        while not stop.is_set():
            answer = text_of(served.chat(prompt, tokens=6))
            if answer != text:
                wrong.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(4):
            assert served.http.delete(PATH).status_code == 200
            assert put(served, "file", {"path": str(tmp_path / f"s{turn % 2}")}).status_code == 200
            assert served.http.post("/flush_cache").status_code == 200
            assert served.http.post(PATH + "/clear").status_code == 200
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert served.metric("hitide_bypass_trips_total") == 0


def test_wrong_input_changes_nothing_and_is_named(served):
    assert "JSON object" in message_of(served.http.put(PATH, content=b"{"))
    assert "must be given" in message_of(served.http.put(PATH, json={}))
    assert "floppy" in message_of(put(served, "floppy"))
    assert "path" in message_of(put(served, "file", path="/x"))
    assert "no such" in message_of(put(served, "file", extra_field="x")).lower()
    assert "max_size" in message_of(put(served, "file", {"max_size": "many"}))
    assert "hicache_write_policy" in message_of(put(served, "file", hicache_write_policy="never"))
    assert served.http.get(PATH).json()["status"] == "on"
    assert served.http.post(PATH).status_code == 405


def test_a_directory_in_use_is_refused_with_its_reason(served, start, tmp_path):
    other = start(*storage_arguments(tmp_path / "other"))
    assert other.http.delete(PATH).status_code == 200
    why = message_of(put(other, "file", {"path": str(tmp_path / "first")}))
    assert str(tmp_path / "first") in why and "in use" in why
    assert other.http.get(PATH).json()["status"] == "off"


def test_without_a_key_others_cannot_change_storage(start, tmp_path):
    server = start("--host", "0.0.0.0", *storage_arguments(tmp_path / "store"))
    for answer in (put(server, "file"), server.http.delete(PATH),
                   server.http.post(PATH + "/clear")):
        assert answer.status_code == 403 and "--admin-api-key" in answer.text
    assert server.http.get(PATH).json()["status"] == "on"
