"""The text format of OpenMetrics, read back by its grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.base.openmetrics import MOST_SAMPLES, Family, Histogram, render
from tests.base.openmetrics_grammar import read

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.floats(-1e300, 1e300) | st.integers(-(2**60), 2**60)


@given(st.dictionaries(st.tuples(TEXTS, TEXTS), NUMBERS, min_size=1), TEXTS)
def test_gauges_are_read_back(samples: dict[tuple[str, ...], float], words: str) -> None:
    families = read(render([Family("a_b", words, ("x", "y"), samples), Family("c", "Nothing.", (), {(): 1})]))
    assert (families["a_b"].kind, list(families)) == ("gauge", ["a_b", "c"])
    expected = {("", (("x", x), ("y", y))): float(value) for (x, y), value in samples.items()}
    assert families["a_b"].samples == expected


@given(st.lists(st.floats(-10, 1e6)))
def test_histograms_are_read_back(values: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    families = read(render([Family("wait_seconds", "How long.", ("device",), {("kitchen",): histogram}, "seconds")]))
    [family] = families.values()
    assert (family.kind, family.unit) == ("gaugehistogram", "seconds")
    for bound in (0.1, 1.0, 10.0):
        key = ("_bucket", (("device", "kitchen"), ("le", repr(bound))))
        assert family.samples[key] == sum(value <= bound for value in values), "a bound belongs to its bucket"
    assert family.samples["_gcount", (("device", "kitchen"),)] == len(values)
    assert family.samples["_gsum", (("device", "kitchen"),)] == pytest.approx(sum(values))


def test_a_family_without_samples_is_left_out() -> None:
    assert render([Family("a", "Nothing.")]) == "# EOF\n"


def test_names_that_utf8_cannot_express_do_no_harm() -> None:
    text = render([Family("a", "Something.", ("x",), {("\ud800",): 1})])
    assert 'a{x="?"} 1' in text.splitlines()


def test_without_escapes_a_name_would_break_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = [Family("a", "Something.", ("x",), {('"} 1\nb 2 #',): 1})]
    assert list(read(render(hostile))) == ["a"]
    monkeypatch.setattr("asterism.base.openmetrics._escaped", str)
    with pytest.raises(AssertionError):
        read(render(hostile))


def test_a_family_as_json() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5)
    histogram.observe(2.0)
    family = Family("a", "Something.", ("x",), {("one",): histogram, ("two",): 3})
    assert family.to_json() == {
        "name": "a",
        "help": "Something.",
        "samples": [
            {"labels": {"x": "one"}, "buckets": [{"le": 1.0, "count": 1}], "count": 2, "sum": 2.5},
            {"labels": {"x": "two"}, "value": 3},
        ],
    }


def test_a_family_has_a_bounded_number_of_samples() -> None:
    """Names of devices, workflows and plans are label values, and anybody who may create them could create millions."""
    histogram = Histogram([1.0])
    histogram.observe(0.5)
    many: dict[tuple[str, ...], float | Histogram] = {(f"d{number:06}",): float(number) for number in range(20_000)}
    waits: dict[tuple[str, ...], float | Histogram] = {(f"w{number:06}",): histogram for number in range(2_000)}
    text = render([Family("asterism_a", "Many.", ("device",), many), Family("asterism_b", "Few.", ("flow",), waits)])
    assert text.count("asterism_a{") == text.count("asterism_b_gcount{") == MOST_SAMPLES
    assert 'asterism_a{device="d019999"} 19999.0' in text
    assert 'asterism_a{device="d000000"}' not in text
    assert 'asterism_left_out_samples{metric="asterism_a"} 19000' in text
    assert 'asterism_left_out_samples{metric="asterism_b"} 1000' in text
    assert "left_out" not in render([Family("asterism_a", "Few.", ("device",), {("a",): 1.0})])
