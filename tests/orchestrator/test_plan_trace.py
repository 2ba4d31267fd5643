"""The trace of a plan in memory: spans of tasks, cycles, editor calls and holds; and nothing without a provider."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from asterism import Constellation, Event, LocalDevice, Orchestrator, Task
from asterism.base import trace_context
from asterism.orchestrator import Editor
from asterism.orchestrator.devices import span_headers
from asterism.orchestrator.plan_trace import MOST_LISTED, PlanTrace
from tests.orchestrator.orchestrator_scenes import after, chain, failing, independent, orchestrate
from tests.process_scenes import PATIENCE
from tests.trace_scenes import Spans, attributes, ids, parent, seconds, traceparent

TRACES = Path(__file__).parents[2] / "docs" / "how-to" / "traces.md"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans(monkeypatch)


class ScriptedModel(Editor):
    """An editor that changes nothing, and describes itself as a model."""

    def __init__(self) -> None:
        self.calls = 0

    async def edit(self, view: Any, events: Sequence[Event]) -> None:
        self.calls += 1
        with trace.get_tracer("client").start_as_current_span("http"):
            await asyncio.sleep(2)

    def trace_attributes(self) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "example",
            "gen_ai.request.model": "large-1",
            "gen_ai.usage.output_tokens": 10 * self.calls,
            "gen_ai.request.seed": None,
        }


def test_a_plan_is_one_trace_and_tasks_link_to_their_dependencies(spans: Spans) -> None:
    plan = Constellation("nightly")
    plan.add(Task("a", call=after(1)))
    plan.add(Task("b", call=after(2)))
    plan.add(Task("c", call=after(3)), after=["a", "b"])
    orchestrate(plan)
    root = spans.only("plan nightly")
    assert spans.names() == ["plan nightly", "task a", "task b", "task c"]
    assert {ids(span)[0] for span in spans.all()} == {ids(root)[0]}
    assert root.parent is None
    assert all(parent(spans.only(f"task {name}")) == ids(root)[1] for name in "abc")
    assert {link.context.span_id for link in spans.only("task c").links} == {
        ids(spans.only("task a"))[1],
        ids(spans.only("task b"))[1],
    }
    assert (seconds(root), seconds(spans.only("task c"))) == (5, 3)  # by the clock of the plan
    assert attributes(root)["asterism.plan.state"] == "completed"
    assert attributes(spans.only("task c")) == {
        "asterism.plan": "nightly",
        "asterism.task": "c",
        "asterism.attempt": 1,
        "asterism.epoch": 3,
        "asterism.device": "device",
    }


def test_each_attempt_is_a_span_and_a_failure_is_an_error(spans: Spans) -> None:
    orchestrate(independent(Task("a", call=failing(1), retries=1, backoff=0.1)))
    attempts = spans.named("task a")
    assert [attributes(span)["asterism.attempt"] for span in attempts] == [1, 2]
    assert all(span.status.status_code is StatusCode.ERROR for span in attempts)
    assert "it broke" in str(attempts[0].status.description)
    assert [[link.context.span_id for link in span.links] for span in attempts] == [[], [ids(attempts[0])[1]]]
    assert spans.only("plan plan").status.status_code is StatusCode.ERROR


def test_cycles_editor_calls_and_holds_have_spans_with_the_names_of_models(spans: Spans) -> None:
    orchestrate(chain(Task("a", call=after(1)), Task("b", call=after(1))), editor=ScriptedModel())
    cycle, call = spans.named("edit cycle")[0], spans.named("chat large-1")[0]
    assert (seconds(cycle), seconds(call)) == (2, 2)
    assert parent(call) == ids(cycle)[1]
    assert parent(spans.named("http")[0]) == ids(call)[1]  # what the client traces lies below the call
    assert attributes(call)["gen_ai.provider.name"] == "example"
    assert attributes(call)["gen_ai.usage.output_tokens"] == 10
    assert "gen_ai.request.seed" not in attributes(call)
    assert attributes(cycle)["asterism.cycle.outcome"] == "empty"
    assert [link.context.span_id for link in cycle.links] == [ids(spans.only("task a"))[1]]
    assert seconds(spans.only("hold b")) == 2


def test_names_attributes_and_values_of_spans_are_few_however_large_the_plan(spans: Spans) -> None:
    """Backends make an index of names and attributes: those come from the documentation, never from the work."""

    async def fails_at_length() -> None:
        raise ValueError("x" * 1_000_000)

    many = 400
    plan = Constellation("nightly")
    for number in range(many):
        plan.add(Task(f"t{number}", call=after(1), inputs={f"input-{number}": number}))
    plan.add(Task("last", call=fails_at_length), after=[f"t{number}" for number in range(many)])
    orchestrate(plan, editor=ScriptedModel(), max_cycles=1)
    documented = set(re.findall(r"`(asterism[.a-z]+)`", TRACES.read_text("utf-8")))
    documented |= {f"asterism.plan.{name}" for name in ("version", "tasks")}
    documented |= {f"asterism.cycle.{name}" for name in ("outcome", "edits", "rejections")}
    own_spans = [span for span in spans.all() if span.name != "http"]  # that of the client
    assert {name for span in own_spans for name in attributes(span) if not name.startswith("gen_ai.")} <= documented
    tasks = {f"{kind} {task.id}" for task in plan for kind in ("task", "hold")}
    assert {span.name for span in own_spans} - tasks == {"plan nightly", "edit cycle", "chat large-1"}
    assert len(spans.named("edit cycle")) > 1
    for span in own_spans:
        assert len(span.links) <= MOST_LISTED
        assert len(span.status.description or "") <= trace_context.LONGEST_ERROR
        for value in attributes(span).values():
            assert not isinstance(value, tuple) or len(value) <= MOST_LISTED
    assert len(spans.only("task last").links) == MOST_LISTED
    assert spans.only("task last").status.description is not None
    assert max(len(attributes(span)["asterism.cycle.tasks"]) for span in spans.named("edit cycle")) == MOST_LISTED


def test_an_editor_whose_attributes_fail_changes_nothing(spans: Spans) -> None:
    class Broken(Editor):
        def edit(self, view: Any, events: Sequence[Event]) -> None: ...

        def trace_attributes(self) -> Any:
            raise RuntimeError("no")

    result = orchestrate(independent(Task("a", call=after(1))), editor=Broken())
    assert result.state == "completed"
    assert len(spans.named("editor Broken")) == 1


async def test_the_work_gets_its_span_as_context_variable_and_header(spans: Spans) -> None:
    seen: dict[str, str | None] = {}

    def function() -> None:  # in a thread
        seen["function"] = trace_context.current_traceparent()

    plan = independent(
        Task("function", call=function),
        Task("command", argv=[sys.executable, "-c", "import os; print(os.environ['TRACEPARENT'])"]),
    )
    result = await Orchestrator(devices=[LocalDevice("here")]).run(plan)
    assert seen["function"] == traceparent(spans.only("task function"))
    assert result["command"].value.strip() == traceparent(spans.only("task command"))
    with spans.tracer.start_as_current_span("request") as span:
        assert span_headers({"a": "b"}) == {"traceparent": trace_context.traceparent_of(span.get_span_context())}
        assert span_headers({"Traceparent": "mine"}) == {}


def test_a_plan_inside_a_span_belongs_to_its_trace(spans: Spans) -> None:
    with spans.tracer.start_as_current_span("release"):
        orchestrate(independent(Task("a", call=after(1))))
    assert parent(spans.only("plan plan")) == ids(spans.only("release"))[1]


def test_secrets_are_masked_in_the_error_of_a_span(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2-hunter2")

    async def leak(token: str) -> None:
        raise RuntimeError(f"refused {token}")

    orchestrate(independent(Task("a", call=leak, inputs={"token": {"secret": "TOKEN"}})))
    [span] = spans.named("task a")
    assert "refused" in str(span.status.description)
    assert "hunter2" not in str(span.status.description)


def test_without_a_provider_there_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.delenv("OTEL_PYTHON_TRACER_PROVIDER", raising=False)
    assert trace_context.tracer() is None
    assert PlanTrace.start("plan", lambda: 0.0) is None
    assert trace_context.current_traceparent() is None


PROBE = """
import asyncio, sys
from asterism import Constellation, LocalDevice, Orchestrator, Task
async def work(): pass
plan = Constellation("plan")
plan.add(Task("a", call=work))
asyncio.run(Orchestrator(devices=[LocalDevice("here")]).run(plan))
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_a_program_that_does_not_trace_never_imports_opentelemetry(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PATIENCE, env={**os.environ}
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_traceparent_is_read_as_it_was_written(spans: Spans) -> None:
    with spans.tracer.start_as_current_span("here") as span:
        text = trace_context.current_traceparent()
    assert text is not None
    context = trace.get_current_span(trace_context.remote_context(text)).get_span_context()
    assert (context.trace_id, context.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
    for odd in ("", "00-0-0-0", f"{text}\n", text.upper(), None):
        assert trace_context.remote_context(odd if isinstance(odd, str) else None) is None
