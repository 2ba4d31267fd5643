"""``asterism runs show``: everything about one run, as lines and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.secret_mask import Mask
from asterism.base.status_colours import BOLD, DIM, mark, tone
from asterism.base.text import clean, shorten
from asterism.cli.cli_context import format_clock, format_size, format_time, short
from asterism.cli.fleet_tables import look_of, since_of
from asterism.cli.screen import Cell, Column, table, wrapped
from asterism.core.attempt_log import TaskLog
from asterism.core.run.run import COMPLETED, OWNED, Run
from asterism.core.run.session import Session
from asterism.fleet.device.functions import attempts_of
from asterism.fleet.fleet import Fleet, reported_progress
from asterism.fleet.fleet_json import (
    masks_of,
    notice_json,
    run_json,
    sessions_of,
    took,
    waited,
    why_json,
)
from asterism.fleet.ledger import blob_of
from asterism.fleet.run_explanation import RunExplanation, explain_run
from asterism.store.protocol import Notice, ProgressReport

LONGEST = 300
"""How many letters of an input, output or reason to show."""
TAIL = 20
"""How many lines of the output of a running run to show."""


@dataclass(frozen=True, slots=True)
class Details:
    run: Run
    now: float
    sessions: Mapping[str, Session]
    report: ProgressReport | None
    notices: Sequence[Notice]
    why: RunExplanation
    mask: Mask = field(default_factory=Mask)
    log: TaskLog | None = None

    @property
    def tail(self) -> list[str]:
        """The last lines of the output: of the log of the last attempt, or what its device has reported so far."""
        if self.log is not None:
            return [line.text for line in self.log.lines[-TAIL:]]
        return [] if self.report is None else self.report.tail.splitlines()[-TAIL:]

    @property
    def _tail_text(self) -> str:
        if self.log is None:
            return "" if self.report is None else self.report.tail
        return "".join(f"{line}\n" for line in self.tail)

    def to_json(self) -> dict[str, Any]:
        reports = {self.run.id: self.report} if self.report is not None else {}
        return {
            **run_json(self.run, self.sessions, reports, self.mask),
            "tail": self._tail_text,
            "notices": [notice_json(notice) for notice in self.notices],
            "why": why_json(self.why)["reasons"],
        }


async def details(fleet: Fleet, run: Run) -> Details:
    store = fleet.store
    sessions = await sessions_of(fleet)
    report = (await store.reports([run.id])).get(run.id)
    notices = [notice for _, notice in await store.notices(run=run.id)]
    mask = (await masks_of(fleet, [run]))[run.id]
    logs = await fleet.logs(run.id)
    why = await explain_run(fleet, run.id)
    return Details(run, store.clock(), sessions, report, notices, why, mask, logs[-1] if logs else None)


def lines(found: Details, width: int | None) -> Iterator[Text]:
    """No line is longer than ``width``, except lines of output."""
    run = found.run
    look = tone(look_of(run))
    yield Text.assemble(
        (f"{mark(look_of(run))} ", look), (run.id, BOLD), f"  {clean(run.kind)}  ", (run.reported_status, look)
    )
    facts = [(name, text) for name, text in _facts(found) if text]
    wide = max(len(name) for name, _ in facts)
    for name, text in facts:
        yield Text(f"  {name:<{wide}}  ", DIM).append(shorten(text, LONGEST), "")
    if not run.ended:
        yield from _heading("Why it is not running" if run.started_at is None else "Now")
        for reason in found.why.reasons:
            yield from wrapped(reason.text, width, "  ")
    yield from _story(run, width)
    yield from _previous(run, width)
    yield from _superseded(found, width)
    yield from _scores(run, width)
    yield from _tail(found)
    if found.notices:
        yield from _heading("Notices")
        yield from (Text(f"  {format_clock(notice.at)}  {clean(notice.message)}") for notice in found.notices)


def _heading(title: str) -> Iterator[Text]:
    yield Text()
    yield Text(title, BOLD)


def _facts(found: Details) -> Iterator[tuple[str, str]]:
    run, now = found.run, found.now
    yield "label", run.label or ""
    yield "created", f"{format_time(run.created_at)} by {run.created_by}"
    yield "device", _device(found)
    if run.ended:
        yield "ended", f"{format_time(run.ended_at)}, {format_age(now - (run.ended_at or now))} ago"
        yield "waited", format_age(waited(run))
        yield "took", format_age(took(run))
    else:
        yield "since", format_age(now - since_of(run))
    yield "heartbeat", _heartbeat(found)
    yield "progress", str(reported_progress(run, {run.id: found.report} if found.report is not None else {}) or "")
    yield "input", _value(found.mask.data(run.input)) if run.input else ""
    yield "output", _value(found.mask.result(run.output)) if run.status is COMPLETED else ""
    yield "error", run.error or ""
    yield "paused", run.paused or ""
    yield "request", f"to {run.stop_request}, by {run.stop_requested_by}" if run.stop_request is not None else ""
    yield "series", run.series or ""
    yield "key", run.key or ""
    yield "priority", str(run.priority) if run.priority else ""
    yield "only on", run.pinned or ""
    yield "retry of", run.retry_of or ""
    yield "keep", run.keep if run.keep != "epoch" else ""
    yield "attempts", _attempts(run)


def _attempts(run: Run) -> str:
    attempts = attempts_of(run)
    counts = {"failed": run.failures, "lost": run.losses, "declined by all": run.rounds}
    counted = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    if run.epoch <= 1 or (attempts <= 1 and not counted):
        return ""
    return f"{attempts} ({counted})" if counted else str(attempts)


def _device(found: Details) -> str:
    run = found.run
    if run.device is None:
        return ""
    by = f", assigned by {run.assigned_by}" if run.assigned_by not in (None, run.device) else ""
    return f"{run.device}, epoch {run.epoch}{by}"


def _heartbeat(found: Details) -> str:
    run = found.run
    owner = found.sessions.get(run.session) if run.session is not None else None
    if run.status not in OWNED:
        return ""
    if owner is None:
        return "its device has been forgotten"
    return f"{format_age(found.now - owner.beat_at)} ago; the run is lost after {format_age(run.timeout)} without one"


def _value(value: Any) -> str:
    if blob_of(value) is not None:
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
    if not run.previous:
        return
    yield from _heading("Previous assignments")
    columns = (
        Column("  EPOCH", right=True),
        Column("DEVICE", least=8),
        Column("SCORE", right=True),
        Column("AFTER", right=True),
        Column("REASON"),
    )
    rows: list[list[Cell]] = [
        [
            str(one.epoch),
            one.device,
            "" if one.score is None else f"{one.score:.2f}",
            format_age(one.ended_at - one.assigned_at),
            one.reason,
            shorten(one.detail, LONGEST),
        ]
        for one in run.previous
    ]
    yield from table((*columns, Column("DETAIL", least=16)), rows, width)


def _superseded(found: Details, width: int | None) -> Iterator[Text]:
    if not found.run.superseded:
        return
    yield from _heading("Results of peers that this one superseded")
    columns = (Column("  EPOCH", right=True), Column("DEVICE", least=8), Column("ENDED"), Column("OUTPUT", least=16))
    rows: list[list[Cell]] = [
        [str(one.epoch), one.device, format_time(one.ended_at), shorten(_value(found.mask.result(one.output)), LONGEST)]
        for one in found.run.superseded
    ]
    yield from table(columns, rows, width)


def _scores(run: Run, width: int | None) -> Iterator[Text]:
    if not run.scores:
        return
    yield from _heading("Scores at its assignment")
    best = sorted(run.scores.items(), key=lambda one: (-one[1], one[0]))
    rows: list[list[Cell]] = [[f"  {name}", f"{score:.2f}"] for name, score in best[:TAIL]]
    yield from table((Column("", least=8), Column("", right=True)), rows, width)[1:]
    if len(best) > TAIL:
        yield Text(f"  and {len(best) - TAIL:,} more", DIM)


def _tail(found: Details) -> Iterator[Text]:
    lines = found.tail
    if not any(line.strip() for line in lines):
        return
    so_far = "" if found.run.ended else " so far"
    more = found.log is not None and len(found.log.lines) > TAIL
    yield from _heading(f"End of the output{so_far}")
    for line in lines:
        yield Text(f"  {clean(line)}")
    if more:
        yield Text(f"  all of it: asterism runs logs {short(found.run.id)}", DIM)
