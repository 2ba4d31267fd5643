"""Stores that sync without a network: each message goes through JSON to the other store."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Exchange, PeerUnreachable, SyncResult
from asterism.peers.messages import PROTOCOL, encode_record
from asterism.peers.registry import PeerRefused
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun, PutSession, Store, feed_of

FLOW = Workflow("transcode", argv=("true",), version=1, retries=2)


class StillClock:
    """The own clock of a device, which a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Side:
    """A store and its device of the same name."""

    def __init__(self, name: str, store: Store | None = None, *, skew: float = 0.0) -> None:
        self.name, self.clock = name, StillClock()
        self.store: Any = store or MemoryStore(lambda: 1_000_000.0 + self.clock.now + skew)
        self.fleet = Fleet(self.store, by=name, clock=self.clock, chance=random.Random(name))
        self.exchange = Exchange(self.fleet)
        self.session = Session(f"{name}-1", name, 0.0, host=f"{name}.local", slots=2)
        self.sent = 0

    async def joined(self) -> Side:
        await self.store.commit([PutSession(self.session, None)])
        return self

    @property
    def owner(self) -> Owner:
        return self.session.owner

    async def knows(self, *others: Side) -> Side:
        for other in others:
            await self.exchange.peers.add(other.name)
        return self

    async def create(self, **options: Any) -> Run:
        """Create a run that waits here without an assignment."""
        await self.fleet.workflows.add(FLOW)
        self.clock.now += 0.01
        run = transitions.create(
            f"{self.name}-{int(self.clock.now * 100)}",
            FLOW,
            options.pop("input", {}),
            by="ann",
            now=self.store.clock(),
            **options,
        )
        return await self.fleet.ledger.add(run, lambda record: record)

    async def take(self, run_id: str) -> Run:
        """Let the device of this store start a run."""
        return await self.step(
            run_id,
            lambda run: transitions.take(
                run.changed(admitted=run.uses is not None), self.owner, self.store.clock(), starts=True
            ),
        )

    async def complete(self, run_id: str, output: Any = None) -> Run:
        return await self.step(run_id, lambda run: transitions.complete(run, run.grant, output, self.store.clock()))

    async def step(self, run_id: str, step: Any) -> Run:
        self.clock.now += 0.01
        before = await self.store.run(run_id)
        after: Run = step(before)
        await self.store.commit([PutRun(after, before.revision)])
        return after

    async def run(self, run_id: str) -> Run:
        record: Run | None = await self.store.run(run_id)
        assert record is not None, f"{self.name} does not have {run_id}"
        return record

    async def left_to(self, run_id: str) -> str | None:
        return (await feed_of(self.store).left_to([run_id])).get(run_id)

    async def id(self) -> str:
        return (await self.exchange._open())[0]

    async def notices(self, kind: str) -> list[str]:
        return [notice.message for _, notice in await self.store.notices(limit=1000) if notice.kind == kind]

    async def sync_with(self, other: Side, **options: Any) -> SyncResult:
        self.clock.now += 1.0
        other.clock.now += 1.0
        return await self.exchange.sync(other.name, Direct(self, other, **options))

    async def beat(self) -> None:
        await self.store.heartbeat(self.session.id, {}, [])


class Direct:
    """The transport from one side to the other. It fails after ``breaks`` messages."""

    def __init__(self, here: Side, there: Side, *, breaks: int | None = None, twice: bool = False) -> None:
        self._here, self._there, self._breaks, self._twice = here, there, breaks, twice
        self.sent: list[Any] = []

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._breaks is not None and len(self.sent) >= self._breaks:
            raise PeerUnreachable("the line is dead")
        self.sent.append(message)
        self._here.sent += len(message["records"])
        for _ in range(1 + self._twice):
            answer = await self._there.exchange.answer(self._here.name, json.loads(json.dumps(message)))
        copied: Mapping[str, Any] = json.loads(json.dumps(answer))
        self._there.sent += len(copied["records"])
        return copied

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        data = await self._there.exchange.read_blob(self._here.name, blob, run)
        if data is None:
            raise PeerRefused("it is not stored here")
        return data

    async def send_blob(self, blob: str, data: bytes) -> None:
        await self._there.exchange.receive_blob(self._here.name, blob, data)


async def two(skew: float = 0.0) -> tuple[Side, Side]:
    laptop, kitchen = await Side("laptop").joined(), await Side("kitchen", skew=skew).joined()
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    return laptop, kitchen


async def three() -> tuple[Side, Side, Side]:
    sides = [await Side(name).joined() for name in ("laptop", "kitchen", "garage")]
    for side in sides:
        await side.knows(*(other for other in sides if other is not side))
    return sides[0], sides[1], sides[2]


class Liar:
    """A peer of ``victim`` that sends any message."""

    def __init__(self, victim: Side, name: str = "kitchen") -> None:
        self.victim, self.name, self.number = victim, name, 0

    async def says(self, *runs: Run | list[Any], by: str | None = None, **changes: Any) -> dict[str, Any]:
        first = self.number
        records = []
        for run in runs:
            self.number += 1
            whole = encode_record(self.number, by or "liar-store", run) if isinstance(run, Run) else None
            records.append(whole or {"number": self.number, "by": by or "liar-store", "run": run})
        message = {
            "protocol": PROTOCOL,
            "store": "liar-store",
            "clock": self.victim.store.clock(),
            "feed": "liar-feed",
            "cursor": None,
            "after": first,
            "upto": self.number,
            "more": False,
            "newest": 0,
            "records": records,
            "devices": [],
            "wants": {},
            "lacks": [],
        }
        return await self.victim.exchange.answer(self.name, message | changes)


def a_device(**changes: Any) -> dict[str, Any]:
    """A device as it is announced."""
    return {
        "id": "oven-1", "device": "oven", "joined": 10.0, "can": [], "slots": 1, "backlog": 0, "accepts": None,
        "timeout": 90.0, "profile": {}, "draining": False,
    } | changes  # fmt: skip
