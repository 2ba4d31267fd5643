"""A task that an if/else above it always skips is found, and nothing else is."""

from __future__ import annotations

import random
from textwrap import dedent, indent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.base import expressions
from asterism.base.yaml_lines import Mistake
from asterism.core.plan.status import COMPLETED, FAILED, TaskStatus
from asterism.planfile import examine
from asterism.planfile.branches import Terms, always_skipped


def warnings(text: str) -> list[Mistake]:
    plan_file, mistakes = examine("asterism: 1\ntasks:\n" + indent(dedent(text), "  "), "plan")
    assert plan_file is not None, mistakes
    return [mistake for mistake in mistakes if "always skipped" in mistake.text]


CHOICE = """\
check: {{shell: x}}
yes: {{shell: x, after: {{check: {{when: '{0}'}}}}}}
no: {{shell: x, after: {{check: {{when: '{1}'}}}}}}
then: {{shell: x, after: no}}
join: {{shell: x, after: [yes, then]{2}}}
"""


def test_the_warning_names_the_line_the_conditions_and_the_mend() -> None:
    (only,) = warnings(CHOICE.format("result.ok", "!result.ok", ""))
    assert (only.line, only.warning) == (7, True)
    assert only.text == (
        "task 'join': is always skipped: 'yes' needs 'result.ok' to hold for 'check', 'then' needs '!result.ok' to "
        "hold for 'check', and both never hold together; to start it after the branch that runs, add join: any"
    )


def test_join_any_mends_it() -> None:
    assert warnings(CHOICE.format("result.ok", "!result.ok", ", join: any")) == []


@pytest.mark.parametrize(
    ("first", "other"),
    [("result.n > 5", "result.n <= 5"), ("result.a", "!result.b"), ("result.a || result.b", "!result.a || result.b")],
)
def test_other_conditions_are_not_compared(first: str, other: str) -> None:
    assert warnings(CHOICE.format(first, other, "")) == []


def test_success_and_failure_of_one_task_exclude_each_other() -> None:
    (only,) = warnings(
        """\
        build: {shell: x}
        alarm: {shell: x, handles: build}
        report: {shell: x, after: [build, alarm]}
        """
    )
    assert "'report' needs 'build' to succeed, 'alarm' needs 'build' to fail" in only.text


def test_only_the_topmost_task_is_named() -> None:
    below = "last: {shell: x, after: join}\nvery-last: {shell: x, after: [last, check]}\n"
    (only,) = warnings(CHOICE.format("result.ok", "!result.ok", "") + below)
    assert only.text.startswith("task 'join'")


def test_what_both_branches_need_is_needed_below_a_join_of_any() -> None:
    reported = warnings(
        """\
        check: {shell: x}
        a: {shell: x, after: {check: {when: result.ok}}}
        b: {shell: x, after: {check: {when: result.ok}}}
        c: {shell: x, after: {check: {when: "!result.ok"}}}
        either: {shell: x, after: [a, b], join: any}
        both: {shell: x, after: [either, c]}
        """
    )
    assert [mistake.text.partition(":")[0] for mistake in reported] == ["task 'both'"]


def test_a_large_plan_is_examined() -> None:
    edges: dict[str, dict[str, Terms]] = {"check": {}}
    for number in range(5000):
        on = "failure" if number % 2 else "success"
        edges[f"t{number}"] = {"check" if number < 2 else f"t{number - 2}": (on if number < 2 else "success", None)}
    edges["join"] = {"t4998": ("success", None), "t4999": ("success", None)}
    assert [task for task, _ in always_skipped(list(edges), edges, frozenset())] == ["join"]


TERMS: list[Terms] = [("success", None), ("failure", None), ("completion", None)]
CONDITIONS = [
    "result > 2",
    "!result > 2",
    "(result > 2)",
    "!(result > 2)",
    "result == 1",
    "result == 3",
    "result > 1 && result < 3",
]
CONDITIONS += ["result != 1", "result >= 3 || result == 0", "result < 2", 'status == "completed"']
TERMS += [("success", condition) for condition in CONDITIONS]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, dict[str, Terms]], frozenset[str]]:
    edges: dict[str, dict[str, Terms]] = {}
    for number in range(draw(st.integers(3, 7))):
        sources = draw(st.lists(st.sampled_from(list(edges)), unique=True, max_size=3)) if edges else []
        edges[f"t{number}"] = {source: draw(st.sampled_from(TERMS)) for source in sources}
    return edges, frozenset(draw(st.sets(st.sampled_from(list(edges)), max_size=2)))


@given(graphs(), st.integers(0, 1 << 30))
@settings(max_examples=200, deadline=None)
def test_what_is_reported_never_starts(graph: tuple[dict[str, dict[str, Terms]], frozenset[str]], seed: int) -> None:
    edges, any_joins = graph
    skipped = dict(always_skipped(list(edges), edges, any_joins))
    chance = random.Random(seed)
    for _ in range(40 if skipped else 0):
        ends: dict[str, tuple[TaskStatus, int | None]] = {}
        for task, sources in edges.items():
            held = [source in ends and holds(condition, *ends[source]) for source, condition in sources.items()]
            if any(held) if task in any_joins and held else all(held):
                assert task not in skipped
                failed = chance.random() < 0.3
                ends[task] = (FAILED, None) if failed else (COMPLETED, chance.randint(0, 4))


def holds(condition: Terms, status: TaskStatus, value: int | None) -> bool:
    on, when = condition
    fits = on == "completion" or (on == "failure") == (status is FAILED)
    return fits and (when is None or expressions.evaluate(when, status, value) is True)
