"""Runs, batches, limits and events for people, made of their documents: tables, everything about one, and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.text import Text

from asterism.api.documents import (
    Batch,
    BatchDetails,
    Limit,
    LimitDetails,
    LimitUser,
    PreviousAssignment,
    Run,
    RunDetails,
    RunWhy,
    SentEvent,
)
from asterism.base.durations import format_age, format_delay, format_duration
from asterism.base.status_colours import BOLD, DIM, mark, tone
from asterism.base.text import clean, plural, short, shorten
from asterism.cli.cli_context import format_clock, format_size, format_time
from asterism.cli.tables import Cell, Column, TimedTable, table, table_of, wrapped
from asterism.core.errors import SENTENCE_ERRORS

LONGEST = 300
"""How many letters of an input, output or reason to show."""

MOST_SCORES = 20
MOST_LINES = 20

_LOOKS = {
    "created": "pending",
    "reassigning": "pending",
    "assigned": "waiting",
    "claimed": "waiting",
    "processing": "running",
    "pausing": "running",
    "cancelling": "running",
    "paused": "pending",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""The task status whose mark and colour a run status shares."""

OWNED = ("assigned", "claimed", "processing", "pausing", "cancelling")


def look_of(run: Run) -> str:
    return _LOOKS.get(run.status, "pending")


def since_of(run: Run) -> float:
    """When the run came into its present status."""
    times = (run.ended_at, run.started_at, run.claimed_at, run.assigned_at, run.waiting_since)
    return next((at for at in times if at is not None), run.created_at)


def note_on(run: Run, now: float) -> str:
    """The most important fact beside the status, in a few words."""
    if run.error is not None:
        return _error_note(run.error, run.cancelled)
    if run.paused is not None:
        return run.paused
    if run.wish is not None:
        return f"by {run.wished_by}"
    offered = run.status in ("created", "reassigning")
    if offered and run.not_before > now:
        return f"again {format_delay(run.not_before - now)}"
    if offered and run.uses:
        return f"uses {', '.join(run.uses)}"
    if offered and run.declined:
        return "; ".join(f"{device} declined: {text}" for device, text in run.declined.items())
    if offered and run.pinned is not None:
        return f"only on {run.pinned}"
    if run.held:
        return f"series {run.series}"
    return f"attempt {run.attempts}" if run.attempts > 1 and not run.ended else ""


def _error_note(error: str, cancelled: bool) -> str:
    """The error without the words that the status shows, and without the class names of our own errors."""
    if cancelled:
        return error.removeprefix("cancelled ").removesuffix(" (cancel)")
    kind, _, message = error.partition(": ")
    return message if message and kind in SENTENCE_ERRORS else error


def _progress(run: Run) -> str:
    if run.progress is None:
        return ""
    return f"{run.progress.step}/{run.progress.total}" if run.progress.total is not None else str(run.progress.step)


def _beat(run: Run, now: float) -> Text:
    """The age of the last heartbeat; red when more than half of the timeout has passed."""
    if run.last_heartbeat_at is None:
        return Text("gone" if run.session is not None else "", tone("failed"))
    age = now - run.last_heartbeat_at
    return Text(format_age(age), tone("failed") if age > run.heartbeat_timeout / 2 else "")


def _age(run: Run, now: float) -> str:
    return format_age(run.took) if run.ended else format_age(now - since_of(run))


RUN_TABLE = TimedTable[Run](
    {
        Column(""): lambda run, now: Text(mark(look_of(run)), tone(look_of(run))),
        Column("RUN"): lambda run, now: Text(short(run.id)),
        Column("LABEL", least=8, needed=False, name=True): lambda run, now: Text(
            clean(run.shown_label), "" if run.label is not None else DIM
        ),
        Column("WORKFLOW", least=8, name=True): lambda run, now: run.workflow,
        Column("STATUS"): lambda run, now: Text(run.status, tone(look_of(run))),
        Column("DEVICE", least=8, name=True): lambda run, now: Text(clean(run.device or ""), DIM if run.ended else ""),
        Column("FOR", right=True): _age,
        Column("BEAT", right=True, needed=False): _beat,
        Column("DONE", right=True, needed=False): lambda run, now: _progress(run),
        Column("NOTE", least=10, needed=False): lambda run, now: Text(clean(note_on(run, now)), DIM),
    }
)


