"""What a client may ask of an answer: penalties, biases, likelihoods, several choices, where to
stop, and texts that follow a schema or a grammar; over the real model."""

import json
import math
import re

import openai
import pytest

from conftest import cached_of, long_prompt, text_of, wait_for

QUESTION = "What is the capital of France?"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "boss": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 10}]},
    },
    "required": ["name", "age", "boss"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {
        "type": "object",
        "properties": {"value": {"type": "integer"},
                       "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["value", "next"]}},
}


def complete(server, prompt, **fields):
    return server.client.completions.create(model="any", prompt=prompt, temperature=0, **fields)


def chat_json(server, response_format, question="Tell me about a person.", tokens=200, **fields):
    answer = server.chat(question, tokens=tokens, response_format=response_format, **fields)
    assert answer.choices[0].finish_reason == "stop", text_of(answer)
    return json.loads(text_of(answer))


def schema(what):
    return {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": what}}


def distinct(text):
    words = text.lower().split()
    return len(set(words)) / len(words)


def test_defaults_say_what_no_field_says(server, reference):
    prompt = "Once upon a time"
    bare = complete(server, prompt, max_tokens=24).choices[0].text
    spelled = complete(server, prompt, max_tokens=24, presence_penalty=0, frequency_penalty=0, n=1,
                       logit_bias={}, extra_body={"repetition_penalty": 1, "min_tokens": 0,
                                                  "stop_token_ids": [], "no_stop_trim": False})
    assert spelled.choices[0].text == bare
    assert complete(server, prompt, max_tokens=24, logprobs=5).choices[0].text == bare
    assert complete(reference, prompt, max_tokens=24).choices[0].text == bare


@pytest.mark.parametrize("fields", [
    {"presence_penalty": 2}, {"frequency_penalty": 2}, {"extra_body": {"repetition_penalty": 1.5}}])
def test_penalties_make_a_model_repeat_itself_less(server, fields):
    prompt = "The cat sat on the mat. The cat sat on the mat. The cat"
    bare = complete(server, prompt, max_tokens=48).choices[0].text
    other = complete(server, prompt, max_tokens=48, **fields).choices[0].text
    assert distinct(bare) < 0.7
    assert distinct(other) > distinct(bare)


def test_a_bias_forbids_and_forces_tokens(server):
    first = complete(server, "The capital of France is", max_tokens=1, logprobs=2)
    chosen, second = sorted(first.choices[0].logprobs.top_logprobs[0].items(),
                            key=lambda item: -item[1])[:2]
    by_chat = server.chat(QUESTION, tokens=1, logprobs=True, top_logprobs=1)
    assert by_chat.choices[0].logprobs.content[0].token == text_of(by_chat)
    # The ids of a text come from no address here; so a token is looked for by what a bias does.
    ids = [i for i in range(200, 320) if complete(
        server, "The capital of France is", max_tokens=1, logit_bias={str(i): 100}
    ).choices[0].text != first.choices[0].text]
    assert len(ids) > 100
    assert chosen[1] > second[1]


def test_likelihoods_are_those_of_the_text(server, reference):
    prompt = "The capital of France is"
    answer = complete(server, prompt, max_tokens=8, logprobs=4)
    likely = answer.choices[0].logprobs
    assert "".join(likely.tokens) == answer.choices[0].text
    assert len(likely.tokens) == len(likely.token_logprobs) == len(likely.top_logprobs) == 8
    assert likely.text_offset == [sum(map(len, likely.tokens[:i])) for i in range(8)]
    for token, logprob, top in zip(likely.tokens, likely.token_logprobs, likely.top_logprobs):
        assert len(top) == 4 and top[token] == logprob == max(top.values()) <= 0, "greedy"
        assert sum(math.exp(value) for value in top.values()) <= 1.0001
    bare = complete(reference, prompt, max_tokens=8, logprobs=4).choices[0].logprobs
    assert bare == likely, "with a cache and without"
    # A probability among all tokens: what a bias of 100 leaves over is the rest of one.
    chat = server.chat(QUESTION, tokens=6, logprobs=True, top_logprobs=3).choices[0]
    content = chat.logprobs.content
    assert "".join(entry.token for entry in content) == chat.message.content
    assert all(bytes(entry.bytes).decode() == entry.token for entry in content)
    assert all(len(entry.top_logprobs) == 3 for entry in content)


def test_streams_carry_the_same_likelihoods(server):
    whole = server.chat(QUESTION, tokens=8, logprobs=True, top_logprobs=2).choices[0]
    tokens, texts = [], []
    for chunk in server.chat(QUESTION, tokens=8, logprobs=True, top_logprobs=2, stream=True):
        for choice in chunk.choices:
            texts.append(choice.delta.content or "")
            if choice.logprobs:
                tokens += choice.logprobs.content
    assert "".join(texts) == whole.message.content
    assert tokens == whole.logprobs.content
    prompt = "The capital of France is"
    whole = complete(server, prompt, max_tokens=6, logprobs=1).choices[0]
    offsets = [offset for chunk in complete(server, prompt, max_tokens=6, logprobs=1, stream=True)
               if chunk.choices[0].logprobs for offset in chunk.choices[0].logprobs.text_offset]
    assert offsets == whole.logprobs.text_offset


def test_several_choices_share_their_prompt(server):
    prompt = long_prompt("fountain", 6)
    def ask(**fields):
        return server.client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": prompt}], temperature=1.3, seed=11,
            max_tokens=12, **fields)
    before = server.metric("hitide_engine_prefill_tokens_total")
    answer = ask(n=4)
    computed = server.metric("hitide_engine_prefill_tokens_total") - before
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    assert [choice.message.content for choice in ask(n=4).choices] == texts, "a seed repeats them"
    assert ask().choices[0].message.content == texts[0]
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 4 <= usage.completion_tokens <= 48
    # The prompt is computed once; the others take its whole pages from the device.
    assert computed < usage.prompt_tokens + 3 * 33
    ids = usage.hitide["explanation_ids"]
    assert len(set(ids)) == 4
    explained = server.http.get(f"/hitide/explain/{ids[3]}").json()
    assert explained["served_tokens"]["device"] >= usage.prompt_tokens // 32 * 32 - 32


def test_streams_of_several_choices(server):
    fields = {"temperature": 1.2, "seed": 3, "max_tokens": 10, "n": 3}
    def ask(**more):
        return server.client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Say something."}], **fields, **more)
    texts = {choice.index: choice.message.content for choice in ask().choices}
    streamed, ends = {0: "", 1: "", 2: ""}, []
    for chunk in ask(stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends.append(choice.index)
    assert streamed == texts
    assert sorted(ends) == [0, 1, 2]


def test_several_prompts_are_answered_in_order(server):
    prompts = ["The capital of France is", "The capital of Spain is", "The capital of Italy is"]
    alone = [complete(server, prompt, max_tokens=4).choices[0].text for prompt in prompts]
    answer = complete(server, prompts, max_tokens=4)
    assert [choice.text for choice in answer.choices] == alone
    assert answer.usage.completion_tokens == 12
    echoed = complete(server, prompts[:1], max_tokens=4, echo=True)
    assert echoed.choices[0].text == prompts[0] + alone[0]


def test_stops_at_tokens_and_keeps_a_stop_string_that_is_wanted(server):
    whole = server.chat(QUESTION, tokens=16)
    assert whole.choices[0].finish_reason == "stop"
    kept = server.chat(QUESTION, tokens=16, stop=["Paris"], extra_body={"no_stop_trim": True})
    assert text_of(kept) == text_of(whole)[:text_of(whole).index("Paris") + 5]
    one = server.client.completions.create(model="any", prompt=[504, 3575, 282, 4649, 314],
                                           max_tokens=4, temperature=0)
    assert one.choices[0].finish_reason == "length"
    # Every token but one: the first answer token is among them.
    half = list(range(0, 128))
    stopped = complete(server, "Numbers: 1, 2, 3, 4,", max_tokens=8,
                       extra_body={"stop_token_ids": half})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 8


def test_an_answer_may_have_a_least_length(server):
    short = server.chat(QUESTION, tokens=40)
    assert short.choices[0].finish_reason == "stop"
    least = short.usage.completion_tokens + 5
    longer = server.chat(QUESTION, tokens=40, extra_body={"min_tokens": least})
    assert longer.usage.completion_tokens >= least
    assert text_of(longer).startswith(text_of(short))


def test_any_json_object(server):
    assert isinstance(chat_json(server, {"type": "json_object"}, "Give me a small JSON object."),
                      dict)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_schemas_are_followed(server, temperature):
    for seed in range(1 if temperature == 0 else 4):
        answer = server.client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Tell me about a person."}],
            temperature=temperature, seed=seed, max_tokens=300, response_format=schema(PERSON))
        assert answer.choices[0].finish_reason == "stop", text_of(answer)
        person = json.loads(text_of(answer))
        assert list(person)[:2] == ["name", "age"], "in the schema's order"
        assert isinstance(person["name"], str) and len(person["name"]) <= 20
        assert isinstance(person["age"], int)
        assert set(person.get("tags", [])) <= {"red", "green"} and len(person.get("tags", [])) <= 3
        assert person["boss"] is None or len(person["boss"]) <= 10
        assert set(person) <= set(PERSON["properties"])


def test_schemas_of_every_kind_are_followed(server):
    kinds = [
        ({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4},
         lambda it: 2 <= len(it) <= 4 and all(isinstance(x, (int, float)) for x in it)),
        ({"enum": ["a\"b", 7, None]}, lambda it: it in ("a\"b", 7, None)),
        ({"const": {"x": [1, "\\"]}}, lambda it: it == {"x": [1, "\\"]}),
        ({"type": ["boolean", "null"]}, lambda it: it in (True, False, None)),
        ({"type": "array", "prefixItems": [{"type": "string", "maxLength": 5}, {"const": 1}]},
         lambda it: isinstance(it[0], str) and it[1:] == [1]),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
         lambda it: set(it) <= {"a", "b"}),
        ({"type": "object", "additionalProperties": False}, lambda it: it == {}),
    ]
    for what, holds in kinds:
        it = chat_json(server, schema(what), "Answer with JSON.")
        assert holds(it), (what, it)
    # One that names itself; this model goes on for ever.
    text = text_of(server.chat("A linked list of numbers, as JSON.", tokens=80,
                               response_format=schema(TREE)))
    assert re.match(r'(\s*\{\s*"value"\s*:\s*-?\d+\s*,\s*"next"\s*:){2}', text), text


def test_grammars_are_followed(server, reference):
    grammar = 'root ::= "The answer is " ("yes" | "no") "." [0-9]{3}'
    for field in ("grammar", "ebnf", "guided_grammar"):
        texts = {text_of(one.chat("Is the sky blue?", tokens=30, extra_body={field: grammar}))
                 for one in (server, reference)}
        (text,) = texts
        assert text.startswith(("The answer is yes.", "The answer is no."))
        assert len(text.rsplit(".", 1)[1]) == 3
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in server.chat(
        "Is the sky blue?", tokens=30, stream=True, extra_body={"ebnf": grammar}))
    assert streamed == text
    answer = server.client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Is the sky blue?"}], n=3, seed=1,
        temperature=1.5, max_tokens=30, extra_body={"ebnf": grammar})
    assert all(choice.message.content.startswith("The answer is ") for choice in answer.choices)


