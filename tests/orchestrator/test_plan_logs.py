"""What tasks print is kept with the plan: by task, attempt, stream and time, bounded, with secrets masked."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Result, Task
from asterism.core.errors import UnknownTask
from asterism.orchestrator import result as plan_result
from asterism.orchestrator.result import PlanLogs


async def run(*tasks: Task, slots: int | None = None, **options: Any) -> Result:
    plan = Constellation("printing")
    for task in tasks:
        plan.add(task)
    return await Orchestrator([LocalDevice("here", slots)], **options).run(plan)


def printed(result: Result, task_id: str) -> list[tuple[str, str]]:
    return [(line.stream, line.text) for log in result.logs(task_id) for line in log.lines]


async def test_output_of_a_command_is_kept_with_its_streams() -> None:
    result = await run(Task("build", shell="echo compiled; echo 'broken: line 3' >&2; exit 4"))
    assert sorted(printed(result, "build")) == [("stderr", "broken: line 3"), ("stdout", "compiled")]
    (log,) = result.logs("build")
    assert log.attempt == 1
    assert all((result.plan.started_at or 0) <= line.at <= (result.plan.ended_at or 0) for line in log.lines)
    with pytest.raises(UnknownTask):
        result.logs("other")


async def test_functions_that_run_at_once_have_their_own_logs(capsys: pytest.CaptureFixture[str]) -> None:
    met = asyncio.Barrier(2)

    def coroutine(name: str) -> Any:
        async def work() -> None:
            print(name, 1)
            await met.wait()
            await asyncio.create_task(later(name))

        return work

    async def later(name: str) -> None:
        print(name, 2, file=sys.stderr)

    def thread(logger: logging.Logger) -> None:
        print("in a thread")
        own = threading.Thread(target=lambda: logger.warning("in its %s", "own"))
        own.start()
        own.join()
        logger.debug("not shown")

    result = await run(
        Task("a", call=coroutine("a")), Task("b", call=coroutine("b")), Task("thread", call=thread), Task("silent")
    )
    assert result.exit_code == 0
    assert printed(result, "a") == [("stdout", "a 1"), ("stderr", "a 2")]
    assert printed(result, "b") == [("stdout", "b 1"), ("stderr", "b 2")]
    assert printed(result, "thread") == [("stdout", "in a thread"), ("log", "WARNING in its own")]
    assert result.logs("silent") == []
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["a 1", "b 1", "in a thread"]  # printed as before
    assert sorted(shown.err.splitlines()) == ["a 2", "b 2"]


async def test_an_input_named_logger_is_an_input() -> None:
    result = await run(Task("f", call=lambda logger: logger, inputs={"logger": "axe"}))
    assert result["f"].value == "axe"


async def test_each_attempt_has_its_own_log() -> None:
    attempts = iter(("first", "second"))

    async def work() -> None:
        name = next(attempts)
        print(name)
        if name == "first":
            raise RuntimeError("again")

    result = await run(Task("f", call=work, retries=1, backoff=0.0))
    assert [(log.attempt, log.lines[0].text) for log in result.logs("f")] == [(1, "first"), (2, "second")]
    assert [len(log.traceback) > 0 for log in result.logs("f")] == [True, False]


async def test_what_an_editor_prints_is_not_output_of_the_task_that_ended() -> None:
    async def editor(view: Any, events: Any) -> None:
        print("editing")

    async def work() -> None:
        print("working")

    result = await run(Task("f", call=work), editor=editor)
    assert printed(result, "f") == [("stdout", "working")]


async def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "correct-horse-battery")
    monkeypatch.setenv("PLAIN", "staple-of-the-day")

    async def work() -> None:
        print("it is correct-horse-battery", "staple-of-the-day")

    result = await run(
        Task("f", call=work), Task("c", shell='echo "$DEPLOY_TOKEN"', env={"OTHER": {"secret": "PLAIN"}})
    )
    assert printed(result, "f") == [("stdout", "it is [secret] [secret]")]
    assert printed(result, "c") == [("stdout", "[secret]")]


async def test_output_is_bounded_and_the_gap_is_marked() -> None:
    result = await run(Task("noisy", shell="seq 1 20000"), log_limit=2000)
    lines = printed(result, "noisy")
    assert (lines[0], lines[-1]) == (("stdout", "1"), ("stdout", "20000"))
    (gap,) = [text for stream, text in lines if stream == "gap"]
    assert gap == f"… {20000 - len(lines) + 1:,} lines left out …"
    assert sum(len(text) for _, text in lines) < 2100


async def test_nothing_is_captured_with_a_limit_of_zero() -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(sys.stdout)
        print("unheard")

    before = sys.stdout
    result = await run(Task("f", call=work), Task("c", shell="echo x"), log_limit=0)
    assert seen == [before]
    assert result.logs("f") == result.logs("c") == []
    with pytest.raises(ValueError, match="log_limit"):
        Orchestrator(log_limit=-1)


async def test_streams_are_restored_after_the_last_plan() -> None:
    before = sys.stdout, sys.stderr
    inside: list[object] = []

    async def nested() -> None:
        await run(Task("inner", call=work))
        inside.append(sys.stdout)

    async def work() -> None:
        print("inner")

    await run(Task("outer", call=nested))
    assert inside
    assert inside[0] is not before[0]
    assert (sys.stdout, sys.stderr) == before


async def test_a_function_that_prints_after_its_end_disturbs_nobody() -> None:
    released = threading.Event()
    done = threading.Event()

    def stubborn() -> None:
        released.wait(10)
        print("too late")
        done.set()

    result = await run(Task("f", call=stubborn, timeout=0.01), grace=0.01)
    released.set()
    await asyncio.to_thread(done.wait, 10)
    assert result.logs("f") == []


async def test_logs_of_a_running_task_can_be_read() -> None:
    printing, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        print("so far")
        printing.set()
        await done.wait()

    plan = Constellation()
    plan.add(Task("f", call=work))
    orchestrator = Orchestrator([LocalDevice("here")])
    running = asyncio.create_task(orchestrator.run(plan))
    await printing.wait()
    assert orchestrator.logs("f")[0].text == "so far\n"
    done.set()
    await running


def test_a_plan_forgets_the_oldest_logs_when_all_together_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_result, "PLAN_FACTOR", 3)
    from asterism.base.secret_mask import Mask

    logs = PlanLogs(lambda: 0.0, 1000, Mask)
    for epoch in range(10):
        logs.recorder(f"t{epoch}", epoch, 1).write("stdout", f"{epoch} {'x' * 500}\n" * 2)
        logs.close(f"t{epoch}", epoch)
    kept = [epoch for epoch in range(10) if logs.of(f"t{epoch}")]
    assert kept
    assert kept == list(range(kept[0], 10))
    assert 2 <= len(kept) <= 6


def divide(logger: Any = None) -> float:
    print("dividing", end="")
    return 1 / 0


async def test_a_function_that_fails_leaves_its_traceback_in_the_log_and_the_story(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "correct-horse-battery")

    class Composed(Exception):
        """Its message is made of what the mask cannot change."""

        def __str__(self) -> str:
            return "token correct-horse-battery"

    async def leak(token: str) -> None:
        raise Composed

    result = await run(
        Task("thread", call=divide, retries=1, backoff=0.0),
        Task("coroutine", call=leak, inputs={"token": {"secret": "DEPLOY_TOKEN"}}),
        Task("lambda", call=lambda: leak("")),
        Task("missing", call=leak),
        Task("command", shell="exit 3"),
    )
    first, second = result.logs("thread")
    assert first.lines[0].text == "dividing"
    for log in (first, second):
        assert log.traceback[0].text == "Traceback (most recent call last):"
        assert "in divide" in log.text
        assert "orchestrator/devices.py" not in log.text
        assert log.lines[-1].text == "ZeroDivisionError: division by zero"
    for task in ("coroutine", "lambda"):
        assert "in leak" in result.logs(task)[0].text
        assert "correct-horse" not in result.logs(task)[0].text
    assert result.logs("missing") == result.logs("command") == []
    story = result.story("thread")
    shown = plan_result.tracebacks_in(story, {"thread": result.logs("thread")})
    assert [story[place].what for place in shown] == ["attempt failed", "failed"]
    failed = plan_result.tasks_with_tracebacks(result.plan, result.story())
    assert sorted(failed) == ["coroutine", "lambda", "missing", "thread"]


async def test_a_traceback_of_a_clock_that_is_ahead_belongs_to_the_last_failure() -> None:
    result = await run(Task("thread", call=divide))
    story = [entry._replace(at=entry.at - 60.0) for entry in result.story("thread")]
    (text,) = plan_result.tracebacks_in(story, {"thread": result.logs("thread")}).values()
    assert text.endswith("ZeroDivisionError: division by zero")


async def test_without_logs_there_is_no_traceback() -> None:
    result = await run(Task("thread", call=divide), log_limit=0)
    assert result.logs("thread") == []
    assert result["thread"].status == "failed"