# -- one run -----------------------------------------------------------------------------------------------------------


def details_lines(run: RunDetails, width: int | None) -> Iterator[Text]:
    """Everything about a run. No line is longer than ``width``, except lines of output."""
    look = tone(look_of(run))
    yield Text.assemble(
        (f"{mark(look_of(run))} ", look), (run.id, BOLD), f"  {clean(run.workflow)}@{run.version}  ", (run.status, look)
    )
    facts = [(name, text) for name, text in _facts(run) if text]
    wide = max(len(name) for name, _ in facts)
    for name, text in facts:
        yield Text(f"  {name:<{wide}}  ", DIM).append(shorten(text, LONGEST), "")
    if not run.ended:
        yield from _heading("Why it is not running" if run.started_at is None else "Now")
        for reason in run.why:
            yield from wrapped(reason.text, width, "  ")
    yield from _story(run, width)
    yield from _previous(run, width)
    yield from _superseded(run, width)
    yield from _scores(run, width)
    yield from _tail(run)
    if run.notices:
        yield from _heading("Notices")
        yield from (Text(f"  {format_clock(notice.at)}  {clean(notice.message)}") for notice in run.notices)


def _heading(title: str) -> Iterator[Text]:
    yield Text()
    yield Text(title, BOLD)


def _facts(run: RunDetails) -> Iterator[tuple[str, str]]:
    now = run.now
    yield "label", run.label or ""
    yield "created", f"{format_time(run.created_at)} by {run.created_by}"
    yield "device", _device(run)
    if run.ended:
        yield "ended", f"{format_time(run.ended_at)}, {format_age(now - (run.ended_at or now))} ago"
        yield "waited", format_age(run.waited)
        yield "took", format_age(run.took)
    else:
        yield "since", format_age(now - since_of(run))
    yield "heartbeat", _heartbeat(run)
    yield "progress", _progress(run)
    yield "input", _value(run.input) if run.input else ""
    yield "output", _value(run.output) if run.status == "completed" else ""
    yield "error", run.error or ""
    yield "paused", run.paused or ""
    yield "request", f"to {run.wish}, by {run.wished_by}" if run.wish is not None else ""
    yield "series", run.series or ""
    yield "batch", run.batch or ""
    yield "uses", ", ".join(f"{name}: {amount:,}" for name, amount in (run.uses or {}).items())
    yield "key", run.key or ""
    yield "priority", str(run.priority) if run.priority else ""
    yield "only on", run.pinned or ""
    yield "retry of", run.retry_of or ""
    yield "keep", run.keep if run.keep != "epoch" else ""
    yield "attempts", _attempts(run)


def _attempts(run: Run) -> str:
    counts = {"failed": run.failures, "lost": run.losses, "declined by all": run.rounds}
    counted = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    if run.epoch <= 1 or (run.attempts <= 1 and not counted):
        return ""
    return f"{run.attempts} ({counted})" if counted else str(run.attempts)


def _device(run: Run) -> str:
    if run.device is None:
        return ""
    by = f", assigned by {run.assigned_by}" if run.assigned_by not in (None, run.device) else ""
    return f"{run.device}, epoch {run.epoch}{by}"


def _heartbeat(run: RunDetails) -> str:
    if run.status not in OWNED:
        return ""
    if run.last_heartbeat_at is None:
        return "its device has been forgotten"
    age = format_age(run.now - run.last_heartbeat_at)
    return f"{age} ago; the run is lost after {format_age(run.heartbeat_timeout)} without one"


def _value(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"$blob", "size"}:
        return f"{format_size(value['size'])}, stored apart"
    return json.dumps(value, ensure_ascii=False)


