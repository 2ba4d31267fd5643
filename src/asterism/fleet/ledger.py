"""Changes of run records: read, apply a transition, commit, retry after a conflict; large values as blobs.

Another writer may be faster: then the run is read again and the step is judged anew. The store may be unavailable, and
the answer to a commit lost: then the ledger looks whether its own entry is part of the story of the run, so that
nothing happens twice and nothing that happened is denied.

Inputs and outputs that are large are stored apart, as blobs, so that records stay small (``RunBlobs``).
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from asterism.base.clock import Clock
from asterism.core.errors import AsterismError, NotJson, RunRefused
from asterism.core.json_values import JsonObject
from asterism.core.run.merge import own_story
from asterism.core.run.run import Run
from asterism.core.run.run_label import task_name
from asterism.execution.task_inputs import call_apart
from asterism.fleet.settings import Settings
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import Notice, PutCopy, PutRegister, PutRun, Query, Store, Write, feed_of, has_feed
from asterism.store.store_errors import Conflict, StoreCorrupt

Step = Callable[[Run], Run]
"""A change of a run: from the record in the store to the next one. It raises RunRefused, or returns the run itself if
there is nothing to change."""

CHANGE_TIMEOUT = 10.0
"""How long a change is tried while the store is unavailable, in seconds."""

WRITES_REMEMBERED = 20
"""How many of its own writes a change recognises in the story of a run."""

_SMALL_TYPES = frozenset({bool, float, type(None)})
_compact = json.JSONEncoder(separators=(",", ":")).encode  # made once: json.dumps makes one for every text


class Overtaken(AsterismError):
    """Another process changed a register that was to be written beside a new run. Nothing happened."""


class UnknownRun(RunRefused):
    """No run has this id, or none any more."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, "there is no such run")


class _NotRetried(Exception):
    """A conflict that another try would not resolve."""

    def __init__(self, conflict: Conflict) -> None:
        self.conflict = conflict


