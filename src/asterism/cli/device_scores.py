"""``asterism device scores``: the score of every device for a run or workflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.cli.text_table import Cell, Column, table
from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.session import REACHABLE_STATES
from asterism.core.run.workflow import Workflow
from asterism.fleet.fleet import Fleet
from asterism.report.status_style import BOLD, DIM

PARTS = ("load", "connection", "rank", "capability")


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """A device in the selection for a run. ``parts`` is None if it is not a candidate; ``why`` says why, or that it has
    no free slot."""

    device: str
    parts: dict[str, float] | None
    why: str
    chosen: bool

    @property
    def score(self) -> float | None:
        return None if self.parts is None else round(sum(self.parts.values()), 2)

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "score": self.score,
            "parts": None if self.parts is None else {name: round(part, 2) for name, part in self.parts.items()},
            "candidate": self.parts is not None,
            "chosen": self.chosen,
            "why": self.why or None,
        }


async def scores(fleet: Fleet, workflow: Workflow, run: Run | None = None) -> list[DeviceScore]:
    """The devices for a run, or for a new run of the workflow: candidates first, the best at the top."""
    sample = run or transitions.create("sample", workflow, {}, by=fleet.by, now=fleet.store.clock())
    outlook = await fleet.placer(fresh=True)
    choice = outlook.choose(sample, workflow)
    chosen = choice.owner.device if choice.owner is not None else None
    found = []
    for session in outlook.sessions.values():
        refusal = choice.refused.get(session.device)
        parts = outlook.score_parts(session, workflow) if refusal is None else None
        why = refusal or ("no free slot" if session.device in choice.busy else "")
        found.append(DeviceScore(session.device, parts, why, session.device == chosen))
    for session in await fleet.store.sessions():
        if session.state in REACHABLE_STATES and session.device not in outlook.sessions:
            quiet = f"no heartbeat for {format_age(outlook.now - session.beat_at)}"
            found.append(DeviceScore(session.device, None, quiet, False))
    return sorted(found, key=lambda one: (one.score is None, -(one.score or 0.0), one.device))


_COLUMNS = (
    Column(""),
    Column("DEVICE", least=8),
    Column("SCORE", right=True),
    *(Column(part.upper(), right=True) for part in PARTS),
    Column("WHY NOT", least=16, needed=False),
)


def scores_table(found: list[DeviceScore], width: int | None) -> list[Text]:
    rows: list[list[Cell]] = []
    for one in found:
        figures = [f"{one.parts[part]:.1f}" for part in PARTS] if one.parts is not None else [""] * len(PARTS)
        total = "" if one.score is None else f"{one.score:.2f}"
        mark = Text("*" if one.chosen else "", BOLD)
        name = Text(one.device, BOLD if one.chosen else DIM if one.parts is None else "")
        rows.append([mark, name, total, *figures, Text(one.why, DIM)])
    return table(_COLUMNS, rows, width)


def scores_lines(workflow: Workflow, run: Run | None, found: list[DeviceScore], width: int | None) -> Iterator[Text]:
    """The scores now, and for a run those at its assignment."""
    about = f"{workflow.name}@{workflow.version}"
    yield Text(f"{f'Run {run.id} of ' if run is not None else ''}{about}, strategy {workflow.strategy}", BOLD)
    if found:
        yield from scores_table(found, width)
    else:
        yield Text("No device is joined.")
    if run is not None and run.scores:
        kept = ", ".join(f"{name} {score:.2f}" for name, score in sorted(run.scores.items(), key=lambda one: -one[1]))
        yield Text()
        yield Text(f"At its assignment to {run.device}, epoch {run.epoch}: {kept}")