def _story(run: Run, width: int | None) -> Iterator[Text]:
    yield from _heading("Story")
    columns = (Column(""), Column(""), Column("", least=20))
    rows: list[list[Cell]] = [
        [Text(f"  {format_clock(entry.at)}", DIM), entry.what, Text(shorten(entry.why, LONGEST))] for entry in run.story
    ]
    yield from table(columns, rows, width)[1:]


def _previous(run: Run, width: int | None) -> Iterator[Text]:
    if not run.previous_assignments:
        return
    yield from _heading("Previous assignments")
    columns: dict[Column, Callable[[PreviousAssignment], Cell]] = {
        Column("  EPOCH", right=True): lambda past: str(past.epoch),
        Column("DEVICE", least=8): lambda past: past.device,
        Column("SCORE", right=True): lambda past: "" if past.score is None else f"{past.score:.2f}",
        Column("AFTER", right=True): lambda past: format_age(past.ended_at - past.assigned_at),
        Column("REASON"): lambda past: past.reason,
        Column("DETAIL", least=16): lambda past: shorten(past.detail, LONGEST),
    }
    yield from table_of(run.previous_assignments, columns, width)


def _superseded(run: Run, width: int | None) -> Iterator[Text]:
    if not run.superseded:
        return
    yield from _heading("Results of peers that this one superseded")
    columns = (Column("  EPOCH", right=True), Column("DEVICE", least=8), Column("ENDED"), Column("OUTPUT", least=16))
    rows: list[list[Cell]] = [
        [
            str(superseded.epoch),
            superseded.device,
            format_time(superseded.ended_at),
            shorten(_value(superseded.output), LONGEST),
        ]
        for superseded in run.superseded
    ]
    yield from table(columns, rows, width)


def _scores(run: Run, width: int | None) -> Iterator[Text]:
    if not run.scores:
        return
    yield from _heading("Scores at its assignment")
    best = sorted(run.scores.items(), key=lambda pair: (-pair[1], pair[0]))
    rows: list[list[Cell]] = [[f"  {name}", f"{score:.2f}"] for name, score in best[:MOST_SCORES]]
    yield from table((Column("", least=8), Column("", right=True)), rows, width)[1:]
    if len(best) > MOST_SCORES:
        yield Text(f"  and {len(best) - MOST_SCORES:,} more", DIM)


def _tail(run: RunDetails) -> Iterator[Text]:
    lines = run.tail.splitlines()[-MOST_LINES:]
    if not any(line.strip() for line in lines):
        return
    so_far = "" if run.ended else " so far"
    yield from _heading(f"End of the output{so_far}")
    for line in lines:
        yield Text(f"  {clean(line)}")
    if run.more_output:
        yield Text(f"  all of it: asterism runs logs {short(run.id)}", DIM)


# -- sentences ---------------------------------------------------------------------------------------------------------


def describe_end(run: Run) -> str:
    """How a run ended, in a sentence."""
    after = f" after {format_age(run.took)}" if run.took is not None else ""
    on = f" on {run.device}" if run.device is not None else ""
    name = short(run.id) if run.label is None else f"{short(run.id)} ({run.label})"
    if run.status == "completed":
        return clean(f"{name} completed{on}{after}")
    if run.cancelled:
        error = (run.error or "").removesuffix(" (cancel)")  # a remark of the device that stopped it
        return clean(f"{name} {error}")
    return clean(f"{name} failed{on}{after}: {run.error}")


def describe_outcome(before: Run, after: Run) -> str:
    """The outcome of a request about a run, in a sentence."""
    name = short(after.id)
    if after.id != before.id:
        return f"{after.id} is a retry of {short(before.id)}: {after.status}"
    if after.revision == before.revision:
        return f"{name} is unchanged: {after.status}"
    if after.ended:
        return clean(f"{name} {after.error or after.status}")
    if after.status == "assigned" and after.epoch != before.epoch:
        return clean(f"{name} is assigned to {after.device}")
    if after.paused is not None:
        return clean(f"{name} is paused {after.paused}")
    if after.wish is not None:
        return clean(f"{name}: {after.device} was asked to {after.wish} it")
    return clean(f"{name}{_resumed(after)}")


