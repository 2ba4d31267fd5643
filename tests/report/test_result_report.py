"""A result becomes a report: bars, cycles, holds, rows, edits and stories, and figures that are the summary's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from asterism import Constellation, ConstellationView, EditBatch, Event, LocalDevice, Orchestrator, Result, Task, edits
from asterism.core.history import PlanEntry
from asterism.report import Report
from asterism.report.result_report import PlanOrigin, Recording, execution_bars, report_of, write_report
from asterism.report.result_summary import failure_reasons, figures, result_json, summary_lines
from asterism.testing.virtual_time import SimLoop


async def work(seconds: float = 1.0) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def fail() -> None:
    await asyncio.sleep(1.0)
    raise RuntimeError("no luck")


def simulated(plan: Constellation, devices: Sequence[LocalDevice], **options: Any) -> tuple[Result, Recording]:
    """Run a plan in virtual time: times come out exact."""

    async def body() -> tuple[Result, Recording]:
        orchestrator = Orchestrator(devices, seed=1, **options)
        recording = Recording(plan, orchestrator.events)
        result = await orchestrator.run(plan)
        recording.close()
        return result, recording

    loop = SimLoop()
    try:
        return loop.run_until_complete(body())
    finally:
        loop.close()


def repaired() -> tuple[Result, Report]:
    """`build` fails and is replaced; `pdf` and `proof` are taken out; one answer is rejected first."""
    plan = Constellation("release")
    plan.add(Task("fetch", call=work))
    plan.add(Task("build", call=fail, retries=1, backoff=0.0), "fetch")
    plan.add(Task("pack", call=work, description="pack it"), "build")
    plan.add(Task("pdf", call=work), "pack")
    plan.add(Task("proof", call=work), "pdf")

    async def repair(view: ConstellationView, events: Sequence[Event]) -> EditBatch | None:
        await asyncio.sleep(0.5)
        if events[-1].kind == "task_failed":
            return EditBatch((edits.RemoveTask("nothing"),), reason="a slip")
        if events[-1].kind != "edit_rejected":
            return None
        return EditBatch(
            (
                edits.AddTask(Task("rebuild", call=work)),
                edits.AddDependency("rebuild", "pack"),
                edits.RemoveDependency("build", "pack"),
                edits.RemoveTask("pdf", dependents="remove"),
            ),
            reason="build again; and no PDF",
        )

    result, recording = simulated(plan, [LocalDevice("laptop", slots=1)], editor=repair)
    return result, report_of(result, recording)


def near(value: float, wanted: float) -> bool:
    return abs(value - wanted) < 1e-3


def test_every_execution_is_a_bar() -> None:
    _, report = repaired()
    told = [(bar.task, bar.outcome, round(bar.start - report.started_at, 2)) for bar in report.executions]
    assert told == [
        ("fetch", "completed", 0.0),
        ("build", "failed", 1.5),
        ("build", "failed", 2.5),
        ("rebuild", "completed", 4.5),
        ("pack", "completed", 6.0),
    ]
    assert {(bar.device, bar.slot) for bar in report.executions} == {("laptop", 1)}


def test_cycles_and_holds() -> None:
    _, report = repaired()
    assert [(cycle.id, cycle.triggers, cycle.outcome, cycle.edits) for cycle in report.cycles] == [
        (1, ("fetch",), "empty", 0),
        (2, ("build",), "accepted", 4),
        (3, ("rebuild",), "empty", 0),
        (4, ("pack",), "empty", 0),
    ]
    assert near(report.cycles[1].closed - report.cycles[1].opened, 1.0)
    assert [(hold.task, hold.cycle) for hold in report.holds] == [("build", 1), ("pack", 3)]


def test_tasks_that_were_removed_are_still_listed_and_drawn_below_what_they_waited_for() -> None:
    result, report = repaired()
    rows = {row.id: row for row in report.tasks}
    assert "pdf" not in result.plan
    assert rows["pdf"].status == rows["proof"].status == "removed"
    assert "build again; and no PDF" in rows["pdf"].reason
    drawn_tasks = {drawn_task.id: drawn_task.status for drawn_task in report.picture.tasks}
    assert drawn_tasks == {
        "fetch": "completed",
        "build": "failed",
        "pack": "completed",
        "rebuild": "completed",
        "pdf": "removed",
        "proof": "removed",
    }
    assert {("pack", "pdf"), ("pdf", "proof")} <= {(line.source, line.target) for line in report.picture.edges}


def test_rows_tell_how_each_task_ended() -> None:
    _, report = repaired()
    rows = {row.id: row for row in report.tasks}
    assert (rows["build"].status, rows["build"].attempts, rows["build"].reason) == (
        "failed",
        2,
        "RuntimeError: no luck",
    )
    assert (rows["pack"].value, rows["pack"].device) == ("done", "laptop")
    stories = dict(report.stories)
    assert [line.what for line in stories["build"]] == ["started", "attempt failed", "started", "failed"]


def test_edits_are_shown_with_author_reason_and_outcome() -> None:
    _, report = repaired()
    rejected, accepted = report.edits
    assert (rejected.outcome, rejected.version, rejected.author) == ("rejected", None, "repair")
    assert "there is no task 'nothing'" in rejected.violations[0]
    assert (accepted.outcome, accepted.version, accepted.author) == ("accepted", 1, "repair")
    assert accepted.reason == "build again; and no PDF"
    assert accepted.operations == (
        "add task 'rebuild'",
        "add dependency 'rebuild' -> 'pack' on success",
        "remove dependency 'build' -> 'pack'",
        "remove task 'pdf' and what depends on it",
    )


def test_a_report_without_a_recording_knows_less_and_does_not_fail() -> None:
    result, _ = repaired()
    report = report_of(result)
    [accepted] = report.edits
    assert (accepted.version, accepted.author, accepted.outcome) == (1, "repair", "accepted")
    assert "add task 'rebuild'" in accepted.operations[0]


def test_an_edit_made_straight_on_the_plan_is_in_the_report_too() -> None:
    plan = Constellation("release")

    async def change() -> None:
        plan.edit([edits.AddTask(Task("more", call=work))], author="me", reason="why not")

    plan.add(Task("change", call=change))
    result, recording = simulated(plan, [LocalDevice("laptop")])
    [accepted] = report_of(result, recording).edits
    assert (accepted.version, accepted.author) == (1, "me")


def test_figures_are_those_of_the_summary() -> None:
    result, report = repaired()
    told = dict(figures(result))
    assert told["State"] == "partially failed"
    assert told["Tasks"] == "3 completed, 1 failed"
    assert told["Makespan"] == "7.5 s"
    assert (told["Lower bound"], told["Critical path L"], told["Path"]) == ("5.0 s", "3.0 s", "fetch → build")
    assert told["Total work W"] == "5.0 s"
    assert told["Parallelism W/L"] == "1.67"
    assert told["Time under hold"] == "1.0 s"
    assert (told["Edits accepted"], told["Edits rejected"], told["Edit cycles"]) == ("1", "1", "4")
    assert dict(report.figures).items() <= told.items()
    assert [re.split(r"  +", line.plain)[0] for line in summary_lines(result)] == list(told)
    assert failure_reasons(result) == ["build failed: RuntimeError: no luck"]


def test_json_has_the_same_facts() -> None:
    result, _ = repaired()
    told = result_json(result)
    assert (told["state"], told["exit_code"], told["version"]) == ("partially_failed", 2, 1)
    assert told["summary"]["edits_rejected"] == 1
    assert told["tasks"]["pack"]["value"] == "done"
    assert told["tasks"]["build"]["reason"] == "RuntimeError: no luck"


def test_provisional_and_revoked_executions() -> None:
    plan = Constellation("release")
    plan.add(Task("one", call=work))
    plan.add(Task("two", call=work, revocable=True), "one")
    plan.add(Task("three", call=work, revocable=True), "two")

    async def late(view: ConstellationView, events: Sequence[Event]) -> EditBatch | None:
        await asyncio.sleep(0.5)
        first = any(getattr(event, "task_id", "") == "one" for event in events)
        return EditBatch((edits.UpdateTask("two", description="changed"),)) if first else None

    result, recording = simulated(plan, [LocalDevice("laptop")], editor=late, policy="speculative")
    bars = [(bar.task, bar.outcome, bar.provisional) for bar in report_of(result, recording).executions]
    assert bars == [
        ("one", "completed", False),
        ("two", "revoked", True),
        ("two", "completed", False),
        ("three", "completed", True),
    ]


def story(*entries: tuple[float, str, str]) -> list[PlanEntry]:
    return [PlanEntry(at, what, task, "laptop" if what.startswith("started") else "") for at, what, task in entries]


def test_slots_are_given_greedily() -> None:
    bars = execution_bars(
        story(
            (0, "started", "a"),
            (0, "started", "b"),
            (1, "completed", "a"),
            (1, "started", "c"),
            (2, "started", "d"),
            (3, "completed", "b"),
            (4, "failed", "c"),
        ),
        5.0,
        {},
    )
    assert [(bar.task, bar.slot, bar.end, bar.outcome) for bar in bars] == [
        ("a", 1, 1, "completed"),
        ("b", 2, 3, "completed"),
        ("c", 1, 4, "failed"),
        ("d", 3, 5.0, "cancelled"),
    ]


def test_an_execution_is_shown_on_the_device_that_it_was_in_the_end() -> None:
    told = story((0, "started", "a"), (1, "put back", "a"), (2, "started", "a"), (2, "started", "b"))
    bars = execution_bars(told, 5.0, {"a": "kitchen"})
    assert [(bar.task, bar.device) for bar in bars] == [("a", "laptop"), ("a", "kitchen"), ("b", "laptop")]


def test_what_the_story_says_of_executions_that_end_in_odd_ways() -> None:
    bars = execution_bars(
        story(
            (0, "started", "a"),
            (1, "put back", "a"),
            (2, "started", "a"),
            (3, "cancelled", "a"),
            (3, "abandoned", "a"),
            (4, "late result refused", "a"),
            (0, "started provisionally", "b"),
            (1, "completed provisionally", "b"),
            (2, "revoked", "b"),
            (0, "started provisionally", "c"),
            (1, "completed provisionally", "c"),
            (2, "confirmed", "c"),
            (2, "completed", "c"),
            (9, "cancelled", "never-started"),
        ),
        5.0,
        {},
    )
    assert [(bar.task, bar.start, bar.end, bar.outcome) for bar in bars] == [
        ("a", 0, 1, "cancelled"),
        ("b", 0, 1, "revoked"),
        ("c", 0, 1, "completed"),
        ("a", 2, 3, "cancelled"),
    ]


def test_values_are_shown_in_short() -> None:
    plan = Constellation("values")
    values: dict[str, Any] = {"text": "short", "long": "x" * 1000, "list": list(range(1000)), "none": None}

    def giving(value: Any) -> Callable[[], Any]:
        async def give() -> Any:
            return value

        return give

    for name, value in values.items():
        plan.add(Task(name, call=giving(value)))
    result, recording = simulated(plan, [LocalDevice("laptop")])
    shown = {row.id: row.value for row in report_of(result, recording).tasks}
    assert shown["text"] == "short"
    assert shown["none"] == ""
    assert len(shown["long"]) < 200
    assert shown["list"].startswith("[0, 1, 2")
    assert len(shown["list"]) < 100


def test_the_page_is_written(tmp_path: Path) -> None:
    plan = Constellation("release")
    plan.add(Task("a", call=work))
    result, recording = simulated(plan, [LocalDevice("laptop")])
    write_report(tmp_path / "report.html", result, recording)
    assert "<h1>release</h1>" in (tmp_path / "report.html").read_text("utf-8")


def test_a_hundred_reasons_are_cut() -> None:
    plan = Constellation("release")
    for number in range(100):
        plan.add(Task(f"t{number}", call=fail))
    result, _ = simulated(plan, [LocalDevice("laptop")])
    told = failure_reasons(result)
    assert len(told) == 21
    assert told[-1] == "and 80 more"


async def send(token: str) -> None:
    """Uses a secret."""


def test_parameters_are_in_the_report_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the value of a parameter is masked, and so is a parameter that its name calls a secret."""
    monkeypatch.setenv("MAIL_TOKEN", "hunter2hunter2")
    plan = Constellation("release")
    plan.add(Task("mail", call=send, inputs={"token": {"secret": "MAIL_TOKEN"}}))
    result, _ = simulated(plan, [LocalDevice("laptop")])
    params = {
        "day": "2026-11-19",
        "count": 3,
        "places": ["a", "b"],
        "url": "https://x/hunter2hunter2",
        "db_password": "x",
        "DB_PASS": "x",
        "db": {"host": "h", "password": "hunter22", "hosts": [{"api_key": "hunter22"}]},
        "mirror": "https://user:hunter22@h/x",
        "mirrors": ["https://user:hunter22@h/x", "postgresql://user:hunter22@h/x"],
    }
    report = report_of(result, origin=PlanOrigin("nightly.yaml", params))
    assert report.file == "nightly.yaml"
    assert report.params == (
        ("day", "2026-11-19"),
        ("count", "3"),
        ("places", '["a", "b"]'),
        ("url", "https://x/[secret]"),
        ("db_password", "[secret]"),
        ("DB_PASS", "[secret]"),
        ("db", '{"host": "h", "password": "[secret]", "hosts": [{"api_key": "[secret]"}]}'),
        ("mirror", "https://h/x"),
        ("mirrors", '["https://h/x", "postgresql://user:***@h/x"]'),
    )
