"""What a server leaves behind when it goes, and what the next one makes of it."""

import os
import random
import resource
import shutil
import signal
import threading

import openai
import pytest

from conftest import cached_of, long_prompt, storage_arguments, text_of, wait_for

PAGE = 32


@pytest.fixture
def prompt():
    return long_prompt("archive", 7)


@pytest.fixture
def expected(reference, prompt):
    return text_of(reference.chat(prompt))


def fill(start, store, prompt, expected, *arguments, **keys):
    """A server that has stored the prompt's pages; and their number."""
    server = start(*storage_arguments(store, **keys), *arguments)
    answer = server.chat(prompt)
    assert text_of(answer) == expected
    pages = answer.usage.prompt_tokens // PAGE
    assert pages >= 5
    server.wait_stored(pages)
    return server, pages


def segment_files(store):
    found = [os.path.join(folder, name) for folder, _, names in os.walk(store) for name in names
             if name.endswith(".seg") and os.path.getsize(os.path.join(folder, name)) > 4096]
    assert found, f"no segments in {store}"
    return found


def test_a_limit_on_file_sizes_ends_no_server(start, tmp_path):
    server = start(*storage_arguments(tmp_path))
    limit = 1 << 20
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    for about in ("lantern", "harbour", "meadow", "quarry"):  # each more than the limit
        server.chat(long_prompt(about), tokens=2)
        server.wait_idle()
    assert server.process.poll() is None, server.log()
    assert server.http.get("/health").status_code == 200
    assert server.stop() == 0


def test_warm_after_sigkill(start, tmp_path, prompt, expected):
    server, pages = fill(start, tmp_path, prompt, expected)
    server.kill()
    again = start(*storage_arguments(tmp_path))
    answer = again.chat(prompt)
    assert text_of(answer) == expected
    tiers = cached_of(answer)
    assert tiers["storage"] >= (pages - 1) * PAGE
    assert tiers["storage_backend"] == "file"
    explained = again.http.get("/hitide/explain/" + answer.usage.hitide["explanation_id"]).json()
    assert "storage" in {span["tier"] for span in explained["spans"]}
    assert again.stop() == 0


def test_warm_after_sigterm_and_exit_code_0(start, tmp_path, prompt, expected):
    server, pages = fill(start, tmp_path, prompt, expected)
    assert server.stop() == 0
    assert not [line for line in server.warnings() if " E " in line]
    answer = start(*storage_arguments(tmp_path)).chat(prompt)
    assert text_of(answer) == expected
    assert cached_of(answer)["storage"] >= (pages - 1) * PAGE


def test_sigterm_in_the_middle_of_a_backup_drains_it(start, tmp_path, prompt, expected):
    server = start(*storage_arguments(tmp_path))
    answer = server.chat(prompt)
    assert server.stop() == 0
    assert text_of(answer) == expected
    again = start(*storage_arguments(tmp_path)).chat(prompt)
    assert text_of(again) == expected
    assert cached_of(again)["storage"] > 0, "the pages were written before the exit"


def test_sigkill_in_the_middle_of_a_backup_harms_nothing(start, tmp_path, prompt, expected):
    for _ in range(3):
        server = start(*storage_arguments(tmp_path))
        assert text_of(server.chat(prompt)) == expected
        server.kill()  # whatever has been stored by now
    answer = start(*storage_arguments(tmp_path)).chat(prompt)
    assert text_of(answer) == expected


def test_sigterm_ends_a_running_stream_clearly(start, tmp_path):
    server = start(*storage_arguments(tmp_path))
    with server.http.stream("POST", "/v1/chat/completions", json={
            "messages": [{"role": "user", "content": "Count to a thousand."}], "stream": True,
            "max_tokens": 1500, "ignore_eos": True}) as response:
        lines = response.iter_lines()
        next(lines)
        server.signal(signal.SIGTERM)
        rest = "\n".join(lines)
    assert "shutting down" in rest
    assert rest.rstrip().endswith("data: [DONE]")
    assert server.wait_end() == 0


def test_a_second_signal_exits_at_once(start, tmp_path):
    server = start(*storage_arguments(tmp_path))

    def ask():
        try:
            server.chat(long_prompt("mill", 40), tokens=1)
        except openai.OpenAIError:  # the server goes away under it
            return

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: server.metric("hitide_requests_in_flight") > 0, 30, "the request")
    server.signal(signal.SIGTERM)
    wait_for(lambda: any(line.startswith("stopping") for line in server.out), 30, "the stop")
    server.signal(signal.SIGINT)
    # 0: the first was faster.
    assert server.wait_end(30) in (0, 128 + signal.SIGINT)
    thread.join(30)


