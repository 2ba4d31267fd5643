"""The tick of a schedule in a plan file: where a task may use it, and what happens without one."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from asterism import Constellation, InvalidTick, LocalDevice, Orchestrator, Task, with_tick
from asterism.execution.plan_tick import tasks_with_tick
from asterism.planfile import BadPlan, GivenParameters, examine, load

EVERYWHERE = """\
asterism: 1
params: {folder: "/data/{tick.date}", levels: {type: list, default: ["{tick.date}", b]}}
tasks:
  first:
    argv: [fetch, "{tick}", "{x}", "{{tick}}"]
    inputs: {x: "{tick.end}", deep: [{day: "{tick.date}"}]}
    env: {SINCE: "{tick.previous}"}
    cwd: "{params.folder}"
    description: "for {tick.date}, and {{tick.date}} as it is"
    device: {needs: ["day-{tick.date}"]}
  second:
    http: {url: "https://example.org/{tick}"}
    after: {first: {when: 'result.day == tick.date'}}
  each: {foreach: "{params.levels}", argv: [each, "{item}"]}
  of_results:
    foreach: {from: first, select: "result[tick.date]"}
    argv: [one, "{item}", "{tick.date}", "{params.folder}"]
  words: {argv: [cat, "{params.folder}/{{x}}"]}
  own: {argv: [echo, "{tick}"], inputs: {tick: mine}}
