"""One frame of the live view: a running plan in a terminal of a given size."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from asterism.base.durations import format_duration
from asterism.base.text import clean, plural, shorten
from asterism.cli.plan_progress import Progress
from asterism.core.plan.node import Node
from asterism.core.plan.status import TaskStatus
from asterism.report.event_text import names, reason
from asterism.report.result_summary import state_tone
from asterism.report.status_style import BOLD, DIM, mark, tone

MOST_DEVICES = 6
MOST_CYCLES = 3
WIDEST_NAME = 28
WIDEST_DEVICE = 16
UNCOUNTED = 1000
"""A place with this many slots stands for a whole fleet: its free slots are not shown."""

_DONE = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.RUNNING)


def frame(progress: Progress, now: float, width: int, height: int) -> RenderableType:
    """At most ``height`` lines of at most ``width`` cells."""
    above = [_heading(progress, now), _bar(progress, width)]
    below = [*_devices(progress, width), *_cycles(progress, now, width), *_latest(progress, width)]
    room = height - len(above) - len(below) - 2
    middle: list[RenderableType] = [Text(), _tasks(progress, now, width, room)] if room > 0 else []
    return Group(*[*above, *middle, *([Text()] if room > 0 and below else []), *below][:height])


def _heading(progress: Progress, now: float) -> Text:
    plan = progress.plan
    line = Text(no_wrap=True, overflow="ellipsis").append(shorten(plan.id, WIDEST_NAME), BOLD)
    line.append(f"  {progress.doing or plan.state.replace('_', ' ')}", state_tone(plan.state))
    took = 0.0 if plan.started_at is None else (plan.ended_at or now) - plan.started_at
    return line.append(f"  version {plan.version}  {_seconds(took)}", DIM)


def _bar(progress: Progress, width: int) -> Text:
    """A progress bar, and the counts in words."""
    counts, total = progress.plan.counts, len(progress.plan)
    words = ", ".join(f"{counts[status]:,} {status}" for status in (*_DONE, TaskStatus.PENDING) if counts[status])
    length = max(0, min(32, width - len(words) - 2))
    line, drawn, counted = Text(no_wrap=True, overflow="ellipsis"), 0, 0
    for status in _DONE:
        counted += counts[status]
        end = round(length * counted / total) if total else 0
        line.append("━" * (end - drawn), tone(status))
        drawn = end
    return line.append("─" * (length - drawn), DIM).append(f"  {words}")


def _tasks(progress: Progress, now: float, width: int, room: int) -> Table:
    """Running tasks first, then pending ones with their holders, then the latest ends."""
    running, ended = progress.running_nodes(room), progress.ended_nodes(room)
    pending = progress.pending_nodes(room)
    share = max(1, room // 4)
    some_running = running[: max(share, room - min(share, len(pending)) - min(share, len(ended)))]
    some_pending = pending[: max(share, room - len(some_running) - min(share, len(ended)))]
    some_ended = ended[: max(0, room - len(some_running) - len(some_pending))]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=1)
    grid.add_column(no_wrap=True, max_width=WIDEST_NAME, overflow="ellipsis")
    for _ in ("status", "device", "time"):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1, style=DIM)
    for node in some_running:
        _row(grid, node, "running", _run_word(node), _since(node, now), "")
    for node in some_pending:
        word, why = progress.holder(node)
        _row(grid, node, "waiting" if word == "waiting" else "pending", word, "", why)
    for node in some_ended:
        why = progress.secrets.shown(reason(node.error))
        _row(grid, node, str(node.status), str(node.status), _took(node), why)
    grid.expand = True
    return grid


def _row(grid: Table, node: Node, look: str, word: str, time: str, why: str) -> None:
    style: Style = tone(look)
    grid.add_row(
        Text(mark(look), style),
        Text(clean(node.id)),
        Text(word, style),
        Text(clean(node.device or ""), DIM),
        Text(time, justify="right"),
        Text(clean(why)),
    )


def _run_word(node: Node) -> str:
    if node.tentative is not None:
        return "unconfirmed"
    if node.device is None:
        return "retrying"
    return "provisional" if node.provisional else "running"


def _since(node: Node, now: float) -> str:
    return _seconds(now - (node.started_at or now))


def _took(node: Node) -> str:
    return "" if node.started_at is None or node.ended_at is None else _seconds(node.ended_at - node.started_at)


def _seconds(seconds: float) -> str:
    """A duration whose unit stays the same while it counts up."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 59.95 else format_duration(seconds)


def _devices(progress: Progress, width: int) -> list[Text]:
    """One line for each device: its slots, and its running tasks."""
    places = list(progress.orchestrator.scheduler.roster)
    wide = max((len(shorten(place.id, WIDEST_DEVICE)) for place in places[:MOST_DEVICES]), default=0)
    most = max((place.slots or 0 for place in places[:MOST_DEVICES]), default=0)
    lines = []
    for place in places[:MOST_DEVICES]:
        line = Text(f"{shorten(place.id, WIDEST_DEVICE):<{wide}}  ", no_wrap=True, overflow="ellipsis")
        if most <= WIDEST_DEVICE:
            taken = min(place.running, place.slots or 0)  # one without a limit has no boxes
            line.append("■" * taken, tone("running")).append("□" * ((place.slots or 0) - taken), DIM)
            line.append(" " * (most - (place.slots or 0) + 2 if most else 0))
        counted = (place.slots or 0) < UNCOUNTED
        line.append(f"{place.running}/{place.slots or '∞'}" if counted else f"{place.running} running", DIM)
        tasks = progress.on_device.get(place.id, {})
        lines.append(line.append(f"  {clean(names(tasks, len(tasks)))}" if tasks else ""))
    more = len(places) - MOST_DEVICES
    return [*lines, *([Text(f"and {plural(more, 'more device')}", DIM)] if more > 0 else [])]


def _cycles(progress: Progress, now: float, width: int) -> list[Text]:
    """The open edit cycles: the age of each, and the ends that it reviews."""
    cycles = progress.orchestrator.cycles(progress.plan.id) if progress.executing else []
    lines = []
    for cycle in cycles[:MOST_CYCLES]:
        line = Text(f"cycle {cycle.id}", tone("waiting"), no_wrap=True, overflow="ellipsis")
        by = f" by {cycle.claimed_by}" if cycle.claimed_by else ""
        about = names((task for task, _ in cycle.ends), len(cycle.ends)) or "no task can start"
        lines.append(line.append(clean(f"  open for {_seconds(now - cycle.opened_at)}{by}: {about}"), ""))
    more = len(cycles) - MOST_CYCLES
    return [*lines, *([Text(f"and {plural(more, 'more cycle')}", DIM)] if more > 0 else [])]


def _latest(progress: Progress, width: int) -> list[Text]:
    return [Text(shorten(progress.latest, width), DIM, no_wrap=True)] if progress.latest else []
