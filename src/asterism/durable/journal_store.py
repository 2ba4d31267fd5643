"""Where a constellation is kept, and how it is read again.

In the store it is a *head* (``plan/NAME``: who runs it, since which epoch, where its journal begins) and a *journal*:
numbered records (``journal/NAME/000000000042``), each of which may be written once. First comes a snapshot, in as many
records as it takes, then the steps since (``journal.py``). When a long journal begins anew (``compaction.py``),
the snapshot is beside it, in parts that the head names (``snapshot/NAME/000000000042/000000``, with the number of the
last record that is in it), and the journal begins with the record after that.

The next record has the next number, so whoever writes one has seen all before it, and of two who try only one can have
it. The record before it has to be there, since numbers that a snapshot has made superfluous are removed and could be
written again; and the first number is that of the moment, so that no two constellations of one name ever share one.
That keeps two orchestrators apart, whatever their clocks say: the one that came late learns it from the store, before
anything it wanted to do has happened.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asterism.base import expressions, function_calls
from asterism.base.expressions import Conditions
from asterism.core.errors import AsterismError, NotJson, PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import (
    SCHEMA,
    RecordedConstellation,
    RecordedLock,
    Step,
    UnreadableJournal,
    lock_from_json,
    lock_to_json,
    replay,
)
from asterism.core.plan.status import ConstellationState
from asterism.core.plan.task import import_path
from asterism.orchestrator.plan_mask import PlanMask
from asterism.store.protocol import PutRegister, Register, Store, Write
from asterism.store.store_errors import Conflict, StoreBusy

PART_LENGTH = 200_000
"""How many characters of a snapshot are in one record."""

PER_SECOND = 1_000_000
"""More records than anybody writes in a second, so that numbers that begin with the time are never used again."""

LOOKS = 5
"""How often a journal is read again that was being shortened meanwhile."""

ENDED = ("completed", "failed", "partially_failed", "cancelled")


class UnknownConstellation(PlanError):
    """The store has no constellation of this name."""


class ConstellationExists(PlanError):
    """The store has a constellation of this name already."""


class OwnershipLost(AsterismError):
    """Somebody else has written the journal that this process believed to be its own: it must stop."""


class ReloadRequired(OwnershipLost):
    """The end of a run could not be written, since somebody had changed the run: what was to follow from it has not
    happened, and this process has to take its constellation up again as the store has it."""


@dataclass(frozen=True)
class Head:
    """``owner`` is the session that runs it, or ran it last; ``epoch`` counts who did. ``first`` is the number of the
    record at which the journal begins. ``terms`` are those of the lock and of the runs. ``cancelling`` is that it
    is being cancelled, whoever goes on with it. Only the owner writes it."""

    name: str
    state: str
    created_at: float
    terms: Mapping[str, Any]
    owner: str | None = None
    device: str | None = None
    epoch: int = 0
    first: int = 1
    ended_at: float | None = None
    schema: int = SCHEMA
    cancelling: bool = False
    began: int = 1
    """What ``first`` was in the beginning."""

    snapshot: int | None = None
    """The record after which the snapshot was taken; None if it is in the journal itself."""

    parts: int = 0
    """Of that snapshot."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "terms": dict(self.terms), "schema": SCHEMA}

    def changed(self, **changes: Any) -> Head:
        return replace(self, **changes)


@dataclass
class StoredConstellation:
    """A constellation as the store has it: the head with its revision, and the number of the last record."""

    head: Head
    revision: int
    plan: RecordedConstellation
    lock: RecordedLock
    number: int
    steps: int
    """How many there are since the snapshot."""

    garbage: Sequence[str] = ()
    """The keys of what was left of this constellation and belongs to it no more."""


def head_key(name: str) -> str:
    return f"plan/{name}"


def record_key(name: str, number: int) -> str:
    return f"journal/{name}/{number:012d}"


def part_key(name: str, number: int, index: int) -> str:
    return f"snapshot/{name}/{number:012d}/{index:06d}"


def check_name(name: str) -> None:
    if not name.isprintable() or set(name) & set("/@|") or len(name) > 100:
        raise PlanError(
            f"the name of a constellation in a store is 1 to 100 printable characters without '/', '@' and '|', "
            f"not {name!r}"
        )


