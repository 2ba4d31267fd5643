"""Batches for people, made of their documents: a table, and how far one has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.text import Text

from asterism.api.documents import Batch, BatchDetails
from asterism.base.durations import format_age, format_duration
from asterism.base.status_colours import BOLD, DIM, tone
from asterism.base.text import clean, plural, short
from asterism.cli.screen import Cell, Column, table_of, wrapped

_COUNTS = ("completed", "failed", "cancelled", "running", "waiting")
_TONES = {"completed": "completed", "failed": "failed", "cancelled": "cancelled", "running": "running"}


def batches_table(batches: Sequence[Batch], now: float, width: int | None) -> list[Text]:
    columns: dict[Column, Callable[[Batch], Cell]] = {
        Column("BATCH", least=8, name=True): lambda batch: batch.name,
        Column("RUNS", right=True): lambda batch: f"{batch.runs:,}",
        Column("DONE", right=True): lambda batch: _percent(batch),
        **{Column(name.upper(), right=True): partial(_count, name=name) for name in _COUNTS},
        Column("AGE", right=True): lambda batch: format_age(now - batch.created_at),
    }
    return table_of(batches, columns, width)


def _count(batch: Batch, name: str) -> Text:
    number = getattr(batch, name)
    return Text(f"{number:,}", tone(_TONES[name]) if number and name in _TONES else DIM)


def _percent(batch: Batch) -> str:
    return f"{100 * (batch.completed + batch.failed + batch.cancelled) // batch.runs} %"


def batch_lines(batch: BatchDetails, width: int | None) -> Iterator[Text]:
    """How far a batch has come, and what failed."""
    counts = ", ".join(f"{getattr(batch, name):,} {name}" for name in _COUNTS if getattr(batch, name))
    yield Text.assemble((clean(batch.name), BOLD), f"  {_percent(batch)} of {plural(batch.runs, 'run')}: {counts}")
    if batch.ended:
        yield Text(f"  took {format_duration((batch.ended_at or batch.now) - batch.created_at)}", DIM)
    elif batch.rate is None:
        yield Text("  No run has ended yet.", DIM)
    else:
        yield Text(f"  {_pace(batch.rate)}, about {format_age(batch.time_left)} left", DIM)
    if batch.failures:
        yield Text()
        yield Text("Failed" if len(batch.failures) == batch.failed else "Failed, the newest", BOLD)
    for failure in batch.failures:
        on = f" on {clean(failure.device)}" if failure.device is not None else ""
        yield from wrapped(f"{short(failure.id)} ({failure.label}){on}: {failure.error}", width, "  ")
        yield from (Text(f"    {clean(line)}", DIM) for line in failure.tail.splitlines())
    if batch.failed:
        yield Text()
        yield Text(f"Run them again with: asterism batch retry {clean(batch.name)} --failed", DIM)


def _pace(rate: float) -> str:
    """A rate in the unit in which it is at least 1, if there is one."""
    for unit, seconds in (("second", 1.0), ("minute", 60.0)):
        if rate * seconds >= 1:
            return f"{rate * seconds:,.1f} runs per {unit}"
    return f"{rate * 3600:,.1f} runs per hour"
