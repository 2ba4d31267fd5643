"""Python functions as the work of a run: what they get, what they may return, and what becomes of those that do not
stop."""

from __future__ import annotations

import asyncio
import datetime
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from device_jobs import double

from asterism.core.errors import NotJson
from asterism.core.run.run import Assignment, Progress, Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.executor import LimitReached
from asterism.fleet.device.functions import CurrentRun, RunStopped
from tests.fleet.device.device_scenes import Reports, execute, executors
from tests.process_scenes import soon_async


def function(call: Any, **options: Any) -> Workflow:
    return Workflow("work", call=call, **options)


def test_a_function_gets_its_inputs_by_name_wherever_it_runs() -> None:
    assert execute(function("device_jobs:double"), {"n": 4, "unused": 1}) == 8
    assert execute(function("device_jobs:triple"), {"n": 4}) == 12
    assert execute(function("device_jobs:Jobs.inner"), {"n": 4}) == 4
    assert execute(function(double), {"n": 4}) == 8
    assert execute(function(lambda **inputs: inputs), {"a": 1, "run": 2}) == {"a": 1, "run": 2}


@pytest.mark.parametrize("value", [5, None, "text", [["a"]], {"a": 1}])
def test_an_input_that_is_only_named_like_the_list_of_results_is_one_like_any_other(value: Any) -> None:
    inputs = {"a": 1, "$results": value}
    assert execute(function(lambda **inputs: inputs), inputs) == inputs
    assert execute(function(lambda results: results), inputs) == inputs


def test_a_plain_function_runs_in_a_thread_and_a_coroutine_on_the_loop() -> None:
    async def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert execute(function(here)) is True
    assert execute(function(lambda: threading.current_thread() is threading.main_thread())) is False
    assert execute(function(lambda: here())) is True


def test_a_parameter_that_nothing_fills_is_named() -> None:
    with pytest.raises(TypeError, match="double needs 'n', which the input of the run does not have"):
        execute(function("device_jobs:double"), {"m": 1})


@pytest.mark.parametrize("path", ["device_jobs:nothing", "no_such_module_anywhere:f", "device_jobs:LIMIT"])
def test_a_function_that_is_not_there_fails_and_is_named(path: str) -> None:
    with pytest.raises(ImportError, match=path.partition(":")[2] if "jobs" in path else "no_such_module_anywhere"):
        execute(function(path))


def test_a_module_is_imported_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import_module.py").write_text(
        "import threading\nwhere = threading.current_thread() is threading.main_thread()\ndef f():\n    return where\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert execute(function("slow_to_import_module:f")) is False
    finally:
        sys.modules.pop("slow_to_import_module", None)


# -- reports of a function ---------------------------------------------------------------------------------------------


def test_a_function_gets_its_attempt_and_reports_progress() -> None:
    reports = Reports()
    before = (Assignment("d", 1, 0.0, 1.0, "declined"), Assignment("d", 2, 0.0, 1.0, "timeout"))
    run = Run(
        "r9",
        "work",
        1,
        0.0,
        "test",
        function("device_jobs:reports").work,
        epoch=3,
        progress=Progress(4, 7),
        previous=before,
    )
    assert execute(function("device_jobs:reports"), reports=reports, run=run) == {
        "id": "r9",
        "epoch": 3,
        "attempt": 2,
        "progress": [4, 7],
    }
    assert reports.progress == [Progress(1, 2), Progress(2, 2)]


async def test_progress_from_any_thread_arrives_on_the_event_loop() -> None:
    where: list[int] = []

    def from_a_thread_of_its_own(run: CurrentRun) -> None:
        thread = threading.Thread(target=run.report, args=(1,))
        thread.start()
        thread.join()

    async def on_the_loop(run: CurrentRun) -> int:
        run.report(2)
        return len(where)  # reported at once

    made = executors()
    for call in (from_a_thread_of_its_own, on_the_loop):
        reports = Reports().work(function(call))
        work = reports._replace(on_progress=lambda progress: where.append(threading.get_ident()))
        value = await made.execute(work)
    made.close()
    assert int(value) == 2
    assert where == [threading.get_ident()] * 2


@pytest.mark.parametrize("step", [-1, 1.5, True, "1", None, 10**16])
def test_progress_that_is_no_count_is_refused(step: Any) -> None:
    with pytest.raises(ValueError, match="whole numbers from 0 to"):
        execute(function(lambda run: run.report(5, -1) if step is None else run.report(step)))


def test_an_input_named_run_does_not_hide_the_run() -> None:
    assert execute(function(lambda run: run.id), {"run": "an input"}) == "r1"


# -- results -----------------------------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "the result is a object, which is not JSON"),
        ({"at": datetime.date(2026, 1, 1)}, r"the result\.at is a date"),
        ({1, 2}, "the result is a set"),
        (b"bytes", "the result is a bytes"),
        ([1.0, float("nan")], r"the result\[1\] is nan, which JSON cannot hold"),
        (float("-inf"), "is -inf, which JSON cannot hold"),
        ({1: 2}, "has the key 1, and JSON keys are strings"),
        (deep(201), "nested more than 200 deep"),
        ("\ud800", "cannot be written as JSON"),
        ([10**5000], r"the result\[0\] is a number with more than 4,300 digits"),
    ],
    ids=range(10),
)
def test_a_result_that_is_not_json_fails_the_work_and_says_where(value: Any, words: str) -> None:
    with pytest.raises(NotJson, match=words):
        execute(function(lambda: value))


def test_a_result_is_json_afterwards() -> None:
    assert execute(function(lambda: {"t": (1, 2), "d": deep(198)})) == {"t": [1, 2], "d": deep(198)}


