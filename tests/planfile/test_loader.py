"""A plan file becomes a constellation, devices and a lock policy."""

from __future__ import annotations

import gc
import os
import random
from textwrap import dedent, indent
from typing import Any

import pytest

from asterism import Constellation, Priority, Task
from asterism.planfile import PlanFile, examine
from asterism.planfile.parameters import GivenParameters


def plan_file(text: str, name: str = "plan", **options: Any) -> PlanFile:
    loaded, mistakes = examine(dedent(text), name, **options)
    assert loaded is not None, mistakes
    return loaded


def plan(text: str) -> Constellation:
    return plan_file("asterism: 1\ntasks:\n" + indent(dedent(text), "  ")).constellation


def only(body: str) -> Task:
    return plan(f"it: {body}\n")["it"].task


def test_everything_that_a_task_can_say() -> None:
    built = plan(
        """\
          build:
            argv: [make, "{target}"]
            inputs: {target: all, deep: {a: [1, {b: null}]}}
            env: {TOKEN: {secret: TOKEN}, LEVEL: 3}
            after: {fetch: {on: completion, when: "result.ok"}}
            retries: 2
            backoff: 250ms
            timeout: 5m
            priority: high
            device: {id: laptop, needs: [linux, gpu]}
            estimate: 90
            revocable: true
            description: builds
          fetch: {shell: fetch it}
        """
    )
    assert built["build"].task == Task(
        "build",
        argv=("make", "{target}"),
        inputs={"target": "all", "deep": {"a": [1, {"b": None}]}},
        env={"TOKEN": {"secret": "TOKEN"}, "LEVEL": 3},
        retries=2,
        backoff=0.25,
        timeout=300.0,
        priority=Priority.HIGH,
        device="laptop",
        needs=frozenset({"linux", "gpu"}),
        estimate=90,
        revocable=True,
        description="builds",
    )
    [edge] = built["build"].dependencies
    assert (edge.source, edge.target, edge.on, edge.when) == ("fetch", "build", "completion", "result.ok")


def test_a_task_that_says_little_has_the_defaults_of_the_core() -> None:
    assert only("{shell: make}") == Task("it", shell="make")


def test_the_kinds_of_action() -> None:
    assert only("{call: 'os.path:join'}").call == "os.path:join"
    request = "{method: POST, url: 'http://x', headers: {A: {secret: B}}, json: {a: [1]}, expect: [200, 201]}"
    assert only(f"{{http: {request}}}").http == {
        "method": "POST",
        "url": "http://x",
        "headers": {"A": {"secret": "B"}},
        "json": {"a": [1]},
        "expect": [200, 201],
    }


@pytest.mark.parametrize(
    ("written", "edges"),
    [
        ("a", [("a", "success", None)]),
        ("[a, b]", [("a", "success", None), ("b", "success", None)]),
        ("{a: failure, b: completion}", [("a", "failure", None), ("b", "completion", None)]),
        ("{a: {on: failure}, b: {when: 'result > 1'}}", [("a", "failure", None), ("b", "success", "result > 1")]),
        ("{a: {}}", [("a", "success", None)]),
        ("[]", []),
    ],
)
def test_the_forms_of_after(written: str, edges: list[tuple[str, str, str | None]]) -> None:
    built = plan(f"  a: {{shell: x}}\n  b: {{shell: x}}\n  it: {{shell: x, after: {written}}}\n")
    assert [(edge.source, edge.on, edge.when) for edge in built["it"].dependencies] == edges


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("2", 2), ("0.5", 0.5), ("500ms", 0.5), ("10s", 10), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)],
)
def test_durations(written: str, seconds: float) -> None:
    assert only(f"{{shell: x, timeout: {written}}}").timeout == seconds


def test_a_device_may_be_named_alone() -> None:
    assert only("{shell: x, device: moon}").device == "moon"


def test_tasks_may_stand_in_any_order_and_keep_it_where_they_can() -> None:
    built = plan(
        "  last: {shell: x, after: [middle, z]}\n  z: {shell: x}\n  middle: {shell: x, after: a}\n  a: {shell: x}\n"
    )
    assert [task.id for task in built] == ["z", "a", "middle", "last"]


def test_the_head_of_a_file() -> None:
    loaded = plan_file(
        """\
        asterism: 1
        id: nightly
        policy: speculative
        devices:
          laptop: {slots: 4, can: [linux]}
          other: {}
        tasks: {a: {shell: x}}
        """
    )
    assert loaded.constellation.id == "nightly"
    assert loaded.policy == "speculative"
    laptop, other = loaded.devices
    assert (laptop.id, laptop.slots, laptop.can) == ("laptop", 4, {"linux"})
    assert (other.id, other.slots, other.can) == ("other", os.cpu_count(), frozenset())


def test_what_a_file_leaves_out() -> None:
    loaded = plan_file("asterism: 1\ntasks: {a: {shell: x}}\n", name="nightly")
    assert loaded.constellation.id == "nightly"
    assert loaded.policy is None
    [device] = loaded.devices
    assert (device.slots, device.can) == (os.cpu_count(), frozenset())


def test_an_anchor_can_be_used_twice() -> None:
    built = plan("  a: {shell: x, env: &env {LEVEL: 1}}\n  b: {shell: x, env: *env}\n")
    assert built["a"].task.env == built["b"].task.env == {"LEVEL": 1}


