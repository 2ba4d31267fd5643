"""A store that is restored from a backup has no peers, and does not adopt the runs left to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from asterism.store.memory import MemoryStore
from asterism.store.protocol import Query, Store
from asterism.store.sqlite import SqliteStore
from tests.peers.exchange_fixtures import Direct, Side, StillClock

KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite"])


class Scene:
    """The laptop with a store of the given kind, and the kitchen."""

    def __init__(self, kind: str, path: Path) -> None:
        self._kind, self._path, self._clock, self._opened = kind, path, StillClock(), list[Store]()

    async def opened(self) -> Store:
        store: Store = MemoryStore(self._time)
        if self._kind == "sqlite":
            store = await SqliteStore.open(self._path / f"{len(self._opened)}.db", clock=self._time)
        self._opened.append(store)
        return store

    async def synced(self) -> tuple[Side, Side]:
        laptop, kitchen = await Side("laptop", await self.opened()).joined(), await Side("kitchen").joined()
        await laptop.knows(kitchen)
        await kitchen.knows(laptop)
        await laptop.sync_with(kitchen)
        return laptop, kitchen

    async def restored(self, side: Side) -> Side:
        lines = [json.loads(json.dumps(line)) async for line in side.store.dump()]

        async def one_by_one() -> AsyncIterator[Mapping[str, Any]]:
            for line in lines:
                yield line

        anew = Side(side.name, await self.opened())
        await anew.store.load(one_by_one())
        assert await anew.store.check() == []
        return anew

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    def _time(self) -> float:
        return 1_000_000.0 + self._clock.now


@KINDS
async def test_a_restored_store_does_not_assign_runs_left_to_its_peers(kind: str, tmp_path: Path) -> None:
    scenery = Scene(kind, tmp_path)
    laptop, kitchen = await scenery.synced()
    waits, owned, ended = [await kitchen.create() for _ in range(3)]
    await kitchen.take(owned.id)
    await kitchen.take(ended.id)
    await kitchen.complete(ended.id, {"done": True})
    own = await laptop.create()
    await laptop.sync_with(kitchen)
    anew = await scenery.restored(laptop)
    assert {run.id for run in await anew.store.find(Query())} == {own.id, ended.id}
    assert [run.id for run in await anew.store.find(Query(offered=True))] == [own.id]
    [notice] = await anew.notices("refused")
    assert notice.startswith("open runs that were left to peers are not restored: 2.")

    for side, other in ((anew, "kitchen"), (kitchen, "laptop")):
        if side is kitchen:
            await side.exchange.peers.remove(other)
        await side.exchange.peers.add(other)
    await anew.exchange.sync("kitchen", Direct(anew, kitchen))
    assert await anew.left_to(waits.id) == await kitchen.id() == await anew.left_to(owned.id)
    assert (await anew.run(owned.id)).device == "kitchen"
    await scenery.close()