class Ledger:
    """``chance`` spreads retries; ``on_end`` is called with every run that ended here."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: random.Random,
        on_end: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.store, self.clock = store, clock
        self._chance, self._on_end = chance, on_end

    async def read(self, run_id: str) -> Run:
        run = await self.store.run(run_id)
        if run is None:
            raise UnknownRun(run_id)
        return run

    # -- changes -----------------------------------------------------------------------------------------------------

    async def change(
        self,
        run: str | Run,
        step: Step,
        *,
        patience: float = CHANGE_TIMEOUT,
        tries: int | None = None,
        tried: Run | None = None,
        put: Callable[[Run, Run], Awaitable[Write]] | None = None,
        also: Sequence[Write] = (),
    ) -> Run:
        """Apply a step to a run and return the run as it is then.

        :param run: its id, or a record that is believed to be current, which saves a read if it is.
        :param patience: for how many seconds to try while the store is unavailable.
        :param tries: raise Conflict after so many conflicts; None to try until one succeeds.
        :param tried: the result of the same step elsewhere, if nothing is known about whether it was written.
        :param put: makes the write from the run after the step and before it; by default a PutRun.
        :param also: writes of the same commit.

        Raises what ``step`` raises, and StoreUnavailable."""
        run_id, known = (run.id, run) if isinstance(run, Run) else (run, None)
        written = [] if tried is None else [tried]  # any of these may still be under way

        async def attempt() -> Run:
            nonlocal known
            before = known if known is not None else await self.read(run_id)
            known = None
            if written and any(happened(written_run, before) for written_run in written):
                return before
            after = step(before)
            if after is before:
                return before
            writes: list[Write] = [PutRun(after, before.revision) if put is None else await put(after, before)]
            writes += also
            writes += failure_notice(after)
            written[:] = [*written[-WRITES_REMEMBERED:], after]
            await self.store.commit(writes)
            return after

        after = await retry_on_conflict(attempt, tries=tries, patience=patience, clock=self.clock, chance=self._chance)
        if after.ended:
            self._on_end(after)
        return after

    async def request(self, run_id: str, step: Step) -> Run:
        """Apply a step that a person asks for. A run that is left to a peer stays with it."""
        return await self.change(run_id, step, put=self.put_in_place)

    async def put_in_place(self, after: Run, before: Run) -> Write:
        """The write of a step. A run that is left to a peer stays with it."""
        judge = (await feed_of(self.store).left_to([after.id])).get(after.id) if has_feed(self.store) else None
        return PutRun(after, before.revision) if judge is None else PutCopy(after, before.revision, judge, same=False)

    async def put_own(self, after: Run, before: Run) -> Write:
        """The write of a step that only the store that decides about a run may take. Raises RunRefused for others."""
        if has_feed(self.store) and await feed_of(self.store).left_to([after.id]):
            raise RunRefused(before.id, "a peer decides about it: do this in the store of the peer", before.story)
        return PutRun(after, before.revision)

    async def add(self, run: Run, assign: Callable[[Run], Run], *, beside: Sequence[PutRegister | Notice] = ()) -> Run:
        """Write a new run; ``assign`` assigns it in the same write. Returns the existing run if the key is taken.
        ``beside`` is written in the same commit; raises Overtaken if that is not possible."""
        attempted = False

        async def attempt() -> Run:
            nonlocal attempted
            if attempted and (existing := await self.store.run(run.id)) is not None:
                return existing
            added = assign(run)
            attempted = True
            try:
                await self.store.commit([PutRun(added, None), *beside])
            except Conflict as conflict:
                existing = await self._existing(run, conflict, beside)
                if existing is None:
                    raise
                return existing
            return added

        return await retry_on_conflict(attempt, patience=CHANGE_TIMEOUT, clock=self.clock, chance=self._chance)

    async def add_batch(self, runs: Sequence[Run], writes: Sequence[Write] = ()) -> list[Run]:
        """Write new runs and ``writes`` in one commit: all or nothing. Returns the runs; in place of one whose key
        is taken, the run that has it. Raises Conflict if one of ``writes`` does."""
        first = {run.key: run for run in reversed(runs)}  # of two runs with one key, the first is written
        new = [run for run in runs if run.key is None or first[run.key] is run]
        existing: dict[str | None, Run] = {}
        attempted = False

        async def attempt() -> list[Run]:
            nonlocal attempted
            left = [run for run in new if run.key not in existing] if existing else new
            if attempted and left and await self.store.run(left[0].id) is not None:
                return [await self.read(run.id) for run in left]  # all are there: the answer was lost
            attempted = True
            try:
                await self.store.commit([*(PutRun(run, None) for run in left), *writes])
            except Conflict as conflict:
                if conflict.kind == "key":
                    keys = frozenset(run.key for run in left if run.key is not None)
                    existing.update({run.key: run for run in await self.store.find(Query(keys=keys))})
                elif any(
                    conflict.concerns("register", write.key) for write in writes if isinstance(write, PutRegister)
                ):
                    if not left and await self._are_written(writes):
                        return []
                    raise _NotRetried(conflict) from None
                raise
            return left

        try:
            written = await retry_on_conflict(attempt, patience=CHANGE_TIMEOUT, clock=self.clock, chance=self._chance)
        except _NotRetried as refused:
            raise refused.conflict from None
        if len(written) == len(runs):
            return list(written)
        existing.update({run.key: run for run in written if run.key is not None})
        by_id = {run.id: run for run in written}
        return [by_id.get(run.id) or existing[run.key] for run in runs]

    async def _are_written(self, writes: Sequence[Write]) -> bool:
        """Whether registers have the values of these writes, by a commit whose answer was lost."""
        for write in writes:
            if isinstance(write, PutRegister):
                register = await self.store.register(write.key)
                if (None if register is None else register.value) != write.value:
                    return False
        return True

    async def _existing(self, run: Run, conflict: Conflict, beside: Sequence[PutRegister | Notice]) -> Run | None:
        """The run that conflicts with a new one: the one with its key, or the new one itself, written by a commit whose
        answer was lost. None if there is no such run (any more)."""
        if any(conflict.concerns("register", write.key) for write in beside if isinstance(write, PutRegister)):
            written = await self.store.run(run.id)
            if written is None:
                raise Overtaken(f"another process has changed the {conflict.what}")
            return written
        if run.key is not None and conflict.concerns("key", run.key):
            runs = await self.store.find(Query(key=run.key))
            return runs[0] if runs else None
        return await self.read(run.id) if conflict.concerns("run", run.id) else None


def failure_notice(run: Run, at: float | None = None) -> list[Write]:
    """The notice that a run failed, by default at its end; none if it did not, or if a person cancelled it."""
    if run.error is None or run.cancelled:
        return []
    name = run.label or task_name(run)
    what = run.workflow if name is None else f"{run.workflow}: {name}"
    message = f"run {run.id} ({what}) failed: {without_control(run.error)}"
    return [Notice((run.ended_at or 0.0) if at is None else at, "failed", message, run.id, run.device)]


def happened(written: Run, stored: Run) -> bool:
    """Whether a write of ours is part of the history of the stored run. Stories only grow, so ours is the beginning of
    the stored one; or part of it, if it was merged with a peer's record since. The grant is compared too, since two
    writers may write the same words at the same moment."""
    return (
        stored.revision >= written.revision
        and (stored.story[: len(written.story)] == written.story or set(own_story(written)) <= set(stored.story))
        and (stored.epoch != written.epoch or stored.session in (written.session, None))
    )


def without_control(text: str) -> str:
    """The words of a program or a peer without control characters, which a terminal would act upon."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