@pytest.mark.parametrize("tasks", [3_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_plan_of_very_many_tasks_loads(tasks: int) -> None:
    body = "".join(f"  t{n}: {{shell: x, after: t{n // 2}}}\n" for n in range(1, tasks))
    built = plan("  t0: {shell: x}\n" + body)
    assert len(built) == tasks
    assert built[f"t{tasks - 1}"].dependencies[0].source == f"t{tasks // 2 - 1}"
    assert gc.isenabled()


@pytest.mark.parametrize("tasks", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_large_plan_loads_whatever_the_order_of_parents(tasks: int) -> None:
    """Three parents each, far and near and in any order: what would be slow if each had to repair the order."""
    chance = random.Random(1)
    body = ""
    for number in range(1, tasks):
        parents = [f"t{parent}" for parent in {number - 1, number // 2, chance.randrange(number)}]
        chance.shuffle(parents)
        body += f"  t{number}: {{shell: x, after: [{', '.join(parents)}]}}\n"
    built = plan("  t0: {shell: x}\n" + body)
    assert built.topological()[-1] == f"t{tasks - 1}"


@pytest.mark.parametrize("tasks", [3_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_plan_in_reverse_order_loads_as_well(tasks: int) -> None:
    body = "".join(f"  t{n}: {{shell: x, after: t{n - 1}}}\n" for n in range(tasks - 1, 0, -1))
    built = plan(body + "  t0: {shell: x}\n")
    assert [task.id for task in built][:3] == ["t0", "t1", "t2"]


def test_a_task_handles_a_failure_and_joins_any() -> None:
    built = plan(
        """\
          build: {shell: x}
          other: {shell: x}
          fix: {shell: x, handles: build}
          both: {shell: x, handles: [build, other], join: any}
          same: {shell: x, after: {build: {on: failure, handled: true, when: "status != 'x'"}}}
        """
    )
    handled = {(edge.source, edge.target): (edge.on, edge.when, edge.handled) for edge in built.dependencies}
    assert handled == {
        ("build", "fix"): ("failure", None, True),
        ("build", "both"): ("failure", None, True),
        ("other", "both"): ("failure", None, True),
        ("build", "same"): ("failure", "status != 'x'", True),
    }
    assert (built["both"].task.join, built["fix"].task.join) == ("any", "all")


def test_a_task_may_be_untrusted_and_have_a_cost_and_effects() -> None:
    task = only("{shell: x, untrusted: true, cost: 2.5, effects: [spends]}")
    assert (task.untrusted, task.cost, task.effects) == (True, 2.5, {"spends"})
    assert only("{shell: x}").to_json() == {"id": "it", "shell": "x"}
    invalid, mistakes = examine("asterism: 1\ntasks:\n  a: {shell: x, cost: -1, effects: [flies]}\n", "plan")
    assert (invalid, len(mistakes)) == (None, 2)


@pytest.mark.parametrize(
    ("head", "overlap"),
    [("", None), ("overlap: skip", ("skip", 1)), ("overlap: queue\nparallel: 3", ("queue", 3))],
)
def test_overlap_and_how_many_run_before_it_counts(head: str, overlap: tuple[str, int] | None) -> None:
    assert plan_file(f"asterism: 1\n{head}\ntasks: {{a: {{argv: [a]}}}}\n").constellation.overlap == overlap


BRANCHES = """\
asterism: 1
id: "ci-{params.ref}"
params: {ref: {type: text}}
overlap: {key: "tests {params.ref} {tick.date}", policy: replace}
parallel: 2
tasks: {a: {shell: "true"}}
"""


def test_id_and_key_may_name_parameters_and_the_key_a_tick() -> None:
    made = plan_file(BRANCHES, params={"ref": "main"}, tick="2026-11-17").constellation
    assert (made.id, made.source, made.overlap) == ("ci-main", "ci-main", ("replace", 2, "tests main 2026-11-17"))
    made = plan_file(BRANCHES, params={"ref": "main"}, scheduled=True).constellation
    assert made.overlap == ("replace", 2, "tests main {tick.date}")
    assert examine(BRANCHES, "plan", params=GivenParameters(required=False))[1] == []


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (
            'id: "ci-{ref}"',
            "id has no placeholder {ref}: it may name parameters, such as {params.ref}, and nothing else",
        ),
        ('id: "ci-{tick}"', "id has no placeholder {tick}: it may name parameters, such as {params.ref}, and nothing"),
        ('id: "ci-{params.nil}"', "id {params.nil} has no value: params has no 'nil'"),
        ('id: "{params.long}"', "id must have at most 200 printable characters"),
        (
            'overlap: {key: "{item}", policy: skip}',
            "overlap.key has no placeholder {item}: it may name parameters, such as",
        ),
        ('overlap: {key: "{tick}", policy: skip}', "overlap.key uses the tick of a schedule; give one to run it now"),
        ("overlap: sometimes", "overlap must be 'skip', 'queue' or 'replace', not 'sometimes'"),
        ("overlap: {key: a, policy: allow}", "overlap.policy must be 'skip', 'queue' or 'replace', not 'allow'"),
    ],
)
def test_what_an_id_or_key_may_not_name(head: str, text: str) -> None:
    _, mistakes = examine(f"asterism: 1\n{head}\nparams: {{long: {'x' * 201}}}\ntasks: {{a: {{shell: a}}}}\n", "plan")
    assert [(mistake.line, mistake.text[: len(text)]) for mistake in mistakes] == [(2, text)]


def test_how_many_run_means_nothing_without_overlap() -> None:
    _, [mistake] = examine("asterism: 1\nparallel: 3\ntasks: {a: {argv: [a]}}\n", "plan")
    text = "parallel is how many plans run before overlap counts: add overlap: skip, queue or replace"
    assert (mistake.line, mistake.text) == (2, text)
