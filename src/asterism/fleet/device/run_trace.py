"""The span of a run on a device: below the span that created the run, and current while the work is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from asterism.base import trace_context
from asterism.core.errors import error_text
from asterism.core.run.run import Run


def is_traced(run: Run) -> bool:
    """Whether there is a trace to continue, or may be one to begin."""
    return run.traceparent is not None or "opentelemetry.trace" in sys.modules


@contextmanager
def run_span(run: Run, device: str) -> Iterator[Run]:
    """Yields the run with the span that its work belongs to. Without a tracer on this device that is the span of its
    creator."""
    tracer = trace_context.tracer()
    context = trace_context.remote_context(run.traceparent)
    if tracer is None:
        with trace_context.attached(context):
            yield run
        return
    from opentelemetry.trace import SpanKind, set_span_in_context

    attributes: dict[str, str | int] = {
        "asterism.run": run.id,
        "asterism.workflow": run.workflow,
        "asterism.epoch": run.epoch,
        "asterism.device": device,
    }
    span = tracer.start_span(f"run {run.workflow}", context, SpanKind.CONSUMER, attributes)
    try:
        with trace_context.attached(set_span_in_context(span)):
            yield run.changed(traceparent=trace_context.traceparent_of(span.get_span_context()))
    except BaseException as error:
        trace_context.set_error(span, error_text(error))
        raise
    finally:
        span.end()