# -- exceptions --------------------------------------------------------------------------------------------------------


def exits() -> None:
    sys.exit("enough")


async def exits_on_the_loop() -> None:
    sys.exit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


async def cancels_itself() -> None:
    raise asyncio.CancelledError


def stops_iterating() -> None:
    raise StopIteration


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (exits, "tried to end the process: SystemExit enough"),
        (exits_on_the_loop, "tried to end the process: SystemExit 3"),
        (interrupts, "tried to end the process: KeyboardInterrupt"),
        (cancels_itself, "cancelled itself"),
        (stops_iterating, "raised StopIteration"),
    ],
)
def test_whatever_a_function_raises_fails_its_run_and_nothing_else(call: Any, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        execute(function(call))


def test_an_error_of_its_own_is_passed_on_also_a_timeout() -> None:
    async def slow() -> None:
        raise TimeoutError("the server is slow")

    with pytest.raises(TimeoutError, match="the server is slow") as caught:
        execute(function(slow, timeout=1000.0))
    assert not isinstance(caught.value, LimitReached)


def test_a_secret_is_masked_in_errors_and_not_in_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    inputs = {"token": {"secret": "MY_TOKEN"}}
    assert execute(function(lambda token: {"t": [token]}), inputs) == {"t": ["s3cr3t-value"]}

    def fails(token: str) -> None:
        raise ValueError(f"wrong: {token}")

    with pytest.raises(ValueError, match=r"^wrong: \[secret\]$"):
        execute(function(fails), inputs)


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_coroutine_is_cancelled_and_its_limit_is_kept_in_virtual_time() -> None:
    ended: list[float] = []

    async def sleeps() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(asyncio.get_running_loop().time())

    with pytest.raises(LimitReached, match="its limit of 60 s"):
        await executors().execute(Reports().work(function(sleeps, timeout=60.0)))
    assert ended == [60.0]


@pytest.mark.virtual_time
async def test_a_coroutine_that_will_not_stop_is_left_to_itself_after_the_grace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stubborn() -> str:
        end = asyncio.get_running_loop().time() + 100
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return "too late"

    with caplog.at_level(logging.WARNING, "asterism.device"):
        made = executors(grace=5.0)
        loop = asyncio.get_running_loop()
        with pytest.raises(LimitReached):
            await made.execute(Reports().work(function(stubborn, timeout=10.0)))
        assert loop.time() == 15.0
        assert made.lingering == 1
        await asyncio.sleep(100)
        assert made.lingering == 0
    assert "does not stop" in caplog.text


async def test_a_thread_learns_that_it_should_stop_when_it_reports() -> None:
    heard: list[BaseException | bool] = []
    running, stopped = threading.Event(), threading.Event()

    def works(run: CurrentRun) -> None:
        running.set()
        while not run.stopping:
            stopped.wait(0.001)
        heard.append(run.stopping)
        try:
            run.report(1)
        except RunStopped as error:
            heard.append(error)
            raise

    made = executors(grace=30.0)
    work = asyncio.create_task(made.execute(Reports().work(function(works))))
    await soon_async(running.is_set)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert made.lingering == 0  # it was waited for
    assert heard[0] is True
    assert "r1 was taken away" in str(heard[1])


async def test_a_thread_that_does_not_stop_keeps_its_run_until_that_is_lost_and_then_its_word_does_not_count() -> None:
    running, go, done = threading.Event(), threading.Event(), threading.Event()
    said: list[str] = []

    def deaf(run: CurrentRun) -> None:
        running.set()
        go.wait()
        try:
            run.report(9)
        except RunStopped as error:
            said.append(str(error))
        done.set()

    reports, made = Reports(), executors(grace=0.01)
    work = asyncio.create_task(made.execute(reports.work(function(deaf))))
    await soon_async(running.is_set)
    work.cancel()
    done_soon, _ = await asyncio.wait([work], timeout=0.1)  # ten times the grace
    assert not done_soon, "it was handed back while it still ran: another device would have begun it"
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert made.lingering == 1
    go.set()
    await soon_async(lambda: made.lingering == 0)
    assert done.is_set()
    assert reports.progress == []
    assert said == ["run r1 was taken away"]


async def test_cancelling_twice_does_not_wait_for_the_grace() -> None:
    running, go = threading.Event(), threading.Event()

    def deaf() -> None:
        running.set()
        go.wait()

    made = executors(grace=10_000.0)
    work = asyncio.create_task(made.execute(Reports().work(function(deaf))))
    await soon_async(running.is_set)
    for _ in range(2):
        work.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await work
    go.set()
    await soon_async(lambda: made.lingering == 0)


def test_a_thread_that_reports_after_the_device_has_gone_should_stop() -> None:
    running, go = threading.Event(), threading.Event()
    said: list[BaseException] = []

    def deaf(run: CurrentRun) -> None:
        running.set()
        go.wait()
        run._stopped = False  # as if it did not know
        try:
            run.report(1)
        except RunStopped as error:
            said.append(error)

    async def main() -> threading.Thread:
        before = threading.enumerate()  # one of another test may be about to end
        made = executors(grace=0.01)
        work = asyncio.create_task(made.execute(Reports().work(function(deaf))))
        await soon_async(running.is_set)
        (thread,) = (
            candidate
            for candidate in threading.enumerate()
            if candidate.name == "asterism-deaf" and candidate not in before
        )
        for _ in range(2):
            work.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await work
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
        return thread

    thread = asyncio.run(main())
    go.set()
    thread.join()
    assert len(said) == 1
