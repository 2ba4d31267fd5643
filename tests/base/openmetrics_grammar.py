"""A reader of the text format of OpenMetrics 1.0, by its grammar: it raises AssertionError for anything else."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>{LABEL}(?:,{LABEL})*)?\}})? (?P<value>[^ \n]+)")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
SUFFIXES = {"gauge": {""}, "gaugehistogram": {"_bucket", "_gcount", "_gsum"}}


@dataclass
class ReadFamily:
    kind: str
    unit: str = ""
    help: str = ""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)


def read(text: str) -> dict[str, ReadFamily]:
    """The families of a text, by name."""
    assert text.endswith("# EOF\n")
    families: dict[str, ReadFamily] = {}
    name = ""
    for line in text.split("\n")[:-2]:
        if line.startswith("# "):
            _, word, name, *rest = line.split(" ", 3)
            assert word in ("TYPE", "UNIT", "HELP"), line
            if word == "TYPE":
                assert name not in families, f"{name} twice"
                assert re.fullmatch(NAME, name), line
                assert rest[0] in SUFFIXES, line
                families[name] = ReadFamily(rest[0])
            elif word == "UNIT":
                assert name.endswith(f"_{rest[0]}"), line
                families[name].unit = rest[0]
            else:
                families[name].help = rest[0]
            assert list(families)[-1] == name, "the lines of a family are together"
            continue
        _read_sample(line, name, families[name])
    for family in families.values():
        if family.kind == "gaugehistogram":
            _check_histogram(family)
    return families


def _read_sample(line: str, name: str, family: ReadFamily) -> None:
    match = SAMPLE.fullmatch(line)
    assert match, line
    suffix = match["name"].removeprefix(name)
    assert suffix in SUFFIXES[family.kind], line
    assert NUMBER.fullmatch(match["value"]), line
    labels = tuple(
        (label.partition("=")[0], _unescaped(label.partition("=")[2][1:-1]))
        for label in re.findall(LABEL, match["labels"] or "")
    )
    assert (suffix, labels) not in family.samples, f"twice: {line}"
    assert len({key for key, _ in labels}) == len(labels), line
    family.samples[suffix, labels] = float(match["value"])


def _unescaped(text: str) -> str:
    return re.sub(r'\\(["\\n])', lambda match: {"n": "\n"}.get(match[1], match[1]), text)


def _check_histogram(family: ReadFamily) -> None:
    """Buckets rise, the last one is infinity and has all values."""
    rows: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for (suffix, labels), value in family.samples.items():
        if suffix == "_bucket":
            *rest, (le, bound) = labels
            assert le == "le"
            rows.setdefault(tuple(rest), []).append((float(bound), value))
    for labels, buckets in rows.items():
        assert buckets == sorted(buckets), "buckets are in order and cumulative"
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (math.inf, family.samples["_gcount", labels])
        assert ("_gsum", labels) in family.samples