def decode_head(register: Register) -> Head:
    """Raises UnreadableJournal for what a later version wrote."""
    value = register.value
    if not isinstance(value, Mapping) or not isinstance(value.get("schema"), int):
        raise UnreadableJournal(f"{register.key} is not the head of a constellation")
    if value["schema"] > SCHEMA:
        raise UnreadableJournal(
            f"{register.key} was written by a later Asterism (schema {value['schema']}, this one knows {SCHEMA})"
        )
    try:
        return Head(**value)
    except TypeError as error:
        raise UnreadableJournal(f"{register.key} is not the head of a constellation: {error}") from None


async def read_heads(store: Store) -> list[Head]:
    """Those that can be read: one that cannot is no reason to do nothing about the others."""
    found = []
    for one in await store.registers("plan/"):
        with contextlib.suppress(UnreadableJournal):
            found.append(decode_head(one))
    return found


async def read_head(store: Store, name: str) -> tuple[Head, int]:
    """With its revision. Raises UnknownConstellation."""
    found = await store.register(head_key(name))
    if found is None:
        raise UnknownConstellation(f"there is no constellation {name!r} in {store.url}")
    return decode_head(found), found.revision


def check_storable(plan: Constellation) -> None:
    """Raises NotJson unless another process could execute every task of a plan."""
    for node in plan.nodes.values():
        call = node.task.call
        if call is None or isinstance(call, str):
            continue
        path = import_path(call, node.id)
        try:
            found: Any = function_calls.load_function(path)
        except ImportError as error:
            raise NotJson(f"task {node.id!r}: {call!r} cannot be imported again as {path}: {error}") from None
        if found is not call:
            raise NotJson(f"task {node.id!r}: {path} is another function than {call!r}, so it cannot be resumed")


# -- writing -----------------------------------------------------------------------------------------------------------


def snapshot(plan: RecordedConstellation, lock: RecordedLock, number: int) -> list[PutRegister]:
    """The records that begin a journal, from a number on."""
    text = json.dumps({"plan": plan.to_json(), "lock": lock_to_json(lock)}, separators=(",", ":"))
    parts = [text[start : start + PART_LENGTH] for start in range(0, len(text), PART_LENGTH)]
    return [
        PutRegister(
            record_key(plan.id, number + index),
            {"schema": SCHEMA, "part": index, "of": len(parts), "text": part},
            None,
        )
        for index, part in enumerate(parts)
    ]


async def insert(
    store: Store, plan: RecordedConstellation, lock: RecordedLock, terms: Mapping[str, Any]
) -> StoredConstellation:
    """Put a new constellation into the store, all of it or nothing. Raises ConstellationExists."""
    check_name(plan.id)
    now = store.clock()
    number = int(now * PER_SECOND)
    new = Head(plan.id, str(ConstellationState.CREATED), now, terms, first=number, began=number)
    parts = snapshot(plan, lock, new.first)
    try:
        await store.commit([PutRegister(head_key(plan.id), new.to_json(), None), *parts])
    except Conflict:
        raise ConstellationExists(
            f"there is a constellation {plan.id!r} in {store.url} already; resume it, or give this one another name"
        ) from None
    return StoredConstellation(new, 1, plan, lock, new.first + len(parts) - 1, 0)


async def insert_plan(store: Store, plan: Constellation, terms: Mapping[str, Any] | None = None) -> StoredConstellation:
    """Put a plan into the store without running it. ``terms`` are those of its lock."""
    recorded = RecordedConstellation.of(plan)
    recorded.state = ConstellationState.READY
    terms = {"policy": "scoped", "max_cycles": 4, "edit_timeout": 600.0, **(terms or {})}
    return await insert(store, recorded, RecordedLock(recorded, **terms), terms)


async def record_end(store: Store, kept: StoredConstellation) -> None:
    """Whoever ended it may have had no time to write it into the head."""
    if kept.head.ended:
        return
    new = kept.head.changed(state=str(kept.plan.state), owner=None, ended_at=kept.plan.ended_at)
    with contextlib.suppress(Conflict):  # then somebody else has said so
        await store.commit([PutRegister(head_key(new.name), new.to_json(), kept.revision)])


# -- reading -----------------------------------------------------------------------------------------------------------


