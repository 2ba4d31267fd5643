"""Creation of many runs of one workflow, part by part: each part is one commit, so all of it is written or nothing.

The runs are offered to all devices, not assigned one by one: a device with room takes as many as it has
slots in one step. They differ only in id, input, key and label, so one record is made and the others are copies of it.
Their ids ascend in the order of the inputs, and devices take them in this order. With keys, a creation that was
interrupted can be repeated: it creates only what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Unpack

from asterism.base.trace_context import current_traceparent
from asterism.core.errors import AsterismError, NotJson, safe_repr
from asterism.core.json_values import NOTHING, plain_object
from asterism.core.limits import check_uses, uses_of, with_series
from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.run_label import TextTemplate, key_template, tidy_label
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet, RunOptions, check_options, filled_uses
from asterism.fleet.stored_limits import read_limits
from asterism.store import row_codec
from asterism.store.protocol import Write
from asterism.store.store_errors import StoreError

PER_COMMIT = 1000
"""How many runs are written in one commit."""

SLICE = 100
"""After so many runs others get their turn in the event loop, such as the commit of the part before."""


class InvalidInput(AsterismError):
    """An input from which no run can be made. ``index`` is its place among the inputs, from 0 on; ``why`` is the
    reason. Nothing of its part was created."""

    def __init__(self, index: int, why: str) -> None:
        self.index, self.why = index, why
        super().__init__(f"input {index + 1}: {why}")


class CreatedRuns(NamedTuple):
    """The runs of a commit, in the order of the inputs; in place of a run whose key is taken, the run that has it.
    ``created`` is how many of them are new."""

    runs: list[Run]
    created: int


class BulkCreation:
    """Creates runs of ``flow``, which is in the store.

    :param label: a template for the labels, such as ``{file}``.
    :param key: a template for the idempotency keys. A run whose key is taken is not created again.
    The other options are as for ``Fleet.create``.
    """

    def __init__(self, fleet: Fleet, flow: Workflow, **options: Unpack[RunOptions]) -> None:
        self._fleet, self._flow = fleet, flow
        label, key = options.pop("label", None), options.pop("key", None)
        self._label = None if label is None else TextTemplate(label)
        self._key = None if key is None else key_template(key)
        check_options(options)
        self._options = options

    async def add(self, inputs: Sequence[Mapping[str, Any]], *writes: Write) -> CreatedRuns:
        """Create a run for each input, in one commit with ``writes``. Raises InvalidInput; then nothing was
        created."""
        return await self.write(await self.prepare(inputs), *writes)

    async def write(self, new: Sequence[Run], *writes: Write) -> CreatedRuns:
        """Write runs that were prepared."""
        runs = await self._fleet.ledger.add_batch(new, writes)
        return CreatedRuns(runs, sum(run.id == prepared.id for run, prepared in zip(runs, new, strict=True)))

    async def prepare(self, inputs: Sequence[Mapping[str, Any]]) -> list[Run]:
        """The runs of a part, not written yet. Raises InvalidInput."""
        now, new_id = self._fleet.store.clock(), self._fleet.run_ids.new
        span = current_traceparent()
        first = transitions.create(
            "", self._flow, NOTHING, by=self._fleet.by, now=now, traceparent=span, **self._options
        )
        settings = await self._fleet.settings()
        small = min(settings.large, settings.most)
        limits = await read_limits(self._fleet.store) if self._flow.uses else {}
        copy, label, key, what = first.with_changes, self._label, self._key, f"the input of {self._flow.name!r}"
        runs = []
        for index, run_input in enumerate(inputs):
            try:
                if type(run_input) is not dict and not isinstance(run_input, Mapping):
                    raise NotJson(f"{what} must be an object of named values, not {safe_repr(run_input)}")
                value = plain_object(run_input, what)
                text = _text(value)
                if text is None or len(text) > small or "$blob" in value:
                    value = await self._fleet.blobs.keep(value, what)
                changes: dict[str, Any] = {"id": new_id(now), "input": value}
                if label is not None:
                    changes["label"] = tidy_label(label.fill(run_input))
                if self._flow.uses:
                    uses = filled_uses(self._flow, run_input)
                    check_uses(limits, uses_of(uses))
                    changes["uses"] = with_series(uses, first.series)
                if key is not None:
                    changes["key"] = filled = key.fill(run_input)
                    check_options({"key": filled})
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
    fleet: Fleet,
    flow: Workflow,
    inputs: Iterable[Mapping[str, Any]],
    *,
    per_commit: int = PER_COMMIT,
    **options: Unpack[RunOptions],
) -> list[Run]:
    """Create a run for each input, ``per_commit`` of them in one commit; see ``Fleet.create_many``. While the store
    writes some, the next ones are prepared."""
    creation = BulkCreation(fleet, flow, **options)
    left, runs = iter(inputs), list[Run]()
    prepared = 0
    writing: asyncio.Task[CreatedRuns] | None = None
    try:
        while some := list(islice(left, per_commit)):
            try:
                new = await creation.prepare(some)
            except InvalidInput as error:
                if writing is not None:
                    await writing  # the parts before are written
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
