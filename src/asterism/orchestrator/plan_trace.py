"""The trace of a plan: a span for the plan, and below it one for each attempt at a task, edit cycle, editor call, hold.

The span of an attempt links to the spans of the tasks that it depends on and of the attempt before it. It is the
current span of the work, so that what a function traces lies below it. All times are those of the plan's clock. There
is a trace only if the program has set a tracer provider (``base/trace_context``).

The editor may offer the attributes of its calls (``Editor.trace_attributes``). An editor that is a model names itself
with the attributes of OpenTelemetry for generative models, such as ``gen_ai.request.model``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from asterism.base import trace_context
from asterism.core.errors import error_text
from asterism.core.plan.assignment_lock import EditCycle
from asterism.orchestrator.devices import Work
from asterism.orchestrator.edit_cycles import Editor
from asterism.orchestrator.result import Result

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

NANOSECONDS = 1_000_000_000

MOST_LISTED = 128
"""How many other spans a span links to, and how many tasks it lists: what the SDK keeps by default."""


class PlanTrace:
    """``now`` is the clock of the plan. ``traceparent`` names the span of the plan in the process that ran it first."""

    def __init__(self, tracer: Tracer, name: str, now: Callable[[], float], traceparent: str | None = None) -> None:
        from opentelemetry import trace

        self._api, self._tracer, self._now = trace, tracer, now
        self._offset = time.time_ns() - int(now() * NANOSECONDS)
        self._tasks: dict[str, SpanContext] = {}
        self._cycles: dict[int, Span] = {}
        self._span = tracer.start_span(
            f"plan {name}",
            trace_context.remote_context(traceparent),
            attributes={"asterism.plan": name},
            start_time=self._at(now()),
        )
        self._context = trace.set_span_in_context(self._span)
        self.traceparent = trace_context.traceparent_of(self._span.get_span_context())

    @classmethod
    def start(cls, name: str, now: Callable[[], float], traceparent: str | None = None) -> PlanTrace | None:
        """None if no provider is set."""
        tracer = trace_context.tracer()
        return None if tracer is None else cls(tracer, name, now, traceparent)

    def _at(self, seconds: float) -> int:
        return self._offset + int(seconds * NANOSECONDS)

    def _links(self, tasks: Iterable[str]) -> list[Link]:
        """Links to the last spans of tasks."""
        known = (self._tasks[task] for task in tasks if task in self._tasks)
        return [self._api.Link(context) for context in islice(known, MOST_LISTED)]

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(
        self, work: Work, device: str, sources: Iterable[str]
    ) -> Iterator[Callable[[BaseException | None], None]]:
        """The span of an execution, current within the block. Yields the function that notes its error."""
        links = self._links((work.task.id, *sources))  # its last attempt too
        attributes: dict[str, str | int] = {
            "asterism.plan": work.constellation,
            "asterism.task": work.task.id,
            "asterism.attempt": work.attempt,
            "asterism.epoch": work.epoch,
            "asterism.device": device,
        }
        span = self._tracer.start_span(
            f"task {work.task.id}", self._context, attributes=attributes, links=links, start_time=self._at(self._now())
        )
        self._tasks[work.task.id] = span.get_span_context()

        def failed(error: BaseException | None) -> None:
            trace_context.set_error(span, error_text(error))

        try:
            with trace_context.attached(self._api.set_span_in_context(span)):
                yield failed
        finally:
            span.end(self._at(self._now()))

    # -- edit cycles ---------------------------------------------------------------------------------------------------

    def cycle_opened(self, cycle: EditCycle) -> None:
        self._cycles[cycle.id] = self._tracer.start_span(
            "edit cycle",  # without its number: backends expect few names
            self._context,
            attributes={"asterism.cycle": cycle.id, "asterism.cycle.tasks": list(cycle.tasks[:MOST_LISTED])},
            links=self._links(cycle.tasks),
            start_time=self._at(self._now()),
        )

    def cycle_closed(self, cycle: EditCycle) -> None:
        span = self._cycles.pop(cycle.id, None)
        if span is not None:
            span.set_attributes(
                {
                    "asterism.cycle.outcome": cycle.outcome or "",
                    "asterism.cycle.edits": cycle.edits,
                    "asterism.cycle.rejections": cycle.rejections,
                }
            )
            span.end(self._at(self._now()))

    @contextmanager
    def editor_call(self, cycle: EditCycle, editor: Editor, author: str) -> Iterator[None]:
        """The span of one call of the editor, current within the block."""
        parent = self._cycles.get(cycle.id)
        context: Context = self._context if parent is None else self._api.set_span_in_context(parent)
        span = self._tracer.start_span(f"editor {author}", context, start_time=self._at(self._now()))
        try:
            with trace_context.attached(self._api.set_span_in_context(span)):
                yield
        except BaseException as error:
            trace_context.set_error(span, error_text(error))
            raise
        finally:
            _describe(span, editor)
            span.end(self._at(self._now()))

    # -- the end -------------------------------------------------------------------------------------------------------

    def ended(self, result: Result) -> None:
        """The plan has ended: record the holds, which are known only now, and end its span."""
        for task, start, end in result.holds:
            hold = self._tracer.start_span(
                f"hold {task}", self._context, attributes={"asterism.task": task}, start_time=self._at(start)
            )
            hold.end(self._at(end))
        self._span.set_attributes(
            {
                "asterism.plan.state": str(result.state),
                "asterism.plan.version": result.plan.version,
                "asterism.plan.tasks": len(result),
            }
        )
        if result.state in ("failed", "partially_failed"):
            trace_context.set_error(self._span, f"the plan {result.plan.state_text}")
        self.left()

    def left(self) -> None:
        """This process runs the plan no more."""
        for span in (*self._cycles.values(), self._span):
            if span.is_recording():
                span.end(self._at(self._now()))
        self._cycles.clear()


def _describe(span: Span, editor: Editor) -> None:
    """Add the attributes that an editor offers, and name the span after the operation and the model."""
    try:
        attributes = trace_context.without_none(editor.trace_attributes())
    except Exception:  # a trace never stops a plan
        return
    span.set_attributes(attributes)
    model = attributes.get("gen_ai.request.model")
    if model is not None:
        span.update_name(f"{attributes.get('gen_ai.operation.name', 'chat')} {model}")