def _resumed(run: Run) -> str:
    """The outcome of resuming a run.

    It is not known here whether its device has begun to stop for the pause; if so, the device hands the run back and
    it is offered again."""
    if run.status in OWNED:
        return f" is resumed: {run.device} continues it, or hands it back to be offered again if it was stopping"
    if run.held:
        return f" is resumed; it waits for its turn in series {run.series}"
    delay = run.not_before - run.story[-1].at
    soon = f" {format_delay(delay)}" if delay > 0 else ""
    return f" is resumed and offered{soon} to {run.pinned if run.pinned is not None else 'any capable device'}"


def explanation_lines(why: RunWhy, width: int | None) -> Iterator[Text]:
    """Why a run does not run, and what helps."""
    yield Text(f"Run {why.run} is {why.status}:")
    for reason in why.reasons:
        yield from wrapped(reason.text, width, "  ")
    for line in why.advice:
        yield from wrapped(line, width)


# -- batches for people, made of their documents -----------------------------------------------------------------------


_COUNTS = ("completed", "failed", "cancelled", "running", "waiting")
_TONES = {"completed": "completed", "failed": "failed", "cancelled": "cancelled", "running": "running"}


def _count(name: str, batch: Batch, now: float) -> Text:
    number = getattr(batch, name)
    return Text(f"{number:,}", tone(_TONES[name]) if number and name in _TONES else DIM)


def _percent(batch: Batch) -> str:
    return f"{100 * (batch.completed + batch.failed + batch.cancelled) // batch.runs} %"


BATCH_TABLE = TimedTable[Batch](
    {
        Column("BATCH", least=8, name=True): lambda batch, now: batch.name,
        Column("RUNS", right=True): lambda batch, now: f"{batch.runs:,}",
        Column("DONE", right=True): lambda batch, now: _percent(batch),
        **{Column(name.upper(), right=True): partial(_count, name) for name in _COUNTS},
        Column("AGE", right=True): lambda batch, now: format_age(now - batch.created_at),
    }
)


def batch_lines(batch: BatchDetails, width: int | None) -> Iterator[Text]:
    """How far a batch has come, and what failed."""
    yield Text.assemble((clean(batch.name), BOLD), f"  {_batch_counts(batch)}")
    took = f"took {format_duration((batch.ended_at or batch.now) - batch.created_at)}"
    yield Text(f"  {took if batch.ended else _forecast(batch)}", DIM)
    if batch.failures:
        yield Text()
        yield Text("Failed" if len(batch.failures) == batch.failed else "Failed, the newest", BOLD)
    for failure in batch.failures:
        on = f" on {clean(failure.device)}" if failure.device is not None else ""
        yield from wrapped(f"{short(failure.id)} ({failure.label}){on}: {failure.error}", width, "  ")
        yield from (Text(f"    {clean(line)}", DIM) for line in failure.tail.splitlines())
    if batch.failures and batch.failed > len(batch.failures):
        every = f"asterism runs list --batch {clean(batch.name)} --status failed"
        yield Text(f"  and {batch.failed - len(batch.failures):,} more; list them with: {every}")
    if batch.failed:
        yield Text()
        yield Text(f"Run them again with: asterism batch retry {clean(batch.name)} --failed", DIM)


def progress_line(batch: BatchDetails) -> str:
    """How far a batch has come that has not ended."""
    left = "no run has ended yet" if batch.rate is None else _time_left(batch)
    return f"{clean(batch.name)}  {_batch_counts(batch)}; {left}"


def _batch_counts(batch: BatchDetails) -> str:
    counts = ", ".join(f"{getattr(batch, name):,} {name}" for name in _COUNTS if getattr(batch, name))
    return f"{_percent(batch)} of {plural(batch.runs, 'run')}: {counts}"