def test_texts_that_a_grammar_cuts_short_say_so(server):
    answer = server.chat("Count.", tokens=5, extra_body={"ebnf": 'root ::= ("1" | "2")*'})
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert set(text_of(answer)) <= {"1", "2"}


HOSTILE = [
    "", "root", "root ::=", "root ::= other", "root ::= root \"a\"", "x ::= \"a\"", "::=",
    "root ::= \"",
    "root ::= [", "root ::= (\"a\"", "root ::= " + "(" * 5000 + "\"a\"" + ")" * 5000,
    "root ::= \"a\"{5000}", "root ::= ((\"a\"{1000}){1000}){1000}", "root ::= \"\\xZZ\"",
    "root ::= a\na ::= b\nb ::= a", "root ::= <[99999999]>", "root ::= \"a\"{3,1}",
    "root ::= " + "a " * 200000, "root ::= \"a\\u0000\"", "root ::= [a-z]{7,2}",
    "root ::= \"" + "a" * 100000 + "\"{1000}", "root ::= \"a\"{99999999999999999999}",
    "root ::= \"" + "a" * 100000 + "\"" + "+" * 100000, "root ::= \"a\"{3,",
    "root ::= " + "x{0,1000} " * 500 + "\nx ::= \"a\"",
]


@pytest.mark.parametrize("grammar", HOSTILE, ids=range(len(HOSTILE)))
def test_grammars_that_are_none_are_refused(server, grammar):
    try:
        answer = server.chat("Hello", tokens=4, extra_body={"ebnf": grammar})
        assert answer.usage.completion_tokens <= 4
    except openai.BadRequestError as refusal:
        # Some are read, and then no token of the model fits.
        assert refusal.body["param"] == "ebnf" or "no token" in refusal.body["message"]
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("fields, param", [
    ({"response_format": schema({"type": "string", "pattern": "a+"})},
     "response_format.json_schema.schema"),
    ({"regex": "a+"}, "regex"), ({"ebnf": "x", "grammar": "y"}, "ebnf"),
    ({"ebnf": 'root ::= "a"', "ignore_eos": True}, "ignore_eos"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"stop_token_ids": [99999999]}, "stop_token_ids"),
    ({"n": 1000}, "n"), ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"presence_penalty": 3}, "presence_penalty"),
])
def test_what_cannot_be_is_refused_with_its_field(server, fields, param):
    response = server.http.post("/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    wait_for(lambda: server.metric("hitide_requests_in_flight") == 0, 30, "no place is lost")


def test_a_grammar_does_not_hold_up_others(server):
    """Answers with a grammar and without run in one batch, each with its own text."""
    bare = text_of(server.chat(QUESTION, tokens=16))
    stream = server.chat("Tell me about a person.", tokens=60, stream=True,
                         response_format=schema(PERSON))
    next(iter(stream))
    assert text_of(server.chat(QUESTION, tokens=16)) == bare
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert rest


def test_answers_with_a_grammar_are_cached_as_others(server):
    prompt = long_prompt("orchestra", 5)
    first = server.chat(prompt, tokens=8, extra_body={"ebnf": 'root ::= [a-z ]{1,40}'})
    again = server.chat(prompt, tokens=8, extra_body={"ebnf": 'root ::= [a-z ]{1,40}'})
    assert text_of(first) == text_of(again)
    assert cached_of(again)["device"] >= 64