# -- large inputs and outputs ------------------------------------------------------------------------------------------


def is_small(value: Any) -> bool:
    """Whether a value is stored in the record, whatever the settings say."""
    return type(value) in _SMALL_TYPES or not value


def blob_of(value: Any) -> str | None:
    """The name of the blob that holds a value; None for a value that is stored in the record."""
    if isinstance(value, dict) and len(value) == 2 and "$blob" in value and "size" in value:
        return value["$blob"]  # type: ignore[no-any-return]
    return None


async def put_large(store: Store, value: Any, inside: int) -> JsonObject | None:
    """Store a JSON value as a blob if its JSON has more than ``inside`` bytes. Returns the reference; None for a value
    that is small, or that cannot be written as JSON after all."""
    try:
        text = await call_apart(_compact, value)
    except ValueError:
        return None
    return await _put(store, text) if len(text) > inside else None


async def _put(store: Store, text: str) -> JsonObject:
    data = text.encode()
    return {"$blob": await store.put_blob(data), "size": len(data)}


class RunBlobs:
    """``settings`` reads the settings of the fleet, which say what is large."""

    def __init__(self, store: Store, settings: Callable[[], Awaitable[Settings]]) -> None:
        self._store, self._settings = store, settings

    async def check(self, value: Any, what: str) -> None:
        """Raise TooLarge for a result that is larger than the settings of the fleet allow."""
        if not is_small(value) and not (type(value) is str and len(value) * 6 < 1000):
            limit = (await self._settings()).value_limit
            limit.check(len((await call_apart(_compact, value)).encode()), what)

    async def keep(self, value: Any, what: str, *, results: bool = False) -> Any:
        """Store a JSON value if it is large. Returns the value, or the reference to its blob. ``what`` names it in
        messages. With ``results`` it is an object of results, and the limit is that of each. Raises TooLarge, and
        NotJson for a value that cannot be written as JSON after all."""
        if is_small(value):
            return value
        settings = await self._settings()
        inside = min(settings.large, settings.most)
        if type(value) is str and len(value) * 6 < inside:
            return value
        try:
            text = await call_apart(_compact, value)
        except ValueError as error:  # a number with more digits than Python prints
            raise NotJson(f"{what} cannot be written as JSON: {error}") from None
        if len(text) <= inside:
            if blob_of(value) is not None:
                raise NotJson(f"{what} looks like a reference to a blob; put it into another object")
            return value
        if not results:
            settings.value_limit.check(len(text), what)
        elif len(text) > settings.most:
            for name, part in value.items():
                settings.value_limit.check(len(await call_apart(_compact, part)), f"{name!r} in {what}")
        return await _put(self._store, text)

    async def copy(self, value: Any) -> Any:
        """The value for another run: its blob is stored anew, since the first run may be pruned with its own."""
        name = blob_of(value)
        return value if name is None else {**value, "$blob": await self._store.put_blob(await self._read(name))}

    async def fetch(self, value: Any) -> Any:
        """The value that ``keep`` was given."""
        name = blob_of(value)
        return value if name is None else await call_apart(json.loads, await self._read(name))

    async def _read(self, name: str) -> bytes:
        data = await self._store.blob(name)
        if data is None:
            raise StoreCorrupt(f"the blob {name} is missing")
        return data
