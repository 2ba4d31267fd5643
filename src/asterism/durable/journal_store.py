"""Journal store: the keys of a stored plan (head, journal, snapshot), and how it is inserted and loaded.

A stored plan has a *head* (``plan/NAME``: its owner, the owner's epoch, where the journal begins) and a *journal*:
numbered records (``journal/NAME/000000000042``), each written once. The journal begins with a snapshot, in one or more
records; the steps since follow (``core/plan/journal.py``). Compaction (``compaction.py``) replaces a long journal by a
snapshot beside it, in parts that the head names (``snapshot/NAME/000000000042/000000``, with the number of the last
record that it includes); the journal then begins with the record after that.

A new record has the next number, so its writer has seen all records before it, and of two writers only one succeeds.
The commit expects the record before it, because compaction removes old records, whose numbers could be written again.
The first number is derived from the time, so two plans of one name never share a number. This keeps two orchestrators
apart, whatever their clocks say: the late one learns it from the store, before anything of its commit has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.base import expressions
from asterism.base.expressions import Conditions
from asterism.base.text import join_names
from asterism.core.errors import AsterismError, PlanError
from asterism.core.json_values import NOTHING
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import (
    SCHEMA,
    Files,
    Finish,
    RecordedConstellation,
    RecordedLock,
    Step,
    UnreadableJournal,
    check_schema,
    decode_steps,
    lock_from_json,
    lock_to_json,
    replay,
)
from asterism.core.plan.plan_codec import StoredValue
from asterism.core.plan.status import ConstellationState
from asterism.core.record import InvalidRecord, Record, Struct, field, replace
from asterism.durable.plan_summaries import ENDED, PlanSummary, running_tasks, summary_of
from asterism.execution.function_modules import stored_path
from asterism.execution.task_inputs import call_apart
from asterism.fleet.ledger import is_small, put_large
from asterism.orchestrator.plan_mask import mask_conditions
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import (
    BLOB_USES,
    FILE_USES,
    PLANS,
    ExpectRegister,
    Notice,
    PlanRow,
    PutPlan,
    PutRegister,
    Register,
    Store,
    Write,
)
from asterism.store.store_errors import Conflict, StoreBusy

PART_LENGTH = 200_000
"""How many characters of a snapshot one record holds."""

NUMBERS_PER_SECOND = 1_000_000
"""More records than a process can write in a second, so that a first number derived from the time is always new."""

LARGEST_INLINE = 64 * 1024
"""How many bytes of JSON a result has at most in a record. A larger one is in a blob, as in the record of its run."""

LOAD_ATTEMPTS = 5
"""How often a journal is read if it is compacted meanwhile."""

LONGEST_FILE = 500
"""How many characters the name of a plan file has at most in a head."""

MOST_NAMES = 10
"""How many plans a message names."""

LOCK_TERMS = ("policy", "max_cycles", "edit_timeout")
"""The terms of a head that are options of the lock."""


class UnknownConstellation(PlanError):
    """The store has no plan of this name."""


class ConstellationExists(PlanError):
    """The store has a plan of this name already."""


class OwnershipLost(AsterismError):
    """Another process owns the plan now: this one must stop running it."""


class ReloadRequired(OwnershipLost):
    """Another process changed a run whose end was about to be written, or edited the plan at rest. Nothing of that
    commit happened, and the owner has to load the plan again."""


class Head(Record, forbid_unknown_fields=True):
    """The head of a stored plan. Only who has the plan open writes it."""

    name: str
    state: str
    created_at: float
    terms: Mapping[str, Any]
    """Options that every owner uses: those of the lock, and those of the runs."""

    owner: str | None = None
    """The session that runs the plan, or ran it last. One that owned it for a moment is not named."""

    device: str | None = None
    epoch: int = 0
    """How many owners there were, also for a moment."""

    first: int = 1
    """The number of the first record of the journal."""

    ended_at: float | None = None
    schema: int = SCHEMA
    cancelling: bool = False
    """Whether the plan is being cancelled, by this owner and every later one."""

    cancel_reason: str | None = None
    """Who cancels or cancelled the plan, and why."""

    paused: str | None = None
    """Who paused the plan, and why; None if it is not paused."""

    began: int = 1
    """The value of ``first`` when the plan was stored."""

    snapshot: int | None = None
    """The last record that the snapshot includes; None if the snapshot is in the journal itself."""

    parts: int = 0
    """How many parts the snapshot has."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the plan file that the plan was started with."""

    traceparent: str | None = None
    """The span of the plan, if the process that ran it first traces."""

    file: str = ""
    """The name of the plan file that the plan was started with, without its folder."""

    tags: tuple[str, ...] = ()
    """The tags of the plan file."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def changed(self, **changes: Any) -> Head:
        return replace(self, **changes)


class JournalRecord(Record, omit_defaults=True):
    """A record of a journal. Its writer recognises it by ``mark`` when the answer to a commit was lost."""

    schema: int
    epoch: int
    mark: str
    steps: Sequence[Step]


class StoredConstellation(Struct):
    """A plan as it was loaded: its head with the revision, its lock, and the state of its journal."""

    head: Head
    revision: int
    plan: RecordedConstellation
    lock: RecordedLock
    number: int
    """The number of the last record."""

    steps: int
    """How many steps there are since the snapshot."""

    garbage: Sequence[str] = ()
    """The keys of old records and parts that were not removed."""

    mark: str | None = None
    """The mark of the last record."""

    def summary(self, head: Head, *, records: int = 0) -> PutPlan:
        """The write of its summary, as it is now, after that of ``head`` and of so many new records."""
        return summary_of(head, self.plan, self.lock.opened, self.number + records, list(self.lock.cycles))

    def next_record(self, head: Head, steps: Sequence[Step], mark: str, writes: Sequence[Write] = ()) -> list[Write]:
        """The next commit of the plan: a record with these steps, the head if it changes, and other writes. It expects
        the last record: the number of the next one may be free because the journal was removed."""
        fences: list[Write] = [ExpectRegister(record_key(head.name, self.number), 1)]
        if head is not self.head:
            fences.append(PutRegister(head_key(head.name), head.to_json(), self.revision))
        record = step_record(head.name, self.number + 1, head.epoch, steps, mark)
        return [*fences, record, *writes]

    def written(self, head: Head, steps: Sequence[Step], mark: str | None) -> None:
        """The next record is written."""
        self.number, self.steps, self.mark = self.number + 1, self.steps + len(steps), mark
        self.head, self.revision = head, self.revision + (head is not self.head)


def head_key(name: str) -> str:
    return f"{PLANS}{name}"


def record_key(name: str, number: int) -> str:
    return f"journal/{name}/{number:012d}"


def part_key(name: str, number: int, index: int) -> str:
    return f"snapshot/{name}/{number:012d}/{index:06d}"


def check_name(name: str) -> None:
    if not name.isprintable() or set(name) & set("/@|") or len(name) > 100:
        raise PlanError(
            f"the name of a stored plan must have 1 to 100 printable characters without '/', '@' and '|', not {name!r}"
        )


def decode_head(register: Register) -> Head:
    """Raises UnreadableJournal."""
    check_schema(register.value, register.key)
    try:
        return Head.from_json(register.value)
    except InvalidRecord as error:
        raise UnreadableJournal(f"{register.key} is not the head of a plan: {error}") from None


async def read_heads(store: Store) -> list[Head]:
    """The heads of all plans in a store, except those that cannot be read."""
    heads = []
    for register in await store.registers(PLANS):
        with contextlib.suppress(UnreadableJournal):
            heads.append(decode_head(register))
    return heads


async def read_head(store: Store, name: str) -> tuple[Head, int]:
    """The head of a plan, and its revision. Raises UnknownConstellation, which names the plans that exist."""
    register = await store.register(head_key(name))
    if register is not None:
        return decode_head(register), register.revision
    names = [register.key.removeprefix(PLANS) for register in await store.registers(PLANS)]
    problem = f"there is no plan {name!r} in {store.url}"
    if not names:
        raise UnknownConstellation(
            f"{problem}. The store has no plans; start one with: asterism run PLAN.YAML --store URL"
        )
    raise UnknownConstellation(f"{problem}. The plans are: {join_names(names, MOST_NAMES)}")


def check_storable(plan: Constellation) -> None:
    """Raises NotJson unless another process could execute every task of a plan."""
    for node in plan.nodes.values():
        if node.task.call is not None:
            stored_path(node.task.call, node.id)


# -- writing -----------------------------------------------------------------------------------------------------------


def snapshot_records(plan: RecordedConstellation, lock: RecordedLock, number: int) -> list[PutRegister]:
    """The records of the snapshot with which a journal begins; ``number`` is that of the first."""
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
    store: Store,
    plan: RecordedConstellation,
    lock: RecordedLock,
    options: Mapping[str, Any],
    params: Mapping[str, Any] = NOTHING,
    *,
    file: str = "",
    also: Sequence[Write] = (),
) -> StoredConstellation:
    """Store a new plan, in one commit with other writes. Raises ConstellationExists, and Conflict of the others."""
    new, writes = insertion(store, plan, lock, options, params, file=file)
    try:
        await store.commit([*writes, *also])
    except Conflict as conflict:
        if any(conflict.concerns("register", put.key) for put in also if isinstance(put, PutRegister)):
            raise
        raise ConstellationExists(
            f"{store.url} has a plan {plan.id!r} already; resume it, or give this one another name"
        ) from None
    return StoredConstellation(new, 1, plan, lock, new.first + len(writes) - 3, 0)


def insertion(
    store: Store,
    plan: RecordedConstellation,
    lock: RecordedLock,
    options: Mapping[str, Any],
    params: Mapping[str, Any] = NOTHING,
    *,
    file: str = "",
) -> tuple[Head, list[Write]]:
    """The head of a new plan, and the writes that store the plan: the head, its journal and its summary. ``params`` and
    ``file`` are those of its plan file."""
    check_name(plan.id)
    if not file.isprintable() or len(file) > LONGEST_FILE:
        raise PlanError(f"the name of a plan file must have at most {LONGEST_FILE} printable characters, not {file!r}")
    now = store.clock()
    number = int(now * NUMBERS_PER_SECOND)
    created = str(ConstellationState.CREATED)
    new = Head(
        plan.id, created, now, options, first=number, began=number, params=dict(params), file=file, tags=plan.tags
    )
    head = PutRegister(head_key(plan.id), new.to_json(), None)
    records = snapshot_records(plan, lock, number)
    return new, [head, *records, summary_of(new, plan, 0, number + len(records) - 1)]


async def insert_plan(
    store: Store, plan: Constellation, options: Mapping[str, Any] | None = None
) -> StoredConstellation:
    """Store a plan without running it. ``options`` are the options of its lock, and its other terms."""
    return await insert(store, *unstarted(plan, options or {}))


def unstarted(
    plan: Constellation, options: Mapping[str, Any]
) -> tuple[RecordedConstellation, RecordedLock, dict[str, Any]]:
    """A plan that no process has run, as it is stored: with its lock and the options of that."""
    recorded = RecordedConstellation.of(plan)
    recorded.state = ConstellationState.READY
    options = {"policy": "scoped", "max_cycles": 4, "edit_timeout": 600.0, **options}
    return recorded, RecordedLock(recorded, **{name: options[name] for name in LOCK_TERMS}), options


async def record_end(store: Store, stored: StoredConstellation) -> None:
    """Write the end of a plan into its head, if the last owner died before it could."""
    if not stored.head.ended:
        new = stored.head.changed(state=str(stored.plan.state), owner=None, ended_at=stored.plan.ended_at)
        # a conflict means that another process has just done so
        head = PutRegister(head_key(new.name), new.to_json(), stored.revision)
        await try_commit(store, [head, stored.summary(new)])


# -- reading -----------------------------------------------------------------------------------------------------------


async def load(store: Store, name: str, conditions: Conditions = expressions) -> StoredConstellation:
    """Load a plan as it is now. ``conditions`` evaluates its conditions. Raises UnknownConstellation and
    UnreadableJournal."""
    for _ in range(LOAD_ATTEMPTS):
        head, revision = await read_head(store, name)
        records = {record_number(record): record.value for record in await store.registers(f"journal/{name}/")}
        parts = {part.key: part.value for part in await store.registers(f"snapshot/{name}/")}
        again, _ = await read_head(store, name)
        if again.first == head.first:  # else it was compacted between the two reads
            try:
                return await _decode(store, head, revision, records, parts, conditions)
            except AsterismError:
                raise
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise UnreadableJournal(f"the journal of plan {name!r} is damaged: {error!r}") from error
    raise StoreBusy(f"the journal of plan {name!r} is compacted faster than it can be read; try again")


async def refresh(store: Store, stored: StoredConstellation) -> bool:
    """Bring a loaded plan up to date: replay what was written since. False if that is not known: the plan was
    compacted, replaced or restored."""
    name, (head, revision) = stored.head.name, await read_head(store, stored.head.name)
    last = await store.register(record_key(name, stored.number))
    if head.began != stored.head.began or last is None or last.value.get("mark") != stored.mark:
        return False
    stored.plan.urged = {}  # only an owner needs them
    while await store.register(following := record_key(name, stored.number + 1)) is not None:
        records = {record_number(register): register.value for register in await store.registers(following[:-1])}
        while (record := records.get(stored.number + 1)) is not None:
            steps = steps_of(checked_record(name, stored.number + 1, record))
            await fetch_results(store, steps)
            replay(stored.plan, stored.lock, steps)
            stored.written(stored.head, steps, record.get("mark"))
        await asyncio.sleep(0)
    stored.head, stored.revision = head, revision
    return True


def keep(plans: dict[str, StoredConstellation], stored: StoredConstellation, most: int) -> None:
    """Keep a loaded plan, as the newest of those that have ``most`` tasks together."""
    plans.pop(stored.head.name, None)
    plans[stored.head.name] = stored
    while len(plans) > 1 and sum(len(other.plan) for other in plans.values()) > most:
        del plans[next(iter(plans))]


async def initial_plan(store: Store, name: str) -> Constellation | None:
    """The plan as it was stored; None once its journal has been compacted. Raises UnknownConstellation."""
    head, _ = await read_head(store, name)
    first = await store.register(record_key(name, head.first)) if head.first == head.began else None
    if first is None:
        return None
    others = range(head.first + 1, head.first + first.value["of"])
    parts = [first, *[await store.register(record_key(name, number)) for number in others]]
    texts = [part.value["text"] for part in parts if part is not None]
    return Constellation.from_json(json.loads("".join(texts))["plan"]) if len(texts) == len(parts) else None


async def complete_summary(store: Store, row: PlanRow) -> PlanSummary | None:
    """The summary of a plan whose row in the list has none, an old one, or one that does not name its running tasks:
    the plan is read in full. The summary is stored if the plan is still the same. None if the plan was removed
    meanwhile. Raises UnreadableJournal."""
    try:
        stored = await load(store, row.name)
    except UnknownConstellation:
        return None
    write = stored.summary(stored.head)
    if row.summary is None or row.summary["record"] != stored.number:
        unchanged: list[Write] = [
            ExpectRegister(head_key(row.name), stored.revision),
            ExpectRegister(record_key(row.name, stored.number), 1),
            PutRegister(record_key(row.name, stored.number + 1), None, None),
        ]
        await try_commit(store, [*unchanged, write])  # a conflict means that its owner has written it
    return PlanSummary(**{"name": row.name, **write.summary, "running": running_tasks(stored.plan)})


def record_number(register: Register) -> int:
    """The number of a record of a journal."""
    try:
        return int(register.key.rpartition("/")[2])
    except ValueError:
        raise UnreadableJournal(f"{register.key} is not a record of a journal") from None


async def _decode(
    store: Store,
    head: Head,
    revision: int,
    records: Mapping[int, Any],
    parts: Mapping[str, Any],
    conditions: Conditions,
) -> StoredConstellation:
    plan, lock, rest = await decode_journal(store, head, records, parts, conditions)
    await call_apart(replay, plan, lock, (step for _, some in rest for step in some))
    garbage = [record_key(head.name, number) for number in sorted(records) if number < head.first]
    garbage += sorted(parts.keys() - set(_named_parts(head)))
    last = max(number for number in records if number >= head.first)
    steps = sum(len(some) for _, some in rest)
    return StoredConstellation(head, revision, plan, lock, last, steps, garbage, records[last].get("mark"))


async def decode_journal(
    store: Store, head: Head, records: Mapping[int, Any], parts: Mapping[str, Any], conditions: Conditions
) -> tuple[RecordedConstellation, RecordedLock, list[tuple[int, Sequence[Step]]]]:
    """The plan and the lock of the snapshot that a head names, and the steps since, by record. A large plan is decoded
    in a thread. Raises UnreadableJournal, or what the errors of a damaged record are."""
    if head.first not in records:
        raise UnreadableJournal(f"record {head.first}, the first of the journal of plan {head.name!r}, is missing")
    numbers = sorted(number for number in records if number >= head.first)
    expected = range(head.first, head.first + len(numbers))
    for number, there in zip(expected, numbers, strict=True):
        if number != there:
            raise UnreadableJournal(f"record {number} of the journal of plan {head.name!r} is missing")
    rest: Sequence[Mapping[str, Any]] = [checked_record(head.name, number, records[number]) for number in numbers]
    named = _named_parts(head)
    if named:
        data = await call_apart(_snapshot_in_parts, parts, head.name, named)
    else:
        data, rest = await call_apart(_snapshot_in_journal, rest, head.name)
    steps = list(map(steps_of, rest))
    stored = await _fetch_values(store, data["plan"]["tasks"])
    for some in steps:
        await fetch_results(store, some)
    plan, lock = await call_apart(_restored, data, head, stored, conditions)
    return plan, lock, list(zip(numbers[len(numbers) - len(rest) :], steps, strict=True))


def _restored(
    data: Any, head: Head, stored: Mapping[str, Any], conditions: Conditions
) -> tuple[RecordedConstellation, RecordedLock]:
    """The plan and the lock of a snapshot. ``stored`` are the references to results in blobs, by task."""
    plan = RecordedConstellation.from_json(data["plan"])
    plan.stored = {task: (plan.node(task).value, StoredValue(reference)) for task, reference in stored.items()}
    mask_conditions(plan, conditions)
    lock = RecordedLock(plan, **{name: head.terms[name] for name in LOCK_TERMS})
    lock_from_json(lock, data["lock"])
    return plan, lock


def _named_parts(head: Head) -> list[str]:
    """The keys of the parts of the snapshot, if it is beside the journal."""
    return [] if head.snapshot is None else [part_key(head.name, head.snapshot, n) for n in range(head.parts)]


def checked_record(name: str, number: int, value: Any) -> Mapping[str, Any]:
    """The value of a record. Raises UnreadableJournal for one that another version wrote."""
    check_schema(value, f"record {number} of the journal of plan {name!r}")
    return value  # type: ignore[no-any-return]


def _snapshot_in_journal(values: Sequence[Mapping[str, Any]], name: str) -> tuple[Any, Sequence[Mapping[str, Any]]]:
    """The snapshot at the beginning of a journal, and the records after it."""
    parts = values[: values[0].get("of", 0)]
    if not parts or [part.get("part") for part in parts] != list(range(values[0]["of"])):
        raise UnreadableJournal(f"the journal of plan {name!r} does not begin with a whole snapshot")
    return _join(name, parts), values[len(parts) :]


def _snapshot_in_parts(parts: Mapping[str, Any], name: str, named: Sequence[str]) -> Any:
    """The snapshot in the parts that the head names."""
    for key in named:
        if key not in parts:
            raise UnreadableJournal(f"{key}, a part of the snapshot of plan {name!r}, is missing")
    return _join(name, [parts[key] for key in named])


def _join(name: str, parts: Sequence[Mapping[str, Any]]) -> Any:
    try:
        return json.loads("".join(part["text"] for part in parts))
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableJournal(f"the snapshot of plan {name!r} cannot be read: {error!r}") from None


def steps_of(value: Mapping[str, Any]) -> list[Step]:
    """The steps of a record. Raises UnreadableJournal."""
    return decode_steps(value.get("steps"))


# -- large results -----------------------------------------------------------------------------------------------------


async def store_results(store: Store, plan: RecordedConstellation, number: int, steps: list[Step]) -> list[PutRegister]:
    """Put the large results of the steps of record ``number`` into blobs; the steps then have references to them, and
    so has the next snapshot. Returns the writes that keep the blobs, and the files of tasks, for as long as the plan:
    they belong to the commit of the record."""
    kept: list[tuple[str, int, Any]] = []
    for index, step in enumerate(steps):
        if type(step) is Files:
            kept.append((FILE_USES, index, {"manifest": step.manifest}))
        if type(step) is not Finish:
            continue
        reference = step.stored  # from an earlier try to write the record
        if reference is None and not is_small(step.value):
            reference = await put_large(store, step.value, LARGEST_INLINE)
            if reference is not None:
                plan.stored[step.task] = step.value, StoredValue(reference)
                steps[index] = replace(step, value=None, stored=reference)
        if reference is not None:
            kept.append((BLOB_USES, index, reference))
    return [PutRegister(f"{use}plan/{plan.id}/{number:012d}/{index:06d}", value, None) for use, index, value in kept]


async def fetch_results(store: Store, steps: list[Step]) -> None:
    """Put the results that are in blobs into their steps, beside the references. Raises UnreadableJournal."""
    for index, step in enumerate(steps):
        if type(step) is Finish and step.stored is not None:
            steps[index] = replace(step, value=await _fetch(store, step.stored, step.task))


async def _fetch_values(store: Store, tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put the results that are in blobs into the tasks of a snapshot. Returns the references by task."""
    stored = {item["task"]["id"]: item for item in tasks if "stored" in item}
    for task, item in stored.items():
        item["value"] = await _fetch(store, item["stored"], task)
    return {task: item["stored"] for task, item in stored.items()}


async def _fetch(store: Store, reference: Mapping[str, Any], task: str) -> Any:
    data = await store.blob(reference["$blob"])
    if data is None:
        raise UnreadableJournal(f"the blob {reference['$blob']} with the result of task {task!r} is missing")
    return await call_apart(json.loads, data)


def step_record(name: str, number: int, epoch: int, steps: Sequence[Step], mark: str) -> Write:
    """The write of a record with steps."""
    return PutRegister(record_key(name, number), JournalRecord(SCHEMA, epoch, mark, steps), None)


def stage_write(writes: list[Write], write: PutRegister | Notice) -> bool:
    """Add a write to those of a commit. Returns whether it replaces an earlier one of the same register."""
    for index, staged in enumerate(writes):
        if isinstance(staged, PutRegister) and isinstance(write, PutRegister) and staged.key == write.key:
            writes[index] = replace(write, expected=staged.expected)
            return True
    writes.append(write)
    return False