def test_bit_flips_become_misses(start, tmp_path, prompt, expected):
    server, _ = fill(start, tmp_path, prompt, expected)
    assert server.stop() == 0
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for path in segment_files(tmp_path):
        with open(path, "r+b") as file:
            # One bit in every 64 KiB: each page has several.
            for begin in range(65536, os.path.getsize(path) - 65536, 65536):
                place = begin + chance.randrange(65536)
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ (1 << chance.randrange(8))]))
    again = start(*storage_arguments(tmp_path))
    answer = again.chat(prompt)
    assert text_of(answer) == expected
    assert cached_of(answer)["storage"] == 0, "no damaged page is used"
    # It goes on, and what was damaged is stored again.
    again.wait_stored(1)
    assert text_of(again.chat(prompt)) == expected
    assert again.stop() == 0


def test_truncated_segments_lose_their_end_only(start, tmp_path, prompt, expected):
    server, pages = fill(start, tmp_path, prompt, expected)
    assert server.stop() == 0
    for path in segment_files(tmp_path):
        os.truncate(path, os.path.getsize(path) // 2)
    answer = start(*storage_arguments(tmp_path)).chat(prompt)
    assert text_of(answer) == expected
    assert cached_of(answer)["storage"] < pages * PAGE


def test_a_store_deleted_while_serving(start, tmp_path, prompt, expected):
    store = tmp_path / "store"
    server, _ = fill(start, store, prompt, expected)
    shutil.rmtree(store)
    server.http.post("/flush_cache")
    assert text_of(server.chat(prompt)) == expected
    other = long_prompt("quarry")
    assert text_of(server.chat(other)) == text_of(server.chat(other))
    assert server.http.get("/health").status_code == 200
    assert server.stop() == 0


def test_a_store_in_use_by_another_process(start, tmp_path, prompt, expected):
    first, _ = fill(start, tmp_path, prompt, expected)
    second = start(*storage_arguments(tmp_path))
    warnings = [line for line in second.warnings() if "stor" in line]
    assert len(warnings) == 1, second.log()
    assert str(tmp_path) in warnings[0]
    assert f"in use by process {first.process.pid}" in warnings[0]
    assert any("no storage" in line for line in second.out)
    assert text_of(second.chat(prompt)) == expected
    assert text_of(second.chat(prompt)) == expected
    assert text_of(first.chat(prompt)) == expected
    assert second.stop() == 0 and first.stop() == 0


def test_a_store_of_a_newer_format_is_left_alone(start, tmp_path, prompt, expected):
    server, _ = fill(start, tmp_path, prompt, expected)
    assert server.stop() == 0
    format_file = tmp_path / "FORMAT"
    format_file.write_text("hitide-file-store 999\n")
    before = {path: os.path.getsize(path) for path in segment_files(tmp_path)}
    again = start(*storage_arguments(tmp_path))
    warnings = [line for line in again.warnings() if "stor" in line]
    assert len(warnings) == 1 and str(tmp_path) in warnings[0], again.log()
    assert text_of(again.chat(prompt)) == expected
    assert again.stop() == 0
    assert {path: os.path.getsize(path) for path in segment_files(tmp_path)} == before
    assert format_file.read_text() == "hitide-file-store 999\n"


def test_a_store_that_cannot_be_written(start, tmp_path, prompt, expected):
    (tmp_path / "file").write_text("not a directory")
    store = tmp_path / "file" / "store"  # fails for every user, root included
    server = start(*storage_arguments(store))
    warnings = [line for line in server.warnings() if "stor" in line]
    assert len(warnings) == 1 and str(store) in warnings[0], server.log()
    assert any("no storage" in line for line in server.out)
    assert text_of(server.chat(prompt)) == expected
    assert cached_of(server.chat(prompt))["device"] > 0, "the other tiers go on"
    assert server.stop() == 0


def test_a_model_file_that_differs_by_one_byte_shares_nothing(start, model, tmp_path, prompt,
                                                              expected):
    store = tmp_path / "store"
    server, pages = fill(start, store, prompt, expected)
    assert server.stop() == 0
    other = tmp_path / "other.gguf"
    shutil.copyfile(model, other)
    with open(other, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    changed = start(*storage_arguments(store), model_path=str(other))
    assert cached_of(changed.chat(prompt))["storage"] == 0
    assert changed.stop() == 0
    answer = start(*storage_arguments(store)).chat(prompt)
    assert text_of(answer) == expected
    assert cached_of(answer)["storage"] >= (pages - 1) * PAGE, "both models live in one store"


def test_many_requests_and_signals_leave_no_process(start, tmp_path, prompt):
    server = start(*storage_arguments(tmp_path))

    def ask(number):
        try:
            server.chat(f"{prompt} {number}", tokens=200)
        except openai.OpenAIError:  # the server goes away under some of them
            return

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: server.metric("hitide_requests_in_flight") >= 4, 60, "requests in flight")
    assert server.stop() == 0
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
