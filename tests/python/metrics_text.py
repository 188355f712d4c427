"""A strict reader of Prometheus' text format 0.0.4, for pages of the server."""

import math
import re

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')


def read_labels(text):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"labels: {text}"
        assert match.group(1) not in labels, f"a label twice: {text}"
        labels[match.group(1)] = match.group(2)
        at = match.end()
    return labels


def family_of(name, kinds):
    if name in kinds:
        return name
    for ending in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(ending)
        if base != name and kinds.get(base) == "histogram":
            return base
    raise AssertionError(f"{name} has no TYPE line before it")


def read_metrics(page):
    """{name: [(labels, value)]}; fails where the page breaks a rule of the format."""
    assert page.endswith("\n")
    kinds, samples, order = {}, {}, []
    for line in page.splitlines():
        if line.startswith("# HELP "):
            assert len(line.split(" ", 3)) == 4, line
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, f"{name} has two TYPE lines"
            assert kind in ("counter", "gauge", "histogram"), line
            kinds[name] = kind
            order.append(name)
            continue
        match = SAMPLE.match(line)
        assert match, line
        name, labels, value = match.group(1), read_labels(match.group(2) or ""), match.group(3)
        assert family_of(name, kinds) == order[-1], f"{name} stands apart from its family"
        seen = samples.setdefault(name, [])
        assert labels not in [known for known, _ in seen], f"a sample twice: {line}"
        seen.append((labels, float(value)))
        assert not math.isnan(float(value)), line
        if kinds[order[-1]] != "gauge":
            assert float(value) >= 0, line
        if kinds[order[-1]] == "counter":
            assert name.endswith("_total"), f"{name}: counters end with _total"
    for name, kind in kinds.items():
        if kind == "histogram":
            check_histogram(name, samples)
    return samples


def check_histogram(name, samples):
    series = {}
    for labels, value in samples[name + "_bucket"]:
        rest = tuple(sorted((key, text) for key, text in labels.items() if key != "le"))
        series.setdefault(rest, []).append((float(labels["le"]), value))
    for rest, buckets in series.items():
        assert buckets == sorted(buckets), f"{name}: buckets out of order"
        values = [value for _, value in buckets]
        assert values == sorted(values), f"{name}: buckets are cumulative"
        assert buckets[-1][0] == math.inf
        assert (dict(rest), values[-1]) in samples[name + "_count"], name
        assert any(labels == dict(rest) for labels, _ in samples[name + "_sum"]), name
