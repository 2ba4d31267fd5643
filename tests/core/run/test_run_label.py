"""Labels of runs: templates over inputs, and what a run without a label is called."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.run_label import (
    LONGEST_LABEL,
    InvalidTemplate,
    TextTemplate,
    UnknownField,
    key_template,
    plan_variables,
    shown_label,
    tidy_label,
)
from asterism.core.run.work import Workflow

FLOW = Workflow("transcode", argv=("true",))
NAMES = st.text("abc_", min_size=1, max_size=4)


def a_run(run_input: Any = None, **options: Any) -> Run:
    return transitions.create("r1", FLOW, run_input or {}, by="ann", now=1.0, **options)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{file}", "a.mp4"),
        ("{file} at {rate}", "a.mp4 at 25"),
        ("{video.title}", "Été"),
        ("{video}", '{"title": "Été"}'),
        ("{{{file}}}", "{a.mp4}"),
        ("constant", "constant"),
        ("{empty}{none}", "null"),
    ],
)
def test_a_template_is_filled_from_the_input(template: str, filled: str) -> None:
    inputs = {"file": "a.mp4", "rate": 25, "video": {"title": "Été"}, "empty": "", "none": None}
    assert TextTemplate(template).fill(inputs) == filled


@given(st.dictionaries(NAMES, st.text()), st.lists(st.tuples(st.text(), NAMES)))
def test_any_text_and_any_field_come_through(inputs: dict[str, str], parts: list[tuple[str, str]]) -> None:
    written = "".join(text.replace("{", "{{").replace("}", "}}") + f"{{{name}}}" for text, name in parts)
    template = TextTemplate(written)
    assert template.fields == tuple(name for _, name in parts)
    missing = [name for _, name in parts if name not in inputs]
    if missing:
        with pytest.raises(UnknownField) as refused:
            template.fill(inputs)
        assert refused.value.field == missing[0]
    else:
        assert template.fill(inputs) == "".join(text + inputs[name] for text, name in parts)


@pytest.mark.parametrize("text", ["{", "}", "{}", "{file", "{a..b}", "{file!r}", "{n:03}"])
def test_what_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(InvalidTemplate, match="is not a valid template"):
        TextTemplate(text)


def test_an_unknown_field_is_named_with_the_fields_there_are() -> None:
    with pytest.raises(UnknownField, match=r"names \{fil\}, but the input has no such field: it has file, rate"):
        TextTemplate("{fil}").fill({"file": "a", "rate": 1})
    with pytest.raises(UnknownField, match="it has no fields"):
        TextTemplate("{file.name}").fill({})


@given(st.text(max_size=500))
def test_a_label_from_data_is_one_line_that_every_store_and_terminal_can_hold(text: str) -> None:
    label = tidy_label(text)
    if label is None:
        assert not text.strip()
    else:
        assert label.isprintable()
        assert 0 < len(label) <= LONGEST_LABEL


def test_a_long_label_keeps_both_ends() -> None:
    label = tidy_label("begin" + "x" * 500 + "end")
    assert label is not None
    assert label.startswith("begin")
    assert label.endswith("end")
    assert "…" in label


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        (a_run({"file": "a.mp4"}, label="the first"), "the first"),
        (a_run({"file": "a.mp4", "deep": {"x": 1}, "n": 3}), "a.mp4, 3"),
        (a_run({"x": 1}, key="plan:nightly/load/eu/2"), "load/eu"),
        (a_run({"x": 1}, key="k"), "1"),
        (a_run({"$blob": "ab", "size": 3}), ""),
        (a_run(), ""),
    ],
)
def test_a_run_is_called_by_its_label_or_by_what_it_does(run: Run, shown: str) -> None:
    assert shown_label(run) == shown


def test_the_input_may_be_shown_masked() -> None:
    assert shown_label(a_run({"token": "s3cret"}), {"token": "***"}) == "***"


def test_a_key_needs_a_field_of_the_input() -> None:
    assert key_template("{id}").fill({"id": 7}) == "7"
    with pytest.raises(InvalidTemplate, match=r"'k' gives every run the same key: name a field of the input"):
        key_template("k")


def test_a_run_of_a_plan_tells_its_plan_and_task_and_another_does_not() -> None:
    run = Run("r", "plan:nightly", 1, 0.0, "nightly", FLOW.work, key="plan:nightly/load/eu/3")
    assert plan_variables(run) == {"ASTERISM_PLAN": "nightly", "ASTERISM_TASK": "load/eu"}
    assert plan_variables(run.changed(workflow="work")) == {}  # a key that a person has chosen
    assert plan_variables(run.changed(key=None)) == {}
