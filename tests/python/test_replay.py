"""hitide replay: recorded requests through the cache's core, with no model and no bytes."""

import gzip
import json
import os
import subprocess

import pytest

from conftest import ROOT, run_program

DONE, FAILED, USAGE = 0, 1, 2
TRACE = os.path.join(ROOT, "bench", "workloads", "mooncake_conversation_400.jsonl")
BLOCK = 512


def replay(program, *arguments):
    result = run_program(program, "replay", *arguments, "--json")
    assert result.returncode == DONE, result.stderr
    return json.loads(result.stdout)


def requests_of(path):
    with open(path, encoding="ascii") as file:
        return [json.loads(line) for line in file]


def leaf_lru(requests, capacity):
    """Hit tokens of each request, and evictions: blocks in a tree, the leaf used longest ago goes,
    the prompt's own path stays, the last block counts as far as the prompt goes."""
    used, parent, children, hits, evictions = {}, {}, {}, [], 0
    for clock, request in enumerate(requests):
        ids = request["hash_ids"]
        found = 0
        while found < len(ids) and ids[found] in used:
            used[ids[found]] = clock
            found += 1
        hits.append(min(found * BLOCK, request["input_length"]))
        own = set(ids)
        for before, block in zip([None] + ids, ids):
            if block in used:
                continue
            while len(used) >= capacity:
                victim = min((b for b in used if not children.get(b) and b not in own),
                             key=used.get)
                del used[victim]
                evictions += 1
                above = parent.pop(victim, None)
                if above is not None:
                    children[above] -= 1
            used[block] = clock
            if before is not None:
                parent[block] = before
                children[before] = children.get(before, 0) + 1
    return hits, evictions


@pytest.mark.parametrize("capacity", [2048, 5000, 8192])
def test_leaf_agrees_with_the_definition_written_down_again(program, capacity):
    requests = requests_of(TRACE)
    hits, evictions = leaf_lru(requests, capacity)
    report = replay(program, TRACE, "--lru-definition", "leaf", "--device-tokens",
                    str(capacity * BLOCK))
    assert report["served_tokens"] == sum(hits)
    assert report["tiers"]["device"]["evicted_pages"] == evictions
    half = len(requests) // 2
    assert report["last_half"]["served_tokens"] == sum(hits[half:])
    assert report["last_half"]["prompt_tokens"] == sum(r["input_length"] for r in requests[half:])


def test_leaf_of_the_excerpt_stays_what_it_is(program):
    """Figures that were checked against the whole trace's published ones (docs/cli.md)."""
    report = replay(program, TRACE, "--lru-definition", "leaf", "--device-tokens",
                    str(5000 * BLOCK))
    assert report["requests"] == 400
    assert report["prompt_tokens"] == 5710530
    assert report["served_tokens"] == 342648
    assert report["ceiling_tokens"] == 781596
    assert report["tiers"]["device"] == {"pages": 5000, "served_tokens": 342648,
                                         "served_pages": 670, "evicted_pages": 5679}


@pytest.mark.parametrize("arguments", [
    [],
    ["--host-tokens", "0"],
    ["--device-tokens", "400000", "--host-tokens", "800000", "--storage-tokens", "1600000"],
    ["--device-tokens", "400000", "--host-tokens", "800000", "--storage-latency", "50",
     "--storage-speed", "20000", "--hicache-storage-prefetch-policy", "best_effort"],
    ["--page-size", "64", "--radix-eviction-policy", "lfu", "--hicache-write-policy",
     "write_through_selective"],
    ["--hicache-storage-backend-extra-config", '{"prefetch_threshold": 4096}'],
])
def test_tokens_of_tiers_and_reasons_sum_to_the_prompts(program, arguments):
    report = replay(program, TRACE, *arguments)
    tiers = report["tiers"].values()
    assert sum(tier["served_tokens"] for tier in tiers) == report["served_tokens"]
    assert (sum(report["computed_tokens"].values()) + report["served_tokens"] ==
            report["prompt_tokens"])
    assert report["served_tokens"] <= report["ceiling_tokens"]
    assert all(tier["served_tokens"] == report["page_size"] * tier["served_pages"]
               for tier in tiers)


