"""The sync loop in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from asterism.peers.exchange import PeerUnreachable, SyncResult, Transport
from asterism.peers.peer_service import SyncLoop
from asterism.peers.registry import Peer
from tests.peers.exchange_fixtures import Direct, Side, two

pytestmark = pytest.mark.virtual_time


class LoopClock:
    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Dead:
    """A transport that always fails and counts the tries."""

    def __init__(self) -> None:
        self.tried: list[float] = []

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self.tried.append(asyncio.get_running_loop().time())
        raise PeerUnreachable("no answer")

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        raise AssertionError

    async def send_blob(self, blob: str, data: bytes) -> None:
        raise AssertionError


async def called() -> tuple[Side, Side, list[tuple[float, SyncResult]]]:
    laptop, kitchen = await two()
    await laptop.exchange.peers.update("kitchen", url="https://kitchen:7420")
    laptop.fleet.clock = LoopClock()
    return laptop, kitchen, []


async def test_peers_sync_after_a_change_and_at_the_interval() -> None:
    laptop, kitchen, results = await called()
    now = asyncio.get_running_loop().time

    def connect(peer: Peer) -> Transport:
        return Direct(laptop, kitchen)

    meetings = SyncLoop(laptop.exchange, connect, on_sync=lambda peer, result: results.append((now(), result)))
    task = asyncio.create_task(meetings.run())
    await asyncio.sleep(11.0)
    assert [round(at) for at, _ in results] == [0, 5, 10]
    await asyncio.sleep(1.0)
    await laptop.create()
    await asyncio.sleep(0.5)
    assert results[-1][1].sent == 1
    assert results[-1][0] == 12.0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1


async def test_an_unreachable_peer_is_called_less_often(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asterism.peers"):
        laptop, kitchen, results = await called()
        dead = Dead()
        ways: list[Transport] = [dead]
        meetings = SyncLoop(laptop.exchange, lambda _: ways[0], on_sync=lambda _, result: results.append((0.0, result)))
        task = asyncio.create_task(meetings.run())
        await asyncio.sleep(600.0)
        gaps = [after - before for before, after in zip(dead.tried, dead.tried[1:], strict=False)]
        assert gaps[0] < 8.0
        assert all(40.0 < gap <= 73.0 for gap in gaps[5:])
        ways[0] = Direct(laptop, kitchen)
        await asyncio.sleep(75.0)
        assert results
        task.cancel()
    messages = [record.message for record in caplog.records if "peer kitchen" in record.message]
    assert messages[0] == "cannot sync with peer kitchen: no answer"
    assert messages[-1].startswith("syncing with peer kitchen again, after")
    assert len(messages) < 15


async def test_peers_that_are_added_and_removed_meanwhile_are_noticed() -> None:
    laptop, kitchen, results = await called()
    names: list[str] = []

    def connect(peer: Peer) -> Transport:
        names.append(peer.name)
        return Direct(laptop, kitchen)

    await laptop.exchange.peers.add("den")  # it has no address
    task = asyncio.create_task(SyncLoop(laptop.exchange, connect).run())
    await asyncio.sleep(3.0)
    await laptop.exchange.peers.remove("kitchen")
    names.clear()
    await asyncio.sleep(30.0)
    assert names == []
    await laptop.exchange.peers.add("kitchen", url="https://kitchen:7420")
    await asyncio.sleep(10.0)
    assert set(names) == {"kitchen"}
    task.cancel()
    assert results == []


async def test_only_the_peers_that_are_named_are_called() -> None:
    laptop, kitchen, _ = await called()
    names: list[str] = []

    def connect(peer: Peer) -> Transport:
        names.append(peer.name)
        return Direct(laptop, kitchen)

    task = asyncio.create_task(SyncLoop(laptop.exchange, connect, names=frozenset({"den"})).run())
    await asyncio.sleep(20.0)
    assert names == []
    task.cancel()