async def load(store: Store, name: str, conditions: Conditions = expressions) -> StoredConstellation:
    """The constellation as it is now. Raises UnknownConstellation and UnreadableJournal."""
    for _ in range(LOOKS):
        found, revision = await read_head(store, name)
        records = {_number(one): one.value for one in await store.registers(f"journal/{name}/")}
        parts = {one.key: one.value for one in await store.registers(f"snapshot/{name}/")}
        again, _ = await read_head(store, name)
        if again.first == found.first:  # else it was shortened between the two looks
            try:
                return _read(found, revision, records, parts, conditions)
            except AsterismError:
                raise
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise UnreadableJournal(f"the journal of {name!r} is damaged: {error!r}") from error
    raise StoreBusy(f"the journal of {name!r} is shortened faster than it can be read; try again")


def _number(register: Register) -> int:
    try:
        return int(register.key.rpartition("/")[2])
    except ValueError:
        raise UnreadableJournal(f"{register.key} is not a record of a journal") from None


def _read(
    found: Head, revision: int, records: Mapping[int, Any], parts: Mapping[str, Any], conditions: Conditions
) -> StoredConstellation:
    if found.first not in records:
        raise UnreadableJournal(f"the journal of {found.name!r} begins with record {found.first}, and there is none")
    numbers = sorted(number for number in records if number >= found.first)
    expected = range(found.first, found.first + len(numbers))
    for number, there in zip(expected, numbers, strict=True):
        if number != there:
            raise UnreadableJournal(f"record {number} of the journal of {found.name!r} is missing")
    rest: Sequence[Mapping[str, Any]] = [_readable(found.name, number, records[number]) for number in numbers]
    named = [] if found.snapshot is None else [part_key(found.name, found.snapshot, n) for n in range(found.parts)]
    data, rest = (_beside(found.name, named, parts), rest) if named else _whole(found.name, rest)
    plan = RecordedConstellation.from_json(data["plan"])
    plan.evaluate, plan.check_condition = PlanMask(plan).over(conditions.evaluate), conditions.check
    lock = RecordedLock(plan, **{name: found.terms[name] for name in ("policy", "max_cycles", "edit_timeout")})
    lock_from_json(lock, data["lock"])
    steps = list(_steps(rest))
    replay(plan, lock, steps)
    garbage = [record_key(found.name, number) for number in sorted(records) if number < found.first]
    garbage += sorted(parts.keys() - set(named))
    return StoredConstellation(found, revision, plan, lock, numbers[-1], len(steps), garbage)


def _readable(name: str, number: int, value: Any) -> Mapping[str, Any]:
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if not isinstance(schema, int):
        raise UnreadableJournal(f"record {number} of the journal of {name!r} is not a record: {str(value)[:80]}")
    if schema > SCHEMA:
        raise UnreadableJournal(
            f"record {number} of the journal of {name!r} was written by a later Asterism "
            f"(schema {schema}, this one knows {SCHEMA})"
        )
    return value  # type: ignore[no-any-return]


def _whole(name: str, values: Sequence[Mapping[str, Any]]) -> tuple[Any, Sequence[Mapping[str, Any]]]:
    """The snapshot, and what follows it."""
    parts = values[: values[0].get("of", 0)]
    if not parts or [part.get("part") for part in parts] != list(range(values[0]["of"])):
        raise UnreadableJournal(f"the journal of {name!r} does not begin with a whole snapshot")
    return _joined(name, parts), values[len(parts) :]


def _beside(name: str, named: Sequence[str], parts: Mapping[str, Any]) -> Any:
    """The snapshot that the head names."""
    for key in named:
        if key not in parts:
            raise UnreadableJournal(f"{key} is missing, which is a part of the snapshot of {name!r}")
    return _joined(name, [parts[key] for key in named])


def _joined(name: str, parts: Sequence[Mapping[str, Any]]) -> Any:
    try:
        return json.loads("".join(part["text"] for part in parts))
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableJournal(f"the snapshot of {name!r} cannot be read: {error!r}") from None


def _steps(values: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    for value in values:
        steps = value.get("steps")
        if not isinstance(steps, list):
            raise UnreadableJournal(f"a record of a journal has no steps: {str(value)[:80]}")
        yield from steps


def step_record(name: str, number: int, epoch: int, steps: Sequence[Step], mark: str) -> Write:
    """``mark`` is its writer's own, who recognises it by that when the answer was lost."""
    return PutRegister(
        record_key(name, number), {"schema": SCHEMA, "epoch": epoch, "mark": mark, "steps": list(steps)}, None
    )
