"""Events of the world outside: a name and data, which somebody sends and plans wait for.

An event is one commit: the next number (``events``), the event under its name (``event/NAME/000000000042``), and a line
of the log by number (``event-log/000000000042``), in which those who were woken find what is new. With a ``key`` there
is a register for it, too, so an event that is sent again under its name and key is the one that was sent before.

Events are not messages to somebody: they are kept for some days (``Settings.keep_events``), and continue also what
begins to wait later. Which plan has taken an event is a register of its own (``event-taken/NAME/FILE/NUMBER/PLAN``),
written in the commit of the step that the event brings about. ``core/plan/awaited.py`` has the rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from asterism.core.errors import AsterismError, TooLarge
from asterism.core.json_values import plain_json
from asterism.core.record import Record, replace
from asterism.core.schedule.schedule import event_name_problem
from asterism.store.optimistic_update import retried, try_commit
from asterism.store.protocol import EVENTS_SENT, PutRegister, Register, Store, Write, read_slot
from asterism.store.row_codec import readable

EVENTS, LOG, KEYS, TAKEN = "event/", "event-log/", "event-key/", "event-taken/"
"""Prefixes of the keys of registers: events by name, their names by number, by key, and who has taken them."""

LARGEST_DATA = 64 * 1024
"""How many bytes the data of an event have at most, as JSON."""

LONGEST_KEY = 500

FIRST_OF_FILE = "@"
"""Stands in a key for the one later plan of a plan file that gets an event. No plan is so called."""

PAGE = 200
"""How many events one commit removes."""


class InvalidEvent(AsterismError, ValueError):
    """An event with a name or a key that cannot be used."""


class SentEvent(Record, omit_defaults=True, forbid_unknown_fields=True):
    """``by`` is who sent it. ``again`` is whether it had been sent before, under the same key."""

    number: int
    name: str
    at: float
    data: Any = None
    key: str | None = None
    by: str = ""
    again: bool = False


class EventTaker(Record, forbid_unknown_fields=True):
    """Who has taken an event: a task of a plan, or a schedule, which has started the plan."""

    plan: str
    at: float
    task: str = ""
    schedule: str = ""


def names_prefix(name: str) -> str:
    """The prefix of the keys of the events of a name."""
    return f"{EVENTS}{quote(name, safe='')}/"


def event_key(name: str, number: int) -> str:
    return f"{names_prefix(name)}{number:012d}"


def mark_key(name: str, key: str) -> str:
    """The key of the register that says which event of a name has been sent with a key."""
    return f"{KEYS}{quote(name, safe='')}/{hashlib.sha256(key.encode()).hexdigest()}"


def log_key(number: int) -> str:
    return f"{LOG}{number:012d}"


def takers_prefix(name: str, file: str = "") -> str:
    """The prefix of the keys of those who have taken events of a name; with ``file`` of the plans of one plan file."""
    return f"{TAKEN}{quote(name, safe='')}/" + (f"{quote(file, safe='')}/" if file else "")


def taking(event: SentEvent, file: str, taker: EventTaker, *, later: bool) -> PutRegister:
    """The write with which a plan takes an event. Of plans that began ``later`` than the event was sent, one of each
    plan file gets it: the commit of a second one conflicts."""
    who = FIRST_OF_FILE if later else taker.plan
    return PutRegister(f"{takers_prefix(event.name, file)}{event.number:012d}/{who}", taker.to_json(), None)


@retried
async def send_event(store: Store, name: str, data: Any = None, *, key: str | None = None, by: str = "") -> SentEvent:
    """Send an event; durable when it returns. With a ``key``, only once: the second time the first one is returned.
    Raises InvalidEvent, NotJson and TooLarge."""
    problem = event_name_problem(name)
    if problem is None and key is not None and not (0 < len(key) <= LONGEST_KEY and key.isprintable()):
        problem = f"the key of an event has 1 to {LONGEST_KEY} printable characters"
    if problem is not None:
        raise InvalidEvent(problem)
    data = plain_json(data, f"the data of event {name!r}")
    size = len(json.dumps(data))
    if size > LARGEST_DATA:
        raise TooLarge(
            f"the data of event {name!r} have {size:,} bytes; an event has {LARGEST_DATA:,} at most: write them to a "
            "file, and send its name"
        )
    mark = None if key is None else mark_key(name, key)
    known = None if mark is None else await store.register(mark)
    before = None if known is None else await store.register(event_key(name, known.value))
    if before is not None:
        return replace(_decode(before), again=True)
    last = await read_slot(store, EVENTS_SENT, 0)
    number = last.value + 1
    event = SentEvent(number, name, store.clock(), data, key, by)
    writes: list[Write] = [last.put(number)]
    writes.append(PutRegister(event_key(name, number), event.to_json(), None))
    writes.append(PutRegister(log_key(number), {"name": name, "at": event.at}, None))
    if mark is not None:
        writes.append(PutRegister(mark, number, known and known.revision))
    await store.commit(writes)
    return event


async def last_number(store: Store) -> int:
    """The number of the last event; 0 if none was ever sent."""
    return int((await read_slot(store, EVENTS_SENT, 0)).value)


async def name_of(store: Store, number: int) -> str | None:
    """The name of an event; None if it is no longer kept."""
    entry = await store.register(log_key(number))
    return None if entry is None else str(entry.value["name"])


async def event_of(store: Store, name: str, number: int) -> SentEvent | None:
    """An event; None if it is not kept, or cannot be read."""
    register = await store.register(event_key(name, number))
    return next(iter(readable(_decode, [] if register is None else [register])), None)


async def events_of(store: Store, name: str) -> list[SentEvent]:
    """The events of a name that are kept, oldest first. One that cannot be read is left out, and logged."""
    return readable(_decode, await store.registers(names_prefix(name)))


def _decode(register: Register) -> SentEvent:
    return register.read(SentEvent.from_json)


async def latest_events(store: Store, before: int | None, limit: int) -> list[SentEvent]:
    """The newest events, of all names, with a smaller number than ``before``."""
    events: list[SentEvent] = []
    number = await last_number(store) if before is None else before - 1
    while number > 0 and len(events) < limit:
        name = await name_of(store, number)
        if name is None:  # all older ones are gone, too
            break
        if (event := await event_of(store, name, number)) is not None:
            events.append(event)
        number -= 1
    return events


async def takers_of(store: Store, name: str, file: str = "") -> dict[int, list[EventTaker]]:
    """Who has taken the events of a name, by the numbers of the events."""
    takers: dict[int, list[EventTaker]] = {}
    for register in await store.registers(takers_prefix(name, file)):
        takers.setdefault(_number(register), []).append(register.read(EventTaker.from_json))
    return takers


def _number(taker: Register) -> int:
    """The event that the register of a taker is about."""
    return int(taker.key.removeprefix(TAKEN).split("/", 3)[2])


async def remove_events(store: Store, before: float) -> int:
    """Remove the events that were sent before then. Returns how many."""
    old = [entry for entry in await store.registers(LOG) if entry.value["at"] < before]
    for first in range(0, len(old), PAGE):  # the oldest first: ``latest_events`` ends at the first that is gone
        removed = await _parts(store, old[first : first + PAGE])
        if not await try_commit(store, [PutRegister(part.key, None, part.revision) for part in removed]):
            return first  # another process removes them
    return len(old)


async def _parts(store: Store, entries: Iterable[Register]) -> list[Register]:
    """The registers of events, with those of their keys and takers."""
    parts: list[Register] = []
    takers: dict[str, list[Register]] = {}
    for entry in entries:
        name, number = str(entry.value["name"]), int(entry.key.removeprefix(LOG))
        event = await store.register(event_key(name, number))
        key = event.value.get("key") if event is not None and isinstance(event.value, dict) else None
        mark = None
        if key is not None:
            mark = await store.register(mark_key(name, key))
        if name not in takers:
            takers[name] = await store.registers(takers_prefix(name))
        taken = [taker for taker in takers[name] if _number(taker) == number]
        parts += [part for part in (entry, event, mark, *taken) if part is not None]
    return parts
