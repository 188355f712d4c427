"""One scenario under many settings: whatever the page size, the policies and the sizes of pools,
texts are those of a server without cache, before and after a kill, and nothing stays held."""

import pytest

from conftest import cached_of, long_prompt, storage_arguments, text_of

ANSWER = 6  # tokens
SUBJECTS = ("granary", "beacon")

# Every value with every page size, but for the pairs that would only repeat a row.
MATRIX = [
    # page size, write policy, prefetch policy, eviction policy, tight device
    (1, "write_through", "timeout", "lru", False),
    (1, "write_through_selective", "wait_complete", "slru", True),
    (1, "write_back", "best_effort", "lfu", True),
    (16, "write_through", "wait_complete", "fifo", True),
    (16, "write_through_selective", "best_effort", "priority", False),
    (16, "write_back", "timeout", "mru", True),
    (64, "write_through", "best_effort", "filo", True),
    (64, "write_through_selective", "timeout", "lru", True),
    (64, "write_back", "wait_complete", "slru", False),
]


def turns_of(subject):
    """Prompts that grow: each has the one before as its beginning."""
    return [long_prompt(subject, sentences) for sentences in (3, 6, 9)]


@pytest.fixture(scope="module")
def expected(reference):
    """{prompt: text}, and the most tokens that one of them needs."""
    texts, most = {}, 0
    for subject in SUBJECTS:
        for prompt in turns_of(subject):
            answer = reference.chat(prompt, tokens=ANSWER)
            texts[prompt] = text_of(answer)
            most = max(most, answer.usage.prompt_tokens + ANSWER)
    return texts, most


def converse(server, texts):
    """Two conversations in turns, then the longest prompts once more; tokens that tiers served."""
    served = 0
    prompts = [prompt for pair in zip(*map(turns_of, SUBJECTS)) for prompt in pair]
    for prompt in [*prompts, *prompts[-2:]]:
        answer = server.chat(prompt, tokens=ANSWER)
        assert text_of(answer) == texts[prompt], server.log()
        tiers = cached_of(answer)
        served += tiers["device"] + tiers["host"] + tiers["storage"]
    return served


@pytest.mark.parametrize("page_size,write,prefetch,eviction,tight", MATRIX)
def test_texts_do_not_depend_on_settings(start, tmp_path, expected, page_size, write, prefetch,
                                         eviction, tight):
    texts, most = expected
    arguments = ["--page-size", str(page_size), "--hicache-write-policy", write,
                 "--hicache-storage-prefetch-policy", prefetch,
                 "--radix-eviction-policy", eviction,
                 *storage_arguments(tmp_path, prefetch_threshold=page_size)]
    if tight:
        # One request at a time, and one page more than the longest needs.
        pages = -(-most // page_size) + 1
        arguments += ["--device-tokens", str(pages * page_size), "--max-running-requests", "1",
                      "--context-length", str(pages * page_size)]
    else:
        # One page at most stays on the device behind a request.
        arguments += ["--device-idle-tokens", str(page_size)]
    first = start(*arguments)
    assert converse(first, texts) > 0, "a conversation in which nothing hits tests nothing"
    first.wait_idle()
    first.kill()
    again = start(*arguments)
    converse(again, texts)
    again.wait_idle()
    assert again.stop() == 0
    assert not [line for line in again.err if " E " in line], again.log()