"""


def ticked(text: str = EVERYWHERE, tick: str | None = "2026-11-17") -> Constellation:
    plan_file, mistakes = examine(text, "plan", tick=tick, fleet=True)
    assert plan_file is not None, mistakes
    return plan_file.constellation


def complaints(text: str, tick: str | None = None) -> list[str]:
    plan_file, mistakes = examine(f"asterism: 1\n{dedent(text)}", "plan", tick=tick, fleet=True)
    assert plan_file is None or tick is not None
    return [mistake.format("plan.yaml") for mistake in mistakes]


def test_a_tick_may_stand_wherever_a_parameter_may() -> None:
    first = ticked()["first"].task
    assert first.argv == ("fetch", "2026-11-17T00:00:00+00:00", "{x}", "{{tick}}")
    assert first.inputs == {"x": "2026-11-18T00:00:00+00:00", "deep": [{"day": "2026-11-17"}]}
    assert first.env == {"SINCE": "2026-11-16T00:00:00+00:00"}
    assert (first.cwd, first.needs) == ("/data/2026-11-17", {"day-2026-11-17"})
    assert first.description == "for 2026-11-17, and {tick.date} as it is"
    second = ticked()["second"]
    assert second.task.http == {"url": "https://example.org/2026-11-17T00%3A00%3A00%2B00%3A00"}
    assert [dependency.when for dependency in second.dependencies] == ['result.day == "2026-11-17"']


def test_elements_of_lists_may_use_a_tick_and_so_may_groups_over_results() -> None:
    plan = ticked()
    assert [plan[f"each[{index}]"].task.argv for index in (0, 1)] == [("each", "2026-11-17"), ("each", "b")]
    foreach = plan["of_results"].task.foreach
    assert foreach is not None
    assert foreach["select"] == 'result["2026-11-17"]'
    assert foreach["template"]["argv"] == ["one", "{item}", "2026-11-17", "{params.folder}"]
    assert foreach["params"]["folder"] == "/data/2026-11-17"


def test_the_value_of_a_parameter_may_use_a_tick_but_no_other_placeholder() -> None:
    assert ticked()["words"].task.argv == ("cat", "/data/2026-11-17/{{x}}")
    text = "asterism: 1\nparams: {p: '{tick.date} {x}'}\ntasks:\n  a: {http: {url: 'https://x.org/{params.p}'}}\n"
    assert ticked(text)["a"].task.http == {"url": "https://x.org/2026-11-17%20%7Bx%7D"}


def test_an_input_of_that_name_is_the_input() -> None:
    assert ticked()["own"].task.argv == ("echo", "{tick}")
    own = "asterism: 1\ntasks:\n  own: {argv: [echo, '{tick}'], inputs: {tick: mine}}\n"
    assert ticked(own, tick=None)["own"].task.argv == ("echo", "{tick}")


def test_a_copy_for_a_tick_leaves_the_plan_as_it_is() -> None:
    plan_file, _ = examine(EVERYWHERE, "plan", scheduled=True, fleet=True)
    assert plan_file is not None
    plan = plan_file.constellation
    days = [with_tick(plan, day)["first"].task.cwd for day in ("2026-11-17", "2026-11-18")]
    assert days == ["/data/2026-11-17", "/data/2026-11-18"]
    assert (plan["first"].task.cwd, plan.tick) == ("/data/{tick.date}", {})
    assert list(with_tick(plan, "2026-11-17").nodes) == list(plan.nodes)


@pytest.mark.parametrize(
    "task",
    [
        "{argv: [fetch, '{tick}']}",
        "{shell: 'echo $ASTERISM_TICK_DATE'}",
        "{shell: x, inputs: {day: '{tick.date}'}}",
        "{foreach: [1], argv: [fetch, '{tick}']}",
        "{shell: x, after: {other: {when: 'result == tick.date'}}}",
        "{foreach: {from: other}, shell: 'echo $ASTERISM_TICK'}",
    ],
)
def test_a_plan_that_needs_a_tick_does_not_run_without_one(task: str) -> None:
    text = f"tasks:\n  other: {{shell: x}}\n  a: {task}\n  b: {{argv: ['{{tick}}']}}\n"
    wanted = "plan.yaml:4: task 'a': uses the tick of a schedule; give one to run it now: --tick 2026-11-17"
    assert complaints(text) == [wanted]
    assert complaints(text, "2026-11-17") == []


def test_a_plan_that_only_mentions_the_word_needs_no_tick() -> None:
    text = "asterism: 1\ntasks:\n  a: {shell: 'for tick in 1 2; do echo ${tick}; done'}\n  tick: {argv: [echo, tick]}\n"
    assert list(tasks_with_tick(ticked(text, tick=None))) == []


def test_a_plan_is_checked_and_drawn_without_a_tick() -> None:
    plan_file, mistakes = examine(EVERYWHERE, "plan", params=GivenParameters(required=False), fleet=True)
    assert plan_file is not None
    assert mistakes == []


def test_mistakes() -> None:
    assert complaints(
        """\
        tasks:
          a: {argv: ["{tick.day}"]}
          b: {shell: "echo {tick.date}"}
          c: {shell: x, after: {a: {when: "tick.day == 1"}}}
        """
    ) == [
        "plan.yaml:3: task 'a': {tick.day}: there is no tick.day; there is tick, tick.date, tick.previous, "
        "tick.end, tick.zone",
        "plan.yaml:4: task 'b': a shell line takes values as variables: write \"$ASTERISM_TICK_DATE\" instead of "
        "{tick.date}",
        "plan.yaml:5: task 'c': the condition 'tick.day == 1' is not valid: there is no tick.day; there is tick, "
        "tick.date, tick.previous, tick.end, tick.zone",
    ]


def test_a_file_is_loaded_for_a_tick(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("asterism: 1\ntasks:\n  a: {argv: [echo, '{tick.date}']}\n")
    assert load(str(path), tick="2026-11-17").constellation["a"].task.argv == ("echo", "2026-11-17")
    assert load(str(path), scheduled=True).constellation["a"].task.argv == ("echo", "{tick.date}")
    with pytest.raises(BadPlan, match="uses the tick of a schedule"):
        load(str(path))
    with pytest.raises(InvalidTick, match="'5x' is not a valid tick"):
        load(str(path), tick="5x")


def test_commands_and_functions_learn_their_tick() -> None:
    plan = Constellation("p")
    plan.add(Task("variables", shell='echo "$ASTERISM_TICK $ASTERISM_TICK_DATE"'))
    plan.add(Task("function", call=lambda tick: [tick, tick.date]))
    plan.add(Task("own", call=lambda tick: tick, inputs={"tick": 3}))
    plan.add(Task("word", argv=["echo", "{tick.previous}"]))
    result = Orchestrator([LocalDevice("device")]).run_sync(with_tick(plan, "2026-11-17"))
    assert result["variables"].value == "2026-11-17T00:00:00+00:00 2026-11-17"
    assert result["function"].value == ["2026-11-17T00:00:00+00:00", "2026-11-17"]
    assert (result["own"].value, result["word"].value) == (3, "2026-11-16T00:00:00+00:00")
