"""``always`` and ``teardown`` in plan files: what they become, mistakes with their lines, and warnings."""

from __future__ import annotations

import pytest

from asterism.planfile.loader import examine

HEAD = """\
asterism: 1
tasks:
  create: {shell: echo created}
  load: {shell: echo loaded, after: create}
"""


def mistakes(*lines: str) -> list[tuple[int, str]]:
    plan_file, mistakes = examine(HEAD + "\n".join(f"  {line}" for line in lines) + "\n", "p")
    assert (plan_file is None) == any(not mistake.warning for mistake in mistakes)
    return [(mistake.line, mistake.text) for mistake in mistakes]


def test_a_teardown_and_always_are_dependencies() -> None:
    text = HEAD + "  drop: {shell: x, teardown: create, inputs: {name: {from: create}}}\n"
    plan_file, problems = examine(text + "  clean: {shell: x, after: {load: always}}\n", "p")
    assert problems == []
    assert plan_file is not None
    edges = [(edge.source, edge.target, edge.on) for edge in plan_file.constellation.dependencies]
    assert edges == [("create", "load", "success"), ("create", "drop", "teardown"), ("load", "clean", "always")]


ORDER = (
    "task 'drop': 'drop' is a teardown and runs however 'load' ends: write after: {load: always}, or leave it out if "
    "it is below the set-up, since a teardown runs after everything below its set-up"
)


@pytest.mark.parametrize(
    ("lines", "line", "text"),
    [
        (["drop: {shell: x, teardown: creat}"], 5, "task 'drop': tears down 'creat', but there is no such task"),
        (["drop: {shell: x, teardown: drop}"], 5, "task 'drop': tears down itself"),
        (["drop: {shell: x, teardown: [create]}"], 5, "task 'drop': teardown must be text, not a list"),
        (["drop: {shell: x, teardown: create, after: load}"], 5, ORDER),
        (["drop:", "  shell: x", "  teardown: create", "  after: {load: {on: always, when: 'true'}}"], 8, ORDER),
        (["drop: {shell: x, teardown: create, after: {create: always}}"], 5, "names 'create' twice in after and"),
        (["drop: {shell: x, teardown: create, join: any}"], 5, "is a teardown, so it cannot have join: any"),
        (["drop: {shell: x, teardown: create, foreach: [1]}"], 5, "is a teardown, so it cannot have foreach"),
        (["each: {shell: x, foreach: [1]}", "drop: {shell: x, teardown: each}"], 6, "'each', which is a group"),
        (["late: {shell: x, after: {drop: always}}", "drop: {shell: x, teardown: late}"], 6, "closes a cycle"),
    ],
)
def test_a_mistake_in_a_pair_is_reported_with_its_line(lines: list[str], line: int, text: str) -> None:
    reported = mistakes(*lines)
    assert any(line == at and text in told for at, told in reported), reported


def test_a_cleanup_that_would_be_skipped_is_warned_about() -> None:
    assert mistakes("clean: {shell: x, after: {load: completion}}") == [
        (
            5,
            "task 'clean': runs when 'load' has completed or failed, but not if 'load' never starts, for example "
            "because 'create' does not succeed; to run it in any case, write after: {load: always}",
        )
    ]


@pytest.mark.parametrize(
    "after",
    [
        "{load: always}",
        "{create: completion}",
        "{load: completion, create: success}",
        "{load: {on: completion, when: 'status == \"failed\"'}}",
    ],
)
def test_a_completion_that_does_what_it_says_gives_no_warning(after: str) -> None:
    assert mistakes(f"clean: {{shell: x, after: {after}}}") == []


def test_always_joins_branches_that_exclude_each_other() -> None:
    branches = ["yes: {shell: x, after: {load: success}}", "no: {shell: x, after: {load: failure}}"]
    assert mistakes(*branches, "end: {shell: x, after: {yes: always, no: always}}") == []


def test_a_part_of_a_plan_has_the_teardowns_of_its_set_ups() -> None:
    more = "  clean: {shell: x}\n  drop: {shell: x, teardown: create, after: {clean: always}}\n"
    plan_file, problems = examine(HEAD + more, "p", only=["load"])
    assert problems == []
    assert plan_file is not None
    assert list(plan_file.constellation.nodes) == ["create", "load", "drop"]
    assert list(plan_file.constellation.node("drop").parents) == ["create"]
