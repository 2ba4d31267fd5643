"""Runs that are granted to devices of a gateway: the tokens of grants, and the steps that devices ask for.

A step whose answer was lost is sent again, and is recognised by the record of the run. A result that comes too late is
refused, and people get a notice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asterism.base.clock import first_of
from asterism.base.expressions import holds
from asterism.base.http_limits import RequestRefused
from asterism.base.remembered import Remembered
from asterism.core.errors import AsterismError, Fenced, NotJson, RunRefused
from asterism.core.json_values import JsonObject, plain_json
from asterism.core.run import transitions
from asterism.core.run.placement import Weights, mismatch_reason
from asterism.core.run.run import COMPLETED, Grant, Run
from asterism.core.run.session import Session
from asterism.fleet.device.device_connection import Claim, Complete, Decline, Disown, Fail, OwnerStep, Start
from asterism.fleet.device.store_connection import StoreConnection, election_standings, late_notice
from asterism.fleet.device.take_order import SAME_TIME, leaves_to_others
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import blob_of, is_small
from asterism.gateway.device_storage import DeviceFiles, DeviceStorage
from asterism.gateway.enrolment import CredentialRefused, DeviceCredentials, Identity
from asterism.gateway.gateway_messages import (
    MOST_TAKEN,
    InvalidMessage,
    count_in,
    error_json,
    object_in,
    parse_log,
    parse_step,
    texts_in,
)
from asterism.store.protocol import PutLog, PutRun, Watch, Write
from asterism.store.row_codec import row_of
from asterism.store.store_errors import StoreError, StoreUnavailable

STEP_PATIENCE = 5.0
"""How long a step is tried while the store is unavailable, in seconds; then the device tries again."""

RECORDS_REMEMBERED = 20_000
"""How many records of granted runs are remembered, which saves reading them."""

_ANSWERED = (Claim, Start, Decline, Disown)
"""The steps after which a device needs the record of the run."""


class GrantedRuns:
    """Remembers the records of granted runs, which saves reading them before each step."""

    def __init__(
        self, fleet: Fleet, credentials: DeviceCredentials, storage: DeviceStorage, files: DeviceFiles
    ) -> None:
        self._fleet, self._credentials, self._store = fleet, credentials, fleet.store
        self._storage, self._files = storage, files
        self._records: Remembered[str, Run] = Remembered(RECORDS_REMEMBERED)

    def token_of(self, who: Identity, grant: Grant) -> str:
        return self._credentials.grant_token(who.owner.device, grant)

    def granted(self, who: Identity, run: Run) -> list[Any]:
        """A run of the session as its device gets it, with the token of its grant."""
        token = None
        if run.session == who.owner.session and run.grant is not None:
            token = self.token_of(who, run.grant)
            self._records[run.id] = run
        return [row_of(run), token]

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def make_all(self, who: Identity, steps: list[Any]) -> list[Any]:
        """Make the steps of a message, and return their answers. Completions are one commit, if that is possible."""
        answers: list[Any] = [None] * len(steps)
        ended: set[Any] = set()
        ends: list[tuple[int, Complete, Run, Run, list[PutLog]]] = []
        others: list[tuple[int, Mapping[str, Any]]] = []
        now = self._store.clock()  # one for all: equal parts of their records are encoded once
        for number, data in enumerate(map(checked_object, steps)):
            if data.get("do") in ("complete", "fail"):  # its files are checked, which takes time
                if (grant := str(data.get("grant"))) in ended:
                    answers[number] = {"error": "invalid", "message": "a message ends a run once"}
                    continue
                ended.add(grant)
            together = await self._together(who, data, now) if data.get("do") == "complete" else None
            if together is None:
                others.append((number, data))
            else:
                ends.append((number, *together))
        if ends and await self._complete_together(who.owner.device, [end[1:] for end in ends]):
            for end in ends:
                answers[end[0]] = {}
        else:
            others += [(end[0], steps[end[0]]) for end in ends]
        results = await asyncio.gather(*(self._step(who, data) for _, data in others))
        for (number, _), result in zip(others, results, strict=True):
            answers[number] = result
        return answers

    async def _together(
        self, who: Identity, data: Mapping[str, Any], now: float
    ) -> tuple[Complete, Run, Run, list[PutLog]] | None:
        """A completion that can be written with others, as far as is known; None if it has to be written alone."""
        try:
            grant = self._credentials.grant_of(who.owner.device, data.get("grant"))
            known = self._records.get(grant.run)
            if known is None or known.grant != grant:
                return None
            step, logs = await self._parsed(who, data, grant)
            if not isinstance(step, Complete):
                return None
            after = step.apply(known, now)
        except (AsterismError, ValueError):
            return None
        return (step, known, after, logs) if after.status is COMPLETED else None

    async def _complete_together(self, device: str, ends: list[tuple[Complete, Run, Run, list[PutLog]]]) -> bool:
        writes: list[Write] = [PutRun(after, before.revision) for _, before, after, _ in ends]
        for *_, logs in ends:
            writes += logs
        try:
            await self._store.commit(writes)
        except (StoreError, ValueError):
            return False
        for step, before, after, _ in ends:
            self._records.pop(before.id, None)
            self._storage.refer_to_files(device, step.grant)
            self._fleet.waiters.ended(after)
        return True

    async def _parsed(self, who: Identity, data: Mapping[str, Any], grant: Grant) -> tuple[OwnerStep, list[PutLog]]:
        step = parse_step(data, grant, who.owner.device)
        if isinstance(step, Complete | Fail) and step.files is not None:
            await self._files.check_kept(who.owner.device, grant, step.files)
        if isinstance(step, Complete):
            step = replace(step, output=await self._output(who, data, grant.run))
        part = parse_log(data.get("log"), grant)
        return step, [] if part is None else [await self._storage.log_part(who.owner.device, part)]

    async def _output(self, who: Identity, data: Mapping[str, Any], run_id: str) -> Any:
        """The result in a step: in the message, or stored by the device before."""
        if "blob" in data:
            return self._credentials.blob_of(who.owner.device, data["blob"])
        what = f"the result of run {run_id}"
        output = plain_json(data.get("output"), what)
        if not is_small(output):
            await self._storage.admit(who.owner.device)
        stored = await self._fleet.blobs.keep(output, what)
        if blob_of(stored) is not None:
            await self._storage.add(who.owner.device, stored["size"])
        return stored

    async def _step(self, who: Identity, data: Mapping[str, Any]) -> Any:
        """Make a step. Its error is part of the answer: the other steps of the message count."""
        try:
            grant = self._credentials.grant_of(who.owner.device, data.get("grant"))
            step, logs = await self._parsed(who, data, grant)
            after = await self._owner_step(who, grant, step, logs)
            if isinstance(step, Complete) or (isinstance(step, Fail) and after.files is not None):
                self._storage.refer_to_files(who.owner.device, grant)
            return {"run": self.granted(who, after)} if isinstance(step, _ANSWERED) else {}
        except RequestRefused as refusal:  # the device tries again later
            return error_json(StoreUnavailable(str(refusal)))
        except CredentialRefused as error:
            return {"error": "fenced", "message": str(error)}
        except (RunRefused, StoreError, NotJson, ValueError) as error:
            return error_json(error)
        except AsterismError as error:
            return {"error": "invalid", "message": str(error)}

    async def _owner_step(self, who: Identity, grant: Grant, step: OwnerStep, logs: list[PutLog]) -> Run:
        known = self._records.pop(grant.run, None)
        if isinstance(step, Disown):
            step = replace(
                step, progress=await StoreConnection(self._fleet, who.owner).progress_of(grant.run, grant.epoch)
            )
        clock = self._store.clock

        def apply(run: Run) -> Run:
            # a step that was made before, and whose answer was lost, is not made again
            return run if step.was_applied(run) else step.apply(run, clock())

        try:
            return await self._fleet.ledger.change(known or grant.run, apply, patience=STEP_PATIENCE, also=logs)
        except Fenced as refusal:
            if isinstance(step, Complete) and self._storage.add_late_notice(who.owner.device, grant):
                with contextlib.suppress(StoreError):
                    await self._store.commit([late_notice(clock(), who.owner.device, grant.run, refusal.why)])
            raise


def checked_object(body: Any) -> JsonObject:
    """Raises InvalidMessage for what is not a JSON object."""
    if not isinstance(body, dict):
        raise InvalidMessage("a message is a JSON object")
    return body


# -- orders ------------------------------------------------------------------------------------------------------------


LARGEST_SCORE = 1e300
"""The largest score of a device for a kind of runs; one beyond it counts as none."""


class EnoughUnseen(Exception):
    """Ends the search of the store: the device has to judge a kind of runs first."""


class GatewayOrder:
    """An order of a device, as data; see ``TakeOrder``, whose rules these are."""

    def __init__(self, fleet: Fleet, who: Identity, session: Session, body: Mapping[str, Any]) -> None:
        self._clock, self._owner = fleet.store.clock, who.owner
        self._session, self._names = session, session.expression_names()
        self.limit, self.free = count_in(body, "limit", MOST_TAKEN), count_in(body, "free", MOST_TAKEN)
        self.above = None if body.get("above") is None else count_in(body, "above", 10**6, least=-(10**6))
        self.not_kinds = frozenset(texts_in(body, "not_kinds", 10_000))
        self._kinds = object_in(body, "kinds")
        self._stale = frozenset(texts_in(body, "stale", 10_000))
        self._held = frozenset(texts_in(body, "held", 20_000, 100))
        self._vain_waits = frozenset(texts_in(body, "vain_waits", 1000, 100))
        self.unseen: dict[str, Run] = {}
        self.met_stale: set[str] = set()
        self._starts, self._moment = 0, float("-inf")

    def take(self, run: Run) -> Run | None:
        kind = run.kind
        if kind in self._stale:
            self.met_stale.add(kind)
            return None
        if kind not in self._kinds:
            if kind in self.unseen:
                raise EnoughUnseen  # the whole queue may be of that kind
            self.unseen[kind] = run
            return None
        if run.id in self._held or (self._starts >= self.free and run.id in self._vain_waits):
            return None
        now = self._clock()
        if leaves_to_others(run, now, self._names, elected=False):
            return None
        if mismatch_reason(self._session, run, self._names, holds):
            return None
        if run.uses is not None and self._starts >= self.free:
            return None  # it would hold its limits while it waits for a slot
        self._starts += 1
        score = self._kinds[kind]
        known = isinstance(score, int | float) and not isinstance(score, bool) and abs(score) <= LARGEST_SCORE
        scores = {self._owner.device: float(score)} if known else {}
        if not (run.waiting_since or 0.0) <= self._moment <= now < self._moment + SAME_TIME:
            self._moment = now
        return transitions.take(run, self._owner, self._moment, starts=self._starts <= self.free, scores=scores)


class DeviceWatch:
    """The watch of a device, which outlives its requests."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._extra = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        if self._extra.is_set():
            self._extra.clear()
            return True
        woken = await first_of(self._watch.wait(seconds), self._extra.wait())
        self._extra.clear()
        return any(woken)

    def wake(self) -> None:
        self._extra.set()

    def close(self) -> None:
        self._watch.close()


# -- gateway standings -------------------------------------------------------------------------------------------------


KNOWN_FOR = 5.0
"""How long ranks are used after they were read, in seconds."""

PAUSE = 9.0
"""How long after that they are not read again for a device that is new: so many times as long as the reading took."""


class Standings:
    """The ranks of all devices, and the weights of scores."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._clock = fleet, fleet.clock
        self._read_at = self._next_read = float("-inf")
        self._known: tuple[Mapping[str, float], Weights] | None = None
        self._reading = asyncio.Lock()

    async def of(self, device: str) -> tuple[Mapping[str, float], Weights]:
        """The ranks, with that of this device if it can be reached. Raises StoreError."""
        async with self._reading:
            known, began = self._known, self._clock.time()
            if known is not None and began - self._read_at < KNOWN_FOR and device in known[0]:
                return known
            if began < self._next_read:
                await self._clock.sleep(self._next_read - began)
                began = self._clock.time()
            self._known = known = await election_standings(self._fleet)
            self._read_at = self._clock.time()
            self._next_read = self._read_at + PAUSE * (self._read_at - began)
            return known
