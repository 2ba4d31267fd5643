"""Traces with OpenTelemetry (the extra ``otel``): the tracer, if the program has set one, and ``traceparent`` texts.

Nothing here imports OpenTelemetry: a program that has not imported it cannot have set a provider, and then a trace
costs one look into ``sys.modules``. A ``traceparent`` (W3C Trace Context) names a span in 55 characters, so that it can
be kept with a run and handed to the work, in an environment variable or a header.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asterism.core.json_values import JsonObject

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

VARIABLE = "TRACEPARENT"
"""The environment variable in which a command gets the span that it works for."""

HEADER = "traceparent"
"""The header in which a request carries it."""

LONGEST_ERROR = 4000
"""How much of an error the status of a span has, in characters."""

_API = "opentelemetry.trace"
_PATTERN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def tracer() -> Tracer | None:
    """The tracer of the provider that the program has set; None if there is none."""
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    ours: Tracer = provider.get_tracer("asterism")
    return ours


def traceparent_of(context: SpanContext) -> str | None:
    """A span as text; None for a span that is not recorded anywhere."""
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def current_traceparent() -> str | None:
    """The current span of the caller; None if there is none."""
    api: Any = sys.modules.get(_API)
    return None if api is None else traceparent_of(api.get_current_span().get_span_context())


def remote_context(traceparent: str | None) -> Context | None:
    """The context whose current span is that of another process; None if the text names none. OpenTelemetry must have
    been imported."""
    match = _PATTERN.fullmatch(traceparent or "")
    api: Any = sys.modules.get(_API)
    if match is None or api is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    context = api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(flags))
    made: Context = api.set_span_in_context(api.NonRecordingSpan(context))
    return made


@contextmanager
def attached(context: Context | None) -> Iterator[None]:
    """Make a context the current one for the duration of a block."""
    if context is None:
        yield
        return
    from opentelemetry import context as contexts

    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


def set_error(span: Span, error: str) -> None:
    """Mark a span as failed."""
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, error[:LONGEST_ERROR]))


def without_none(attributes: Mapping[str, Any]) -> JsonObject:
    """Attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}