def test_more_tiers_serve_more(program):
    sizes = ["--device-tokens", "400000"]
    one = replay(program, TRACE, *sizes, "--host-tokens", "0")
    two = replay(program, TRACE, *sizes, "--host-tokens", "1000000", "--storage-tokens", "0")
    three = replay(program, TRACE, *sizes, "--host-tokens", "1000000", "--storage-tokens",
                   "100000000")
    assert one["served_tokens"] < two["served_tokens"] < three["served_tokens"]
    assert one["tiers"]["device"]["evicted_pages"] > 0
    assert three["tiers"]["storage"]["served_tokens"] > 0


def test_for_people(program):
    result = run_program(program, "replay", TRACE, "--device-tokens", "400000")
    assert result.returncode == DONE
    for part in ("served from device", "served from host", "served from storage", "computed",
                 "storage_miss", "partial_page", "last half", "ceiling"):
        assert part in result.stdout


def test_a_text_trace_and_standard_input(program, tmp_path):
    lines = "".join(json.dumps({"timestamp": 1000 * i, "input": "x" * 1000 + str(i) * 1000}) + "\n"
                    for i in range(3))
    path = tmp_path / "texts.jsonl"
    path.write_text(lines)
    report = replay(program, str(path), "--page-size", "50")
    assert report["prompt_tokens"] == 3 * 500
    assert report["served_tokens"] == 2 * 250
    again = subprocess.run([program, "replay", "-", "--page-size", "50", "--json"], input=lines,
                           capture_output=True, text=True, timeout=60)
    assert json.loads(again.stdout) == report


@pytest.mark.parametrize("arguments, parts", [
    ([], ["trace"]),
    (["/none.jsonl"], ["/none.jsonl", "No such file"]),
    (["/"], ["/", "directory"]),
    ([TRACE, "--block-tokens", "256"], [TRACE, "line 1", "--block-tokens"]),
    ([TRACE, "--block-tokens", "0"], ["--block-tokens"]),
    ([TRACE, "--page-size", "0"], ["--page-size", "1..1024"]),
    ([TRACE, "--device-tokens", "0"], ["--device-tokens"]),
    ([TRACE, "--device-tokens", "100"], ["--device-tokens", "100", "512"]),
    ([TRACE, "--host-tokens", "-1"], ["--host-tokens"]),
    ([TRACE, "--host-tokens", "0", "--storage-tokens", "100000"],
     ["--storage-tokens", "--host-tokens"]),
    ([TRACE, "--lru-definition", "tree"], ["--lru-definition", "tree"]),
    ([TRACE, "--lru-definition", "leaf", "--host-tokens", "100000"], ["leaf", "--host-tokens"]),
    ([TRACE, "--lru-definition", "leaf", "--radix-eviction-policy", "lfu"],
     ["leaf", "--radix-eviction-policy"]),
    ([TRACE, "--radix-eviction-policy", "oldest"], ["--radix-eviction-policy", "'oldest'"]),
    ([TRACE, "--storage-speed", "fast"], ["--storage-speed", "fast"]),
    ([TRACE, "--model-path", "x"], ["--model-path"]),
])
def test_wrong_input_is_one_clear_line(program, arguments, parts):
    result = run_program(program, "replay", *arguments)
    assert result.returncode == USAGE and result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("hitide replay: ")
    for part in parts:
        assert part in result.stderr


def test_a_compressed_trace_is_named_as_one(program, tmp_path):
    for name, data in (("a.xz", b"\xfd7zXZ\0rest"), ("a.gz", gzip.compress(b"{}"))):
        path = tmp_path / name
        path.write_bytes(data)
        result = run_program(program, "replay", str(path))
        assert result.returncode == USAGE
        assert "compressed" in result.stderr and "xz -dc" in result.stderr
