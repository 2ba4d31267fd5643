"""The text format of OpenMetrics 1.0, which Prometheus reads: families of gauges and histograms.

Values that are computed from the records of a window of time rise and fall, so they are gauges, not counters, and their
distributions are of the type ``gaugehistogram``.

Label values are names that people and programs choose. A family has at most ``MOST_SAMPLES`` of them, those with the
largest values, and ``asterism_left_out_samples`` says how many are missing: a collector keeps every one for weeks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from asterism.core.json_values import JsonObject

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MOST_SAMPLES = 1000
"""How many samples of one family are shown."""

Labels = tuple[str, ...]
"""The values of the labels of a sample, in the order of the names in its family."""


class Histogram:
    """How often values fell into each bucket; ``bounds`` are the upper bounds, in order, without infinity."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its samples by the values of its ``labels``. ``unit`` is the last word of the name, if it is one."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    samples: Mapping[Labels, float | Histogram] = field(default_factory=dict)
    unit: str = ""

    def lines(self) -> Iterator[str]:
        histograms = any(isinstance(value, Histogram) for value in self.samples.values())
        yield f"# TYPE {self.name} {'gaugehistogram' if histograms else 'gauge'}"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {_escaped(self.help)}"
        for values, value in sorted(self.samples.items(), key=lambda sample: sample[0]):
            named = [f'{name}="{_escaped(text)}"' for name, text in zip(self.labels, values, strict=True)]
            if isinstance(value, Histogram):
                yield from self._buckets(named, value)
            else:
                yield f"{self.name}{_braced(named)} {_number(value)}"

    def largest(self, most: int) -> Family:
        """The family with its ``most`` largest samples; of equal ones, those that come first."""
        if len(self.samples) <= most:
            return self
        order = sorted(self.samples.items(), key=lambda sample: (-_size(sample[1]), sample[0]))
        return replace(self, samples=dict(order[:most]))

    def to_json(self) -> JsonObject:
        """The family for programs that read JSON."""
        samples = [
            {"labels": dict(zip(self.labels, values, strict=True)), **_value_json(value)}
            for values, value in sorted(self.samples.items(), key=lambda sample: sample[0])
        ]
        return {"name": self.name, "help": self.help, "samples": samples}

    def _buckets(self, named: list[str], value: Histogram) -> Iterator[str]:
        bounds = [*map(_bound, value.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(value.counts), strict=True):
            limit = f'le="{bound}"'
            yield f"{self.name}_bucket{_braced([*named, limit])} {count}"
        yield f"{self.name}_gcount{_braced(named)} {value.count}"
        yield f"{self.name}_gsum{_braced(named)} {_number(value.sum)}"


def render(families: Iterable[Family]) -> str:
    """The text of the families that have samples, at most ``MOST_SAMPLES`` each."""
    shown, left_out = [], dict[Labels, float]()
    for family in families:
        shown.append(family.largest(MOST_SAMPLES))
        if len(family.samples) > MOST_SAMPLES:
            left_out[family.name,] = len(family.samples) - MOST_SAMPLES
    shown.append(Family("asterism_left_out_samples", "Samples that this page leaves out.", ("metric",), left_out))
    lines = [line for family in shown if family.samples for line in family.lines()]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _size(value: float | Histogram) -> float:
    return value.count if isinstance(value, Histogram) else value


def _value_json(value: float | Histogram) -> JsonObject:
    if not isinstance(value, Histogram):
        return {"value": value}
    buckets = [
        {"le": bound, "count": count} for bound, count in zip(value.bounds, accumulate(value.counts), strict=False)
    ]
    return {"buckets": buckets, "count": value.count, "sum": value.sum}


def _braced(named: list[str]) -> str:
    return f"{{{','.join(named)}}}" if named else ""


def _escaped(text: str) -> str:
    """As the format asks. A lone surrogate, which UTF-8 cannot express, is replaced."""
    text = text.encode(errors="replace").decode()
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _bound(value: float) -> str:
    return repr(float(value))


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
