"""Creation of many runs of one workflow, batch by batch: each batch is one commit, so all of it is written or nothing.

The runs of a batch are offered to all devices, not assigned one by one: a device with room takes as many as it has
slots in one step. They differ only in id, input, key and label, so one record is made and the others are copies of it.
Their ids ascend in the order of the inputs, and devices take them in this order.

``BulkProgress`` makes a long creation resumable without keys: a register, written in the same commit as each batch,
records how far it has come.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from asterism.base.clock import new_ids
from asterism.base.trace_context import current_traceparent
from asterism.core.errors import AsterismError, NotJson, safe_repr
from asterism.core.json_values import NOTHING, plain_object
from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.run_label import InvalidTemplate, TextTemplate, tidy_label
from asterism.core.run.workflow import Workflow
from asterism.fleet.fleet import Fleet, check_terms
from asterism.store import row_codec
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PutRegister, Store, Write
from asterism.store.run_groups import INPUT_TEXT
from asterism.store.store_errors import StoreError

BATCH = 1000
"""How many runs are written in one commit."""

SLICE = 100
"""After so many runs others get their turn in the event loop, such as the commit of the batch before."""

PROGRESS = "bulk/"
"""Prefix of registers that record how far a creation has come."""

PROGRESS_AGE = 7 * 86400.0
"""How long a creation that was interrupted can be resumed, in seconds."""


class InvalidInput(AsterismError):
    """An input from which no run can be made. ``index`` is its place among the inputs, from 0 on; ``why`` is the
    reason. Nothing of its batch was created."""

    def __init__(self, index: int, why: str) -> None:
        self.index, self.why = index, why
        super().__init__(f"input {index + 1}: {why}")


class Batch(NamedTuple):
    """The runs of a batch, in the order of the inputs; in place of a run whose key is taken, the run that has it.
    ``created`` is how many of them are new."""

    runs: list[Run]
    created: int


class BulkCreation:
    """Creates runs of ``flow``, which is in the store.

    :param label: a template for the labels, such as ``{file}``.
    :param key: a template for the idempotency keys. A run whose key is taken is not created again.
    :param terms: ``series``, ``priority``, ``device`` and ``keep``, as for ``Fleet.create``.
    """

    def __init__(
        self, fleet: Fleet, flow: Workflow, *, label: str | None = None, key: str | None = None, **terms: Any
    ) -> None:
        self._fleet, self._flow = fleet, flow
        self._label = None if label is None else TextTemplate(label)
        self._key = None if key is None else TextTemplate(key)
        if self._key is not None and not self._key.fields:
            raise InvalidTemplate(f"{key!r} gives every run the same key: name a field of the input, such as {{id}}")
        check_terms(None, terms.get("series"), terms.get("device"), terms.get("priority"), terms.get("keep", "epoch"))
        self._terms = terms
        self._millisecond = 0

    async def add(self, inputs: Sequence[Mapping[str, Any]], *writes: Write) -> Batch:
        """Create a run for each input, in one commit with ``writes``. Raises InvalidInput, and Conflict if one of
        ``writes`` does; then nothing was created."""
        return await self.write(await self.prepare(inputs), *writes)

    async def write(self, new: Sequence[Run], *writes: Write) -> Batch:
        """Write runs that were prepared. Raises Conflict if one of ``writes`` does."""
        runs = await self._fleet.ledger.add_batch(new, writes)
        return Batch(runs, sum(run.id == one.id for run, one in zip(runs, new, strict=True)))

    async def prepare(self, inputs: Sequence[Mapping[str, Any]]) -> list[Run]:
        """The runs of a batch, not written yet. Raises InvalidInput."""
        now, chance = self._fleet.store.clock(), self._fleet.chance
        span = current_traceparent()
        first = transitions.create("", self._flow, NOTHING, by=self._fleet.by, now=now, traceparent=span, **self._terms)
        self._millisecond = max(int(now * 1000), self._millisecond + 1)  # later batches have later ids
        ids = new_ids(self._millisecond, chance, len(inputs))
        settings = await self._fleet.settings()
        small = min(settings.large, settings.most)
        copy, label, key, what = first.with_changes, self._label, self._key, f"the input of {self._flow.name!r}"
        runs = []
        for index, (run_id, given) in enumerate(zip(ids, inputs, strict=True)):
            try:
                if type(given) is not dict and not isinstance(given, Mapping):
                    raise NotJson(f"{what} must be an object of named values, not {safe_repr(given)}")
                value = plain_object(given, what)
                text = _text(value)
                if text is None or len(text) > small or "$blob" in value:
                    value = await self._fleet.blobs.keep(value, what)
                    text = row_codec.to_text(value)
                changes: dict[str, Any] = {"id": run_id, "input": value, INPUT_TEXT: (value, text)}
                if label is not None:
                    changes["label"] = tidy_label(label.fill(given))
                if key is not None:
                    changes["key"] = filled = key.fill(given)
                    check_terms(filled, None, None, None, "epoch")
            except StoreError:
                raise
            except AsterismError as error:
                raise InvalidInput(index, str(error)) from error
            runs.append(copy(changes))
            if not len(runs) % SLICE:
                await asyncio.sleep(0)
        return runs


def _text(value: Any) -> str | None:
    """A value as JSON; None if it cannot be written, such as a number with too many digits."""
    try:
        return row_codec.to_text(value)
    except ValueError:
        return None


async def create_many(
    fleet: Fleet, flow: Workflow, inputs: Iterable[Mapping[str, Any]], *, batch: int = BATCH, **terms: Any
) -> list[Run]:
    """Create a run for each input, ``batch`` of them in one commit; see ``Fleet.create_many``. While the store writes a
    batch, the next one is prepared."""
    creation = BulkCreation(fleet, flow, **terms)
    left, runs = iter(inputs), list[Run]()
    prepared = 0
    writing: asyncio.Task[Batch] | None = None
    try:
        while some := list(islice(left, batch)):
            try:
                new = await creation.prepare(some)
            except InvalidInput as error:
                if writing is not None:
                    await writing  # the batches before are written
                raise InvalidInput(prepared + error.index, error.why) from error.__cause__
            prepared += len(new)
            if writing is not None:
                runs += (await writing).runs
            writing = asyncio.create_task(creation.write(new))
            await asyncio.sleep(0)  # it begins
        return runs if writing is None else runs + (await writing).runs
    finally:
        if writing is not None and not writing.done():
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


# -- progress ----------------------------------------------------------------------------------------------------------


class NotTheSameLines(AsterismError):
    """An interrupted creation cannot be resumed: the lines from which it made runs are others now."""


class BulkProgress:
    """How far the creation of runs from numbered lines has come, in a register of the store.

    The name of the register depends on ``what`` is created and on the lines of the first batch, so the same command
    with the same lines finds it. The register has a hash of all lines that were read. It stays until ``finish``, which
    comes after the caller has reported the result: a command that is killed at any moment can be repeated.

    ``lines`` and ``runs`` count what was read and created, ``resumed_lines`` and ``resumed_runs`` what an interrupted
    creation had read and created.
    """

    def __init__(self, store: Store, what: Sequence[Any], first: Sequence[bytes]) -> None:
        lines = hashlib.sha256(b"\n".join(first)).hexdigest()
        self.key = f"{PROGRESS}{hashlib.sha256(json.dumps([what, lines]).encode()).hexdigest()[:32]}"
        self.lines = self.runs = self.resumed_lines = self.resumed_runs = 0
        self._store = store
        self._revision: int | None = None
        self._hash = hashlib.sha256()
        self._expected = ""

    async def read(self, *, restart: bool = False) -> None:
        """Look for an interrupted creation; with ``restart`` forget it. Records of others that are too old to be
        resumed are removed."""
        now = self._store.clock()
        for register in await self._store.registers(PROGRESS):
            ours = register.key == self.key
            if (restart and ours) or register.value["at"] < now - PROGRESS_AGE:
                await try_commit(self._store, [PutRegister(register.key, None, register.revision)])
            elif ours:
                self._revision, self._expected = register.revision, register.value["sha256"]
                self.resumed_lines = register.value["lines"]
                self.runs = self.resumed_runs = register.value["runs"]

    def skip(self, lines: Sequence[bytes]) -> None:
        """Pass lines that an interrupted creation has read, up to ``resumed_lines``. Raises NotTheSameLines."""
        self._count(lines)
        if self.lines == self.resumed_lines and self._hash.hexdigest() != self._expected:
            raise NotTheSameLines(
                f"lines 1 to {self.lines:,} are not those from which {self.runs:,} runs were created before the last "
                "command stopped"
            )

    def advance(self, lines: Sequence[bytes], runs: int) -> PutRegister:
        """Count a batch that is about to be committed. Returns the write that records it, for the same commit."""
        self._count(lines)
        self.runs += runs
        value = {"lines": self.lines, "runs": self.runs, "sha256": self._hash.hexdigest(), "at": self._store.clock()}
        write = PutRegister(self.key, value, self._revision)
        self._revision = (self._revision or 0) + 1
        return write

    def _count(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._hash.update(line + b"\n")
        self.lines += len(lines)

    async def finish(self) -> None:
        """Forget the creation: all of it is done and reported."""
        if self._revision is not None:
            await self._store.commit([PutRegister(self.key, None, self._revision)])
            self._revision = None
