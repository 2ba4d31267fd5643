"""A result becomes the documents of a report: tasks, executions, cycles, edits, stories, output and figures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from asterism import Constellation, ConstellationView, EditBatch, Event, LocalDevice, Orchestrator, Result, Task, edits
from asterism.report import result_report
from asterism.report.result_report import MOST_LINES, EarlierRun, PlanOrigin, Recording, report_of, write_report
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


def repaired() -> tuple[Result, Any]:
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


def executions(report: Any) -> list[Any]:
    return [change for change in report["changes"] if change["kind"] == "task" and "started_at" in change]


def test_every_execution_is_an_event() -> None:
    result, report = repaired()
    since = result.plan.started_at or 0.0
    told = [(one["task"], one["status"], round(one["started_at"] - since, 2)) for one in executions(report)]
    assert told == [
        ("fetch", "completed", 0.0),
        ("build", "failed", 1.5),
        ("build", "failed", 2.5),
        ("rebuild", "completed", 4.5),
        ("pack", "completed", 6.0),
    ]
    assert {one["device"] for one in executions(report)} == {"laptop"}


def test_cycles_and_holds() -> None:
    _, report = repaired()
    cycles = [change for change in report["changes"] if change["kind"] == "cycle"]
    assert [(one["cycle"], one["tasks"], one["what"]) for one in cycles] == [
        (cycle, [task], what)
        for cycle, task in enumerate(("fetch", "build", "rebuild", "pack"), 1)
        for what in ("opened", "closed")
    ]
    assert near(cycles[3]["at"] - cycles[2]["at"], 1.0)
    reviews = [change["task"] for change in report["changes"] if change.get("review")]
    assert reviews == ["fetch", "rebuild"], "below these tasks were held"


def test_tasks_that_were_removed_are_still_in_the_report_below_what_they_waited_for() -> None:
    result, report = repaired()
    tasks = {task["id"]: task for task in report["plan"]["tasks"]}
    assert "pdf" not in result.plan
    assert {task: document["status"] for task, document in tasks.items()} == {
        "fetch": "completed",
        "build": "failed",
        "pack": "completed",
        "rebuild": "completed",
        "pdf": "removed",
        "proof": "removed",
    }
    assert "build again; and no PDF" in tasks["pdf"]["reason"]
    edges = {(edge["source"], edge["target"]) for edge in report["plan"]["dependencies"]}
    assert {("pack", "pdf"), ("pdf", "proof")} <= edges
    assert report["tasks"]["pdf"]["story"]


def test_documents_tell_how_each_task_ended() -> None:
    _, report = repaired()
    tasks, details = {task["id"]: task for task in report["plan"]["tasks"]}, report["tasks"]
    assert (tasks["build"]["status"], tasks["build"]["attempts"]) == ("failed", 2)
    assert tasks["build"]["reason"] == "RuntimeError: no luck"
    assert (details["pack"]["result"], tasks["pack"]["device"], tasks["pack"]["name"]) == ("done", "laptop", "pack it")
    story = [line["what"] for line in details["build"]["story"]]
    assert story == ["started", "attempt failed", "started", "failed"]


def test_edits_are_shown_with_author_reason_and_outcome() -> None:
    _, report = repaired()
    [accepted], [rejected] = report["versions"]["items"], report["versions"]["rejected"]
    assert rejected["author"] == "repair"
    assert rejected["violations"][0]["rule"] == "unknown_task"
    assert "there is no task 'nothing'" in rejected["violations"][0]["message"]
    assert (accepted["version"], accepted["author"]) == (1, "repair")
    assert accepted["reason"] == "build again; and no PDF"
    assert accepted["changes"] == [
        "add task 'rebuild'",
        "add dependency 'rebuild' -> 'pack' on success",
        "remove dependency 'build' -> 'pack'",
        "remove task 'pdf' and what depends on it",
    ]


def test_a_report_without_a_recording_knows_less_and_does_not_fail() -> None:
    result, _ = repaired()
    [accepted] = report_of(result)["versions"]["items"]
    assert (accepted["version"], accepted["author"]) == (1, "repair")
    assert "add task 'rebuild'" in accepted["changes"][0]


def test_an_edit_made_straight_on_the_plan_is_in_the_report_too() -> None:
    plan = Constellation("release")

    async def change() -> None:
        plan.edit([edits.AddTask(Task("more", call=work))], author="me", reason="why not")

    plan.add(Task("change", call=change))
    result, recording = simulated(plan, [LocalDevice("laptop")])
    [accepted] = report_of(result, recording)["versions"]["items"]
    assert (accepted["version"], accepted["author"]) == (1, "me")


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
    assert dict(report["summary"]["figures"]).items() <= told.items()
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
    bars = [(one["task"], one["status"], one["provisional"]) for one in executions(report_of(result, recording))]
    assert bars == [
        ("one", "completed", False),
        ("two", "cancelled", True),
        ("two", "completed", False),
        ("three", "completed", True),
    ]


def test_values_and_output_are_shown_in_short() -> None:
    plan = Constellation("values")
    values: dict[str, Any] = {"text": "short", "long": "x" * 10_000, "list": list(range(10_000)), "none": None}

    def giving(value: Any) -> Callable[[], Any]:
        async def give() -> Any:
            for number in range(600):
                print(number)
            return value

        return give

    for name, value in values.items():
        plan.add(Task(name, call=giving(value)))
    result, recording = simulated(plan, [LocalDevice("laptop")])
    report = report_of(result, recording)
    shown = {task: details["result"] for task, details in report["tasks"].items()}
    assert (shown["text"], shown["none"]) == ("short", None)
    assert shown["long"].endswith("… (10,000 characters)")
    assert shown["list"].startswith("[0, 1, 2")
    assert len(shown["list"]) < 1000
    [attempt] = report["logs"]["text"]
    assert (len(attempt["lines"]), attempt["left_out"], attempt["lines"][-1][1]) == (MOST_LINES, 100, "599")


def test_the_output_of_all_tasks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_report, "LARGEST_OUTPUT", 1000)

    async def talk() -> None:
        print("x" * 900)

    plan = Constellation("talks")
    for number in range(4):
        plan.add(Task(f"t{number}", call=talk))
    result, _ = simulated(plan, [LocalDevice("laptop")])
    logs = report_of(result)["logs"]
    assert [(len(attempt["lines"]), attempt["left_out"]) for [attempt] in logs.values()] == [(1, 0)] * 2 + [(0, 1)] * 2


def test_how_long_it_took_is_compared_with_earlier_plans_of_the_file() -> None:
    plan = Constellation("release")
    plan.add(Task("a", call=work))
    result, _ = simulated(plan, [LocalDevice("laptop")])

    def took(*seconds: float | None) -> str:
        runs = [
            EarlierRun(f"r{turn}", "completed", 0.0, end) if end else EarlierRun("failed", "failed", 0.0, 9.0)
            for turn, end in enumerate(seconds)
        ]
        summary = report_of(result, origin=PlanOrigin("release.yaml", {}, runs))["summary"]
        assert [run["took"] for run in summary["earlier"]] == [end or 9.0 for end in seconds]
        return str(summary["took"])

    assert took() == "after 1.0 s"
    assert took(None) == "after 1.0 s", "it says nothing that one failed sooner"
    assert took(0.5) == "after 1.0 s, 500 ms longer than the earlier run that completed (500 ms)"
    assert took(1.01, None) == "after 1.0 s, about as long as the earlier run that completed (1.0 s)"
    assert took(2.0, 3.0, 9.0) == "after 1.0 s, 2.0 s shorter than the median of 3 earlier runs that completed (3.0 s)"


def test_the_file_is_written(tmp_path: Path) -> None:
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
    assert report["summary"]["file"] == "nightly.yaml"
    assert tuple(report["summary"]["params"]) == (
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


def test_definitions_are_in_the_report_without_what_looks_like_a_secret() -> None:
    """A report is a file that people send to others."""
    plan = Constellation("release")
    plan.add(
        Task(
            "ask",
            http={
                "url": "https://ann:hunter22@example.org/x",
                "headers": {"Api-Token": "hunter22", "Authorization": "Basic hunter22"},
            },
        )
    )
    plan.add(Task("load", argv=["load", "postgresql://ann:hunter22@db/x"], env={"DB_PASSWORD": "hunter22", "DAY": "1"}))
    plan.add(Task("call", call=work))
    report = report_of(Result(plan, [], None, "scoped"))
    assert "hunter22" not in str(report)
    assert report["tasks"]["load"]["definition"]["env"] == {"DB_PASSWORD": "[secret]", "DAY": "1"}
    assert report["tasks"]["call"]["definition"]["id"] == "call"