def _forecast(batch: BatchDetails) -> str:
    if batch.rate is None:
        return "No run has ended yet."
    return f"{_pace(batch.rate)}, {_time_left(batch)}"


def _time_left(batch: BatchDetails) -> str:
    return f"about {format_age(batch.time_left)} left"


def _pace(rate: float) -> str:
    """A rate in the unit in which it is at least 1, if there is one."""
    for unit, seconds in (("second", 1.0), ("minute", 60.0)):
        if rate * seconds >= 1:
            return f"{rate * seconds:,.1f} runs per {unit}"
    return f"{rate * 3600:,.1f} runs per hour"


# -- limits for people, made of their documents ------------------------------------------------------------------------


MOST_NAMES = 3
"""How many names of a limit for each name are listed."""


def limit_text(limit: Limit) -> str:
    """What a limit allows: ``4 at a time, 10 within 1 min 00 s``."""
    parts = [] if limit.size is None else [f"{limit.size:,} at a time"]
    if limit.rate is not None and limit.period is not None:
        parts.append(f"{limit.rate:,} within {format_duration(limit.period)}")
    return ", ".join(parts)


def _used(limit: Limit) -> Text:
    if set(limit.used) <= {limit.name}:
        used = limit.used.get(limit.name, 0)
        return Text(f"{used:,}", tone("running") if used else DIM)
    names = [f"{clean(name)}: {used:,}" for name, used in limit.used.items()]
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return Text(", ".join([*names[:MOST_NAMES], *more]), tone("running"))


LIMIT_TABLE = TimedTable[Limit](
    {
        Column("LIMIT", least=8, name=True): lambda limit, now: limit.name,
        Column("ALLOWS"): lambda limit, now: limit_text(limit),
        Column("IN USE"): lambda limit, now: _used(limit),
        Column("WAITING", right=True): lambda limit, now: Text(f"{limit.waiting:,}", "" if limit.waiting else DIM),
    }
)


def limit_lines(limit: LimitDetails, width: int | None) -> Iterator[Text]:
    """What a limit allows, who holds it, and who waits."""
    yield Text.assemble((clean(limit.name), BOLD), f"  {limit_text(limit)}; {plural(limit.waiting, 'run')} waiting")
    for title, users in (("Held by", limit.holders), ("Next", limit.next_runs)):
        if users:
            yield Text()
            yield Text(title, BOLD)
            yield from _USERS.lines(users, limit.now, width)


_USERS = TimedTable[LimitUser](
    {
        Column("RUN"): lambda user, now: short(user.id),
        Column("LABEL", least=8, name=True): lambda user, now: user.label,
        Column("WORKFLOW", least=8, name=True): lambda user, now: user.workflow,
        Column("DEVICE", least=8, name=True): lambda user, now: user.device or "",
        Column("USES"): lambda user, now: ", ".join(f"{name}: {amount:,}" for name, amount in user.uses.items()),
        Column("FOR", right=True): lambda user, now: format_age(now - user.since),
    }
)


# -- events for people -------------------------------------------------------------------------------------------------


MOST_TAKERS = 3
"""How many of those who have taken an event the table names."""


def _takers(event: SentEvent) -> str:
    names = [clean(f"{taker.plan}/{taker.task}" if taker.task else taker.plan) for taker in event.taken_by]
    more = f" and {len(names) - MOST_TAKERS:,} more" if len(names) > MOST_TAKERS else ""
    return ", ".join(names[:MOST_TAKERS]) + more


EVENT_TABLE = TimedTable[SentEvent](
    {
        Column("NUMBER", right=True): lambda event, now: str(event.number),
        Column("EVENT", least=8, name=True): lambda event, now: event.name,
        Column("AGE", right=True): lambda event, now: format_age(now - event.at),
        Column("BY"): lambda event, now: event.by,
        Column("KEY"): lambda event, now: event.key or "",
        Column("DATA"): lambda event, now: "" if event.data is None else json.dumps(event.data),
        Column("TAKEN BY"): lambda event, now: _takers(event),
    }
)
