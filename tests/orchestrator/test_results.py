"""Results: passed by parameter name, by mapping and by reference; the result of a run."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from functools import partial
from typing import Any

import pytest

from asterism import AsterismError, Constellation, LocalDevice, Orchestrator, Task, TaskStatus, edits
from asterism.core.errors import NotJson, PlanFailed, UnknownTask
from asterism.orchestrator.result import covered
from tests.orchestrator import typed_plan
from tests.orchestrator.orchestrator_scenes import after, chain, deadline, failing, independent, orchestrate, span


def release() -> tuple[Constellation, Any, list[str]]:
    """The snippet of the README, with bodies: the build fails, its editor adds another one."""
    calls: list[str] = []

    async def fetch() -> dict[str, int]:
        calls.append("fetch")
        return {"sources": 3}

    async def build(fetch: dict[str, int]) -> str:  # results of upstream tasks arrive by name
        calls.append("build")
        if calls.count("build") <= 3:
            raise RuntimeError("the compiler is out of order")
        return f"built from {fetch['sources']}"

    def report() -> str:  # plain functions run in a thread
        calls.append("report")
        return threading.current_thread().name

    plan = Constellation("release")
    plan.add(Task("fetch", call=fetch))
    plan.add(Task("build", call=build, retries=2, timeout=60, backoff=0.001), after="fetch")
    plan.add(Task("report", call=report, priority="high"), after={"build": "completion"})

    async def repair(view: Any, events: Any) -> Any:  # an editor: any async function, or an object with .edit
        if any(e.kind == "task_failed" for e in events):
            return [edits.AddTask(Task("rebuild", call=build)), edits.AddDependency("fetch", "rebuild")]
        return None

    return plan, repair, calls


def check_release(result: Any, calls: list[str]) -> None:
    assert result.state == "partially_failed"
    assert result["build"].status == "failed"
    assert str(result["build"].error) == "the compiler is out of order"
    assert result["build"].attempts == 3
    assert result["rebuild"].value == "built from 3"
    assert result["report"].value.startswith("asterism-")
    assert sorted(calls) == ["build"] * 4 + ["fetch", "report"]


def test_the_snippet_runs_as_written_with_asyncio_run() -> None:
    plan, repair, calls = release()

    async def main() -> Any:
        return await Orchestrator(devices=[LocalDevice("laptop", slots=4)], editor=repair).run(plan)

    check_release(asyncio.run(main()), calls)


def test_the_snippet_runs_as_written_with_run_sync() -> None:
    plan, repair, calls = release()
    check_release(Orchestrator(devices=[LocalDevice("laptop", slots=4)], editor=repair).run_sync(plan), calls)


def test_a_value_is_that_of_the_task_that_completed() -> None:
    async def build(fetch: int) -> int:
        return fetch + 1

    result = orchestrate(chain(Task("fetch", call=after(1, 41)), Task("build", call=build)))
    assert result.state == "completed"
    assert result["build"].value == 42
    assert result.values == {"fetch": 41, "build": 42}


async def test_run_sync_inside_a_running_loop_is_refused_without_leaving_a_coroutine_behind() -> None:
    with pytest.raises(RuntimeError, match=r"running event loop|await"):
        Orchestrator().run_sync(Constellation())


# -- parameters --------------------------------------------------------------------------------------------------------


def gather(function: Any, **upstream: Any) -> Any:
    """Run ``function`` below tasks that return what ``upstream`` says."""
    plan = Constellation()
    for name, value in upstream.items():
        plan.add(Task(name, call=after(0, value)))
    plan.add(Task("last", call=function), after=list(upstream))
    result = orchestrate(plan)
    error = result["last"].error
    if error is not None:
        raise error
    return result["last"].value


def test_a_callable_receives_only_the_results_that_its_parameters_name() -> None:
    async def last(b: int) -> int:
        return b

    assert gather(last, a=1, b=2) == 2


def test_keyword_only_parameters_are_filled_too() -> None:
    async def last(*, a: int, b: int) -> int:
        return a - b

    assert gather(last, a=1, b=2) == -1


def test_double_star_gets_all_results() -> None:
    async def last(**everything: Any) -> dict[str, Any]:
        return everything

    assert gather(last, a=1, b=2) == {"a": 1, "b": 2}


def test_double_star_gets_all_results_even_under_ids_that_are_no_identifiers() -> None:
    async def last(**everything: Any) -> dict[str, Any]:
        return everything

    assert gather(last, **{"a": 1, "step-2": 2}) == {"a": 1, "step-2": 2}


def test_the_parameter_results_is_a_mapping_of_all_results_by_id() -> None:
    async def last(results: Any) -> dict[str, Any]:
        return dict(results)

    assert gather(last, **{"step-1": 1, "42": 2, "class": 3}) == {"step-1": 1, "42": 2, "class": 3}


def test_the_parameter_results_of_a_task_without_dependencies_is_empty() -> None:
    async def last(results: Any) -> dict[str, Any]:
        return dict(results)

    assert gather(last) == {}


def test_a_default_stands_when_nothing_fills_the_parameter_and_gives_way_when_something_does() -> None:
    async def last(a: int = 10, b: int = 20) -> tuple[int, int]:
        return a, b

    assert gather(last, b=2) == (10, 2)


def test_an_input_goes_before_an_upstream_result_of_the_same_name() -> None:
    async def last(a: int) -> int:
        return a

    plan = Constellation()
    plan.add(Task("a", call=after(0, 1)))
    plan.add(Task("last", call=last, inputs={"a": 5}), after="a")
    assert orchestrate(plan)["last"].value == 5


def test_an_input_may_select_a_part_of_an_upstream_result() -> None:
    async def last(count: int) -> int:
        return count

    plan = Constellation()
    plan.add(Task("a", call=after(0, {"files": {"count": 7}})))
    plan.add(Task("last", call=last, inputs={"count": {"from": "a", "select": "result.files.count"}}), after="a")
    assert orchestrate(plan)["last"].value == 7


def test_an_input_from_a_task_it_does_not_depend_on_fails_with_both_names() -> None:
    plan = Constellation()
    plan.add(Task("a", call=after(0)))
    plan.add(Task("last", call=after(0), inputs={"count": {"from": "a"}}))
    result = orchestrate(plan)
    assert result["last"].status == "failed"
    assert "'count'" in str(result["last"].error)
    assert "'a' is not a task that this one depends on" in str(result["last"].error)


def test_a_parameter_that_nothing_fills_fails_the_task_and_is_named() -> None:
    async def last(missing: int) -> None: ...

    with pytest.raises(TypeError, match="task 'last': the parameter 'missing' has no value"):
        gather(last, a=1)


def test_a_partial_a_method_and_a_callable_object_are_called_like_any_function() -> None:
    class Worker:
        async def method(self, a: int) -> int:
            return a + 1

        async def __call__(self, a: int) -> int:
            return a + 2

        __hash__ = None  # type: ignore[assignment]

    async def add(a: int, b: int) -> int:
        return a + b

    assert gather(partial(add, b=10), a=1) == 11
    assert gather(Worker().method, a=1) == 2
    assert gather(Worker(), a=1) == 3


def test_a_task_may_name_its_function_by_path() -> None:
    plan = independent(Task("last", call="asyncio:sleep", inputs={"delay": 3, "result": "slept"}))
    result = orchestrate(plan)
    assert result["last"].value == "slept"
    assert span(result, "last") == (0, 3)


@pytest.mark.parametrize("path", ["no_such_module_at_all:function", "asyncio:no_such_function", "asyncio:__name__"])
def test_a_path_that_leads_nowhere_fails_the_task_and_is_named(path: str) -> None:
    result = orchestrate(independent(Task("last", call=path)))
    assert result["last"].status == "failed"
    assert isinstance(result["last"].error, ImportError)
    assert path.split(":")[0] in str(result["last"].error)


def test_a_task_with_no_action_is_handed_to_the_device_as_it_is() -> None:
    seen: list[Any] = []
    device = LocalDevice("device", run=lambda work: seen.append((work.task.data["note"], dict(work.results))) or "done")
    plan = Constellation()
    plan.add(Task("a", call=after(0, 1)))
    plan.add(Task("b", data={"note": "hello"}), after="a")
    assert orchestrate(plan, devices=[device])["b"].value == "done"
    assert seen == [("hello", {"a": 1})]


# -- threads and references --------------------------------------------------------------------------------------------


def test_plain_functions_run_in_threads_beside_each_other() -> None:
    meeting = threading.Barrier(3)

    def meet() -> int:
        meeting.wait(timeout=300)  # passes only when all three are there
        return threading.get_ident()

    plan = independent(*(Task(name, call=meet) for name in "abc"))
    result = Orchestrator([LocalDevice("laptop", slots=3)]).run_sync(plan)
    assert result.state == "completed"
    assert len({*result.values.values(), threading.get_ident()}) == 4


def test_results_are_passed_by_reference_to_coroutines_and_to_threads() -> None:
    thing = object()

    def in_thread(source: object) -> bool:
        return source is thing

    async def on_loop(source: object) -> bool:
        return source is thing

    plan = Constellation()
    plan.add(Task("source", call=after(0, thing)))
    plan.add(Task("in_thread", call=in_thread), after="source")
    plan.add(Task("on_loop", call=on_loop), after="source")
    result = Orchestrator([LocalDevice("laptop")]).run_sync(plan)
    assert result["in_thread"].value is True
    assert result["on_loop"].value is True
    assert result["source"].value is thing


def test_an_exception_of_a_thread_is_the_error_of_the_task_itself() -> None:
    error = ValueError("from the thread")

    def broken() -> None:
        raise error

    result = Orchestrator([LocalDevice("laptop")]).run_sync(independent(Task("a", call=broken)))
    assert result["a"].error is error


@pytest.mark.parametrize("error", [StopIteration("over"), SystemExit(3), asyncio.CancelledError()])
async def test_a_thread_may_raise_exceptions_that_event_loops_reserve(error: BaseException) -> None:
    def broken() -> None:
        raise error

    result = await deadline(Orchestrator([LocalDevice("laptop")]).run(independent(Task("a", call=broken))))
    assert result.state == "failed"
    assert result["a"].error is not None


def test_a_function_is_not_kept_alive_when_its_plan_is_gone() -> None:
    def once() -> weakref.ref[Any]:
        async def work() -> None: ...

        orchestrate(independent(Task("a", call=work)))
        return weakref.ref(work)

    remembered = once()
    gc.collect()
    assert remembered() is None


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [object(), {1: "a"}, float("nan"), {"deep": [1, {2}]}, b"bytes"])
def test_a_device_that_has_to_send_results_fails_a_task_whose_result_is_not_json(value: Any) -> None:
    plan = independent(Task("a", call=after(0, value)))
    result = orchestrate(plan, devices=[LocalDevice("remote", json_results=True)])
    assert result["a"].status == "failed"
    assert isinstance(result["a"].error, NotJson)
    assert "the result of task 'a'" in str(result["a"].error)
    assert "JSON" in str(result["a"].error)


def test_a_device_that_has_to_send_results_lets_json_pass() -> None:
    plan = independent(Task("a", call=after(0, {"list": (1, 2.5, None, True, "text")})))
    result = orchestrate(plan, devices=[LocalDevice("remote", json_results=True)])
    assert result["a"].value == {"list": [1, 2.5, None, True, "text"]}


def test_a_finished_plan_becomes_json_and_an_object_in_the_way_is_named() -> None:
    result = orchestrate(independent(Task("a", call="asyncio:sleep", inputs={"delay": 1, "result": {"ok": True}})))
    again = Constellation.from_json(json.loads(json.dumps(result.plan.to_json())))
    assert again["a"].value == {"ok": True}
    assert again.state == "completed"

    result = orchestrate(independent(Task("a", call="asyncio:sleep", inputs={"delay": 1, "result": object()})))
    with pytest.raises(NotJson, match="task 'a'"):
        result.plan.to_json()


def test_a_callable_without_an_import_path_cannot_be_written_down() -> None:
    with pytest.raises(NotJson, match=r"task 'a'.*no import path"):
        independent(Task("a", call=after(0))).to_json()


# -- what a run gives back ---------------------------------------------------------------------------------------------


def diamond() -> Constellation:
    plan = Constellation("diamond")
    plan.add(Task("a", call=after(1)))
    plan.add(Task("b", call=after(2)), after="a")
    plan.add(Task("c", call=after(3)), after="a")
    plan.add(Task("d", call=after(1)), after=["b", "c"])
    return plan


def test_the_figures_of_a_plan_without_an_editor_are_exact() -> None:
    summary = orchestrate(diamond()).summary
    assert summary.makespan == pytest.approx(5, abs=1e-5)
    assert summary.parallelism.critical_path == pytest.approx(5, abs=1e-5)
    assert summary.parallelism.path == ("a", "c", "d")
    assert summary.parallelism.work == pytest.approx(7, abs=1e-5)
    assert summary.parallelism.ratio == pytest.approx(7 / 5, abs=1e-5)
    assert summary.parallelism.width == 2
    assert summary.lower_bound == pytest.approx(5, abs=1e-5)
    assert (summary.held, summary.cycles, summary.edits_accepted, summary.edits_rejected) == (0, 0, 0, 0)


def test_the_figures_on_one_slot_are_exact() -> None:
    summary = orchestrate(diamond(), devices=[LocalDevice("one", slots=1)]).summary
    assert summary.makespan == pytest.approx(7, abs=1e-5)
    assert summary.lower_bound == pytest.approx(7, abs=1e-5)


def test_the_lower_bound_knows_the_limit_on_concurrency() -> None:
    summary = orchestrate(diamond(), concurrency=1).summary
    assert summary.makespan == pytest.approx(7, abs=1e-5)
    assert summary.lower_bound == pytest.approx(7, abs=1e-5)


@pytest.mark.parametrize(
    ("policy", "makespan", "held"),
    [
        # a 0-1, review to 1.5; b 1.5-3.5 (review to 4), c 1.5-4.5 (review to 5), d 5-6
        ("scoped", 6.5, 1.0),
        # the same here: under global the review of b holds what is ready, and nothing is
        ("global", 6.5, 1.0),
    ],
)
def test_the_figures_under_review_are_exact(policy: str, makespan: float, held: float) -> None:
    async def think(view: Any, events: Any) -> None:
        await asyncio.sleep(0.5)

    summary = orchestrate(diamond(), editor=think, policy=policy).summary
    assert summary.makespan == pytest.approx(makespan, abs=1e-5)
    assert summary.held == pytest.approx(held, abs=1e-5)
    assert summary.cycles == 4
    assert summary.parallelism.critical_path == pytest.approx(5, abs=1e-5)


def test_speculation_hides_the_time_that_reviews_take() -> None:
    async def think(view: Any, events: Any) -> None:
        await asyncio.sleep(0.5)

    plan = Constellation("diamond")
    plan.add(Task("a", call=after(1)))
    plan.add(Task("b", call=after(2), revocable=True), after="a")
    plan.add(Task("c", call=after(3), revocable=True), after="a")
    plan.add(Task("d", call=after(1), revocable=True), after=["b", "c"])
    summary = orchestrate(plan, editor=think, policy="speculative").summary
    assert summary.makespan == pytest.approx(5.5, abs=1e-5)
    assert summary.held == pytest.approx(0, abs=1e-5)


def test_accepted_and_rejected_edits_are_counted() -> None:
    async def editor(view: Any, events: Any) -> Any:
        if events[0].task_id != "a":
            return None
        if len(events) == 1:
            return [edits.RemoveTask("nobody")]
        return [edits.AddTask(Task("extra", call=after(1)))]

    summary = orchestrate(independent(Task("a", call=after(1))), editor=editor).summary
    assert (summary.edits_accepted, summary.edits_rejected) == (1, 1)


@pytest.mark.parametrize(
    ("tasks", "state", "code"),
    [
        ([Task("a", call=after(1))], "completed", 0),
        ([Task("a", call=failing())], "failed", 1),
        ([Task("a", call=after(1)), Task("b", call=failing())], "partially_failed", 2),
        ([], "completed", 0),
    ],
)
def test_the_exit_code_reflects_the_final_state(tasks: list[Task], state: str, code: int) -> None:
    result = orchestrate(independent(*tasks))
    assert (result.state, result.exit_code) == (state, code)


@pytest.mark.virtual_time
async def test_the_exit_code_of_a_cancelled_plan_is_130() -> None:
    orchestrator = Orchestrator([LocalDevice("device")])
    running = asyncio.create_task(orchestrator.run(independent(Task("a", call=after(100)), id="p")))
    await asyncio.sleep(1)
    await orchestrator.cancel("p")
    result = await running
    assert (result.state, result.exit_code) == ("cancelled", 130)
    assert result["a"].status is TaskStatus.CANCELLED


def test_a_result_lists_its_tasks_and_names_an_unknown_one() -> None:
    result = orchestrate(diamond())
    assert [task.id for task in result] == ["a", "b", "c", "d"]
    assert len(result) == 4
    assert "diamond" in repr(result)
    with pytest.raises(UnknownTask, match="there is no task 'z' in the plan"):
        result["z"]
    assert issubclass(UnknownTask, AsterismError)


def test_the_story_of_a_task_is_in_order_and_has_reasons() -> None:
    result = orchestrate(independent(Task("a", call=failing(1), retries=1, backoff=0)), seed=1)
    steps = [(entry.what, entry.why) for entry in result.story("a")]
    assert steps[0] == ("started", "device")
    assert steps[1][0] == "attempt failed"
    assert "RuntimeError: it broke; attempt 2 in" in steps[1][1]
    assert steps[2] == ("started", "device")
    assert steps[3] == ("failed", "RuntimeError: it broke")


@pytest.mark.virtual_time
async def test_the_lower_bound_is_one_even_with_waits_between_attempts_and_devices_that_leave() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise RuntimeError("no")

    orchestrator = Orchestrator([LocalDevice("a", slots=1), LocalDevice("b", slots=1)], seed=1)
    plan = independent(Task("x", call=fail, retries=3, backoff=10), Task("y", call=after(10)), id="p")
    running = asyncio.ensure_future(orchestrator.run(plan))
    await asyncio.sleep(5)
    orchestrator.leave("b")
    summary = (await running).summary
    assert summary.lower_bound <= summary.makespan
    assert summary.parallelism.work == 14


def test_the_union_of_intervals_counts_overlaps_once() -> None:
    assert covered([]) == 0.0
    assert covered([(5, 7), (0, 3), (2, 4), (2.5, 3)]) == 6.0
    assert covered([(0, 10), (2, 3)]) == 10.0


# -- results of tasks, and failures ------------------------------------------------------------------------------------


async def test_the_result_of_a_task_is_found_with_the_task_and_has_its_type() -> None:
    result = await Orchestrator([LocalDevice("x")]).run(typed_plan.plan)
    assert result.raise_for_failures() is result
    typed_plan.check(result)


async def test_a_failure_is_raised_on_request_with_its_reason_and_cause() -> None:
    plan = Constellation("release")

    @plan.task
    def build() -> int:
        raise RuntimeError("the compiler is broken")

    @plan.task
    def deploy(build: int) -> None: ...

    result = await Orchestrator([LocalDevice("x")]).run(plan)
    with pytest.raises(PlanFailed) as failed:
        result.raise_for_failures()
    why = "'build' failed: RuntimeError: the compiler is broken"
    assert str(failed.value) == f"the plan 'release' did not complete: it is failed; {why}"
    assert list(failed.value.reasons) == ["build"]
    assert isinstance(failed.value.__cause__, RuntimeError)
    with pytest.raises(PlanFailed, match="there is no result of 'build'; 'build' failed: RuntimeError"):
        result[build]
    with pytest.raises(PlanFailed, match="there is no result of 'deploy'; 'deploy' was cancelled: unreachable"):
        result[deploy]


async def test_a_message_names_a_few_of_many_failures() -> None:
    plan = Constellation("wide")
    for number in range(8):
        plan.add(Task(f"t{number}", call=lambda: 1 / 0))
    result = await Orchestrator([LocalDevice("x")]).run(plan)
    with pytest.raises(PlanFailed, match=r"'t4' failed: ZeroDivisionError: division by zero; and 3 more$") as failed:
        result.raise_for_failures()
    assert len(failed.value.reasons) == 8


async def test_a_plan_that_was_cancelled_names_what_was_cancelled() -> None:
    plan = Constellation("long")

    @plan.task
    async def forever() -> None:
        await orchestrator.cancel("long")
        await asyncio.Event().wait()

    orchestrator = Orchestrator([LocalDevice("x")])
    result = await orchestrator.run(plan)
    with pytest.raises(PlanFailed, match="the plan 'long' did not complete: it is cancelled; 'forever' was cancelled"):
        result.raise_for_failures()
