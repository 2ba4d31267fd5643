"""One picture of a fleet, for a terminal of a given size."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.text import clean, plural, shorten
from asterism.cli.fleet_json import state_of
from asterism.cli.fleet_snapshot import Look
from asterism.cli.fleet_tables import runs_table
from asterism.core.run.run import COMPLETED, FAILED, PROCESSING, Run, RunStatus
from asterism.core.run.session import HEARD, Session
from asterism.report.status_style import DIM, tone

MOST_DEVICES = 6
WIDEST_DEVICE = 20
MOST_BOXES = 12

_ORDER = (PROCESSING, RunStatus.CLAIMED, RunStatus.ASSIGNED, RunStatus.REASSIGNING, RunStatus.CREATED)


def picture(look: Look, width: int, height: int) -> RenderableType:
    """At most ``height`` lines of at most ``width`` cells."""
    above = [_heading(look, width)]
    below = _devices(look, width)
    room = height - len(above) - len(below) - 3  # two empty lines and the titles
    middle: list[Text] = []
    if room > 0:
        shown = _chosen(look, room)
        middle = [Text(), *runs_table(shown, look.now, look.sessions, look.reports, width), Text()]
        if not shown:
            middle = [Text(), Text("No runs yet.", DIM), Text()]
    return Group(*[*above, *middle, *below][:height])


def _heading(look: Look, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    words = [
        (f"{look.counts[status]:,} {status}", tone("running") if status is PROCESSING else tone("pending"))
        for status in _ORDER
        if look.counts.get(status)
    ]
    words += [(f"{number:,} {name}", tone(name.split()[0])) for name, number in _ends(look) if number]
    line.append_text(Text(", ").join(Text(*word) for word in words) if words else Text("nothing to do", DIM))
    room = width - line.cell_len - 2
    return line.append(f"  {shorten(look.url, room)}", DIM) if room > 10 else line


def _ends(look: Look) -> list[tuple[str, int]]:
    """How many ended in which way; what was cancelled did not fail."""
    completed, failed = look.counts.get(COMPLETED, 0), look.counts.get(FAILED, 0)
    if look.cancelled is None:
        return [("completed", completed), ("failed or cancelled", failed)]
    return [("completed", completed), ("failed", failed - look.cancelled), ("cancelled", look.cancelled)]


def _chosen(look: Look, room: int) -> list[Run]:
    """What is owned first, then what waits, then the latest ends; each has a share if there is too much of another."""
    share = max(1, room // 4)
    owned = look.owned[: max(share, room - min(share, len(look.waiting)) - min(share, len(look.ended)))]
    waiting = look.waiting[: max(share, room - len(owned) - min(share, len(look.ended)))]
    ended = look.ended[: max(0, room - len(owned) - len(waiting))]
    return [*owned, *waiting, *ended][:room]


def _devices(look: Look, width: int) -> list[Text]:
    """One line for each device: how many of its slots are taken, and how long ago it was heard of."""
    there = sorted((one for one in look.sessions.values() if one.state in HEARD), key=_order)
    if not there:
        return [Text("No device is joined: asterism device join NAME", tone("waiting"), no_wrap=True)]
    wide = max(len(shorten(one.device, WIDEST_DEVICE)) for one in there[:MOST_DEVICES])
    most = min(MOST_BOXES, max(one.slots for one in there[:MOST_DEVICES]))
    lines = [_device(look, one, wide, most) for one in there[:MOST_DEVICES]]
    more = len(there) - MOST_DEVICES
    return [*lines, *([Text(f"and {plural(more, 'more device')}", DIM)] if more > 0 else [])]


def _order(session: Session) -> tuple[bool, str]:
    return (session.used == 0, session.device)


def _device(look: Look, session: Session, wide: int, most: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{shorten(session.device, WIDEST_DEVICE):<{wide}}  ")
    taken = min(session.used, session.slots)
    if session.slots <= MOST_BOXES:
        line.append("■" * taken, tone("running")).append("□" * (session.slots - taken), DIM)
        line.append(" " * (most - session.slots))
    else:
        line.append(" " * most)
    line.append(f"  {session.used}/{session.slots}", DIM)
    state = state_of(session, look.now)
    words = [] if state in ("ready", "busy") else [state]
    words += ["coordinator"] if session.device == look.coordinator else []
    age = format_age(look.now - session.beat_at)
    line.append(f"  heard of {age} ago", tone("failed") if state == "silent" else DIM)
    return line.append(clean("".join(f"  {word}" for word in words)), tone("waiting"))
