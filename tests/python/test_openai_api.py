"""The official client against the real server: answers, streams, usage, explanations, errors."""

import concurrent.futures
import shutil
import socket
import subprocess

import openai
import pytest

from conftest import cached_of, long_prompt, storage_arguments, text_of, wait_for
from metrics_text import read_metrics

QUESTION = "What is the capital of France?"


def test_lists_its_model_and_takes_any_name(server):
    names = [entry.id for entry in server.client.models.list()]
    assert names == ["SmolLM2-135M-Instruct.Q4_1"]
    answer = server.client.chat.completions.create(
        model="gpt-none", messages=[{"role": "user", "content": QUESTION}], max_tokens=8)
    assert answer.model == "gpt-none"


def test_answers_a_question(server):
    answer = server.chat(QUESTION, tokens=16)
    assert "Paris" in text_of(answer)
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 16


def test_streams_what_it_would_answer_whole(server):
    whole = server.chat(QUESTION, tokens=16)
    pieces, usage, finish = [], None, None
    for chunk in server.chat(QUESTION, tokens=16, stream=True,
                             stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    assert "".join(pieces) == text_of(whole)
    assert len([piece for piece in pieces if piece]) > 1
    assert finish == "stop"
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_completes_text_and_tokens(server):
    whole = server.client.completions.create(model="any", prompt="The capital of France is",
                                             max_tokens=4, temperature=0)
    assert "Paris" in whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 4
    by_ids = server.client.completions.create(model="any", prompt=[504, 3575, 282, 4649, 314],
                                              max_tokens=4, temperature=0)
    assert by_ids.usage.prompt_tokens == 5
    pieces = [chunk.choices[0].text for chunk in server.client.completions.create(
        model="any", prompt="The capital of France is", max_tokens=4, temperature=0, stream=True)]
    assert "".join(pieces) == whole.choices[0].text


def test_a_next_turn_is_served_from_the_cache(server):
    messages = [{"role": "system", "content": long_prompt("harbour")},
                {"role": "user", "content": "Say hello."}]
    first = server.chat(messages, tokens=8)
    assert cached_of(first)["storage_backend"] == "file"
    messages += [{"role": "assistant", "content": text_of(first)},
                 {"role": "user", "content": "And goodbye."}]
    second = server.chat(messages, tokens=8)
    tiers = cached_of(second)
    assert tiers["device"] >= first.usage.prompt_tokens // 32 * 32 - 32
    assert second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens
    assert second.usage.hitide["saved_ms"] > 0


def test_texts_are_those_without_a_cache(server, reference):
    messages = [{"role": "system", "content": long_prompt("castle", 8)}]
    for question in ("Where does the castle stand?", "Who looks after it?", QUESTION):
        messages.append({"role": "user", "content": question})
        cached, bare = server.chat(messages, tokens=16), reference.chat(messages, tokens=16)
        assert text_of(cached) == text_of(bare)
        assert bare.usage.prompt_tokens_details.cached_tokens == 0
        messages.append({"role": "assistant", "content": text_of(bare)})
    assert cached.usage.prompt_tokens_details.cached_tokens > 150


def test_concurrent_requests_get_their_own_texts(server, reference):
    questions = [f"What is {n} plus {n}?" for n in range(2, 8)]
    expected = [text_of(reference.chat(question)) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(lambda question: text_of(server.chat(question)), questions))
    assert answers == expected


def test_explains_each_request(server):
    prompt = long_prompt("lighthouse", 5)
    server.chat(prompt, tokens=2)
    answer = server.chat(prompt, tokens=2)
    response = server.client.chat.completions.with_raw_response.create(
        model="any", messages=[{"role": "user", "content": prompt}], max_tokens=2)
    header = response.headers["X-HiTide-Explanation-Id"]
    for explanation_id in (answer.usage.hitide["explanation_id"], header):
        explained = server.http.get(f"/hitide/explain/{explanation_id}").json()
        assert explained["id"] == explanation_id
        assert explained["complete"]
        spans = sorted(explained["spans"] + explained["misses"], key=lambda span: span["begin"])
        assert spans[0]["begin"] == 0
        assert spans[-1]["end"] == explained["prompt_tokens"] == answer.usage.prompt_tokens
        for left, right in zip(spans, spans[1:]):
            assert left["end"] == right["begin"]
        assert all(span["meaning"] for span in explained["misses"])
        served = sum(span["end"] - span["begin"] for span in explained["spans"])
        assert served == sum(explained["served_tokens"].values())
        assert served == answer.usage.prompt_tokens_details.cached_tokens
    assert server.http.get("/hitide/explain/none").status_code == 404


def test_the_header_comes_with_a_stream_too(server):
    with server.http.stream("POST", "/v1/chat/completions", json={
            "messages": [{"role": "user", "content": QUESTION}], "stream": True,
            "max_tokens": 2}) as response:
        assert response.headers["X-HiTide-Explanation-Id"]
        assert response.headers["Content-Type"] == "text/event-stream"
        assert "data: [DONE]" in response.read().decode()


def test_salts_and_adapters_never_share(server, reference):
    prompt = long_prompt("library", 5)
    bare = text_of(reference.chat(prompt))
    assert text_of(server.chat(prompt)) == bare
    for extra in ({"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}):
        first = server.chat(prompt, extra_body=extra)
        assert first.usage.prompt_tokens_details.cached_tokens == 0, extra
        second = server.chat(prompt, extra_body=extra)
        assert second.usage.prompt_tokens_details.cached_tokens > 0, extra
        assert text_of(first) == text_of(second) == bare
    explained = server.http.get(
        "/hitide/explain/" + first.usage.hitide["explanation_id"]).json()
    assert "other_namespace" in {span["reason"] for span in explained["misses"]}


def test_stops_at_a_stop_string(server):
    answer = server.chat(QUESTION, tokens=16, stop=["Paris"])
    assert "Paris" not in text_of(answer)
    assert answer.choices[0].finish_reason == "stop"


def test_a_seed_makes_sampling_repeatable(server):
    def ask(seed):
        return text_of(server.client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Tell me a story."}],
            temperature=1.5, seed=seed, max_tokens=16))
    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize("fields, name", [
    ({"n": 0}, "n"), ({"max_tokens": 0}, "max_tokens"), ({"temperature": -1}, "temperature"),
    ({"logprobs": 3}, "logprobs"), ({"stop": [""]}, "stop"), ({"tools": [{}]}, "tools"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "messages"),
    ({"messages": []}, "messages"),
])
def test_refusals_name_the_field(server, fields, name):
    request = {"model": "any", "messages": [{"role": "user", "content": "hi"}], **fields}
    with pytest.raises(openai.BadRequestError) as refusal:
        server.client.chat.completions.create(**request)
    assert refusal.value.body["param"] == name
    assert name in refusal.value.body["message"]


def test_a_prompt_longer_than_the_context_is_refused(server):
    with pytest.raises(openai.BadRequestError) as refusal:
        server.chat("word " * 3000)
    assert refusal.value.code == "context_length_exceeded"
    assert "2048" in refusal.value.body["message"]
    assert "Paris" in text_of(server.chat(QUESTION, tokens=16))


def test_tokens_that_are_none_are_refused(server):
    with pytest.raises(openai.BadRequestError):
        server.client.completions.create(model="any", prompt=[1, 2, 999_999_999])


def test_broken_bodies_are_refused(server):
    for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"messages":[{"role":"user"}]}'):
        response = server.http.post("/v1/chat/completions", content=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"]
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    assert server.http.get("/health").status_code == 200


def test_texts_that_cannot_fit_are_refused_by_their_bytes(server):
    response = server.http.post("/v1/completions", json={"prompt": "a" * 1_000_000})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert "1000000 bytes" in error["message"]
    # Below that bound the tokens decide.
    response = server.http.post("/v1/completions", json={"prompt": " a" * 3000})
    assert "3000 tokens" in response.json()["error"]["message"]


def test_chats_with_nul_are_refused_and_prompts_are_not(server):
    response = server.http.post("/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "one\0two"}]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content"
    answer = server.http.post("/v1/completions", json={"prompt": "one\0two", "max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] >= 3


def test_a_client_that_leaves_ends_its_generation(server):
    name = 'hitide_engine_requests_total{reason="cancelled"}'
    before = server.metric(name)
    with server.http.stream("POST", "/v1/chat/completions", json={
            "messages": [{"role": "user", "content": "Count to a thousand."}], "stream": True,
            "max_tokens": 1500, "ignore_eos": True}) as response:
        next(response.iter_lines())
    wait_for(lambda: server.metric(name) > before, 30, "the generation's end")
    # In the middle of a prefill, where no text is sent that could fail.
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as gone:
        body = ('{"prompt": "%s", "max_tokens": 5}' % long_prompt("tower", 60)).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        gone.sendall(head % len(body) + body)
        wait_for(lambda: server.metric("hitide_requests_in_flight") > 0, 30, "the request")
    wait_for(lambda: server.metric(name) > before + 1, 30, "the prefill's end")
    wait_for(lambda: server.metric("hitide_requests_in_flight") == 0, 30, "nothing in flight")


def test_flush_forgets_device_and_host(server):
    prompt = long_prompt("orchard", 5)
    server.chat(prompt, tokens=2)
    server.wait_idle()  # pages that are being backed up stay
    assert server.http.post("/flush_cache").status_code == 200
    tiers = cached_of(server.chat(prompt, tokens=2))
    assert tiers["device"] == 0 and tiers["host"] == 0


def test_metrics_add_up_and_are_well_formed(server):
    text = server.http.get("/metrics").text
    page = read_metrics(text)
    def total(name):
        return sum(value for _, value in page[name])
    # Each prompt token comes from a tier, or was computed for a reason.
    parts = total("hitide_served_tokens_total") + total("hitide_missed_tokens_total")
    assert parts == total("hitide_prompt_tokens_total") > 0
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True,
                                 capture_output=True, timeout=60)
        # SGLang's names have a colon, which the tool advises against.
        advice = [line for line in (checked.stdout + checked.stderr).splitlines()
                  if "should not contain ':'" not in line]
        assert not advice and checked.returncode in (0, 3), advice


def test_sglangs_metrics_count_the_same(start, tmp_path):
    """Over one run: per request, in HiTide's names and in SGLang's."""
    server = start(*storage_arguments(tmp_path / "store"), "--served-model-name", "smol")
    prompts = [long_prompt(about, 5) for about in ("canal", "canal", "mill")]
    usages = [server.chat(prompt, tokens=6).usage for prompt in prompts]
    usages.append(server.client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": prompts[0]}], n=2, max_tokens=3).usage)
    def ended():
        page = read_metrics(server.http.get("/metrics").text)
        # A request that has been answered is running for as long as its step.
        done = page["sglang:num_requests_total"][0][1] == 5
        return page if done and page["sglang:num_running_reqs"][0][1] == 0 else None
    page = wait_for(ended, 30, "five requests")
    def value(name, **labels):
        found = [number for known, number in page[name] if labels.items() <= known.items()]
        assert found, (name, labels)
        return sum(found)
    name = {"model_name": "smol"}
    # The second choice of the last request has the prompt too.
    prompt_tokens = sum(usage.prompt_tokens for usage in usages) + usages[-1].prompt_tokens
    assert value("sglang:prompt_tokens_total", **name) == prompt_tokens
    assert value("hitide_prompt_tokens_total") == prompt_tokens
    assert value("hitide_served_tokens_total") + value("hitide_missed_tokens_total") == \
        prompt_tokens
    assert value("sglang:generation_tokens_total", **name) == \
        sum(usage.completion_tokens for usage in usages)
    for tier, source in (("device", "device"), ("host", "host"), ("storage", "storage_file")):
        assert value("sglang:cached_tokens_total", cache_source=source) == \
            value("hitide_served_tokens_total", tier=tier), tier
    assert value("sglang:cached_tokens_total", cache_source="total") == \
        value("hitide_served_tokens_total") > 0
    for histogram in ("time_to_first_token_seconds", "e2e_request_latency_seconds",
                      "queue_time_seconds"):
        assert value(f"sglang:{histogram}_count", **name) == 5
    assert value("sglang:num_running_reqs", **name) == value("sglang:num_queue_reqs", **name) == 0
    assert value("sglang:hicache_host_total_tokens", **name) > 0
    assert value("sglang:backuped_tokens_total", storage_backend="file", tp_rank="0") == \
        32 * value("hitide_backed_up_pages_total", tier="storage")
    assert value("sglang:hicache_backup_tokens_total", pool="kv") == \
        32 * value("hitide_backed_up_pages_total", tier="host")
