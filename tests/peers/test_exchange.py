"""Syncs of two stores: what is sent, ingested and refused."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from asterism.core.errors import AsterismError
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, PROCESSING, Progress
from asterism.core.run.session import ABROAD, ENDED, Session
from asterism.fleet.device.membership import DeviceNameTaken, join
from asterism.peers.exchange import PeerUnreachable
from asterism.peers.registry import PeerExists, PeerRefused, PeerRegistry, UnknownPeer
from asterism.store.memory import MemoryStore
from asterism.store.protocol import ProgressReport, PutSession, Query, feed_of
from tests.peers.exchange_fixtures import FLOW, Direct, Side, three, two

# -- records -----------------------------------------------------------------------------------------------------------


async def test_a_run_arrives_as_a_copy_that_is_left_to_its_store() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    result = await laptop.sync_with(kitchen)
    assert (result.sent, result.taken, result.refused, result.lost) == (1, 0, 0, ())
    assert await kitchen.run(run.id) == run
    assert await kitchen.left_to(run.id) == await laptop.id()
    assert await kitchen.store.find(Query(offered=True)) == []
    assert await laptop.left_to(run.id) is None


async def test_a_label_travels_with_its_run() -> None:
    laptop, kitchen = await two()
    run = await laptop.create(label="the first")
    result = await laptop.sync_with(kitchen)
    assert (result.sent, result.refused) == (1, 0)
    assert await kitchen.run(run.id) == run
    assert (await kitchen.run(run.id)).label == "the first"


async def test_only_changes_are_sent() -> None:
    laptop, kitchen = await two()
    runs = [await laptop.create() for _ in range(5)]
    assert (await laptop.sync_with(kitchen)).sent == 5
    kitchen.sent = 0
    result = await laptop.sync_with(kitchen)
    assert (result.sent, result.taken, kitchen.sent) == (0, 0, 0)
    await laptop.take(runs[2].id)
    result = await kitchen.sync_with(laptop)
    assert (result.sent, result.taken) == (0, 1)
    assert (await kitchen.run(runs[2].id)).status is PROCESSING


async def test_either_side_can_be_the_client() -> None:
    laptop, kitchen = await two()
    ours, theirs = await laptop.create(), await kitchen.create()
    result = await kitchen.sync_with(laptop)
    assert (result.sent, result.taken) == (1, 1)
    assert await laptop.run(theirs.id) == theirs
    assert await kitchen.run(ours.id) == ours


async def test_an_interrupted_sync_continues_where_it_was() -> None:
    laptop, kitchen = await two()
    for _ in range(1200):
        await laptop.create()
    with contextlib.suppress(PeerUnreachable):
        await laptop.sync_with(kitchen, breaks=2)
    arrived = len(await kitchen.store.find(Query()))
    assert arrived == 500
    result = await laptop.sync_with(kitchen)
    assert result.sent == 700
    assert len(await kitchen.store.find(Query())) == 1200


async def test_a_repeated_message_changes_nothing() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    await laptop.take(run.id)
    await laptop.sync_with(kitchen, twice=True)
    newest = await feed_of(kitchen.store).newest()
    record = await kitchen.run(run.id)
    await laptop.sync_with(kitchen, twice=True)
    assert await feed_of(kitchen.store).newest() == newest
    assert (await kitchen.run(run.id)) == record


async def test_a_message_after_a_lost_one_is_ignored() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    await laptop.create()
    await laptop.create()
    transport = Direct(laptop, kitchen)
    await laptop.exchange.sync("kitchen", transport)
    late = {**transport.sent[0], "after": 10, "upto": 11, "devices": None}
    answer = await kitchen.exchange.answer("laptop", late)
    assert answer["cursor"]["number"] < 10


async def test_a_restored_store_receives_everything_again() -> None:
    laptop, kitchen = await two()
    await laptop.create()
    await laptop.sync_with(kitchen)
    answer = await laptop.exchange.answer(
        "kitchen",
        {
            "protocol": 2,
            "store": await kitchen.id(),
            "clock": kitchen.store.clock(),
            "feed": "f",
            "after": 0,
            "upto": 0,
            "cursor": {"feed": "another feed", "number": 7},
            "more": False,
            "newest": 0,
            "records": [],
            "devices": None,
            "wants": {},
            "lacks": [],
        },
    )
    assert len(answer["records"]) == 1


async def test_reported_progress_is_sent() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.take(run.id)
    await laptop.store.heartbeat("laptop-1", {}, [ProgressReport(run.id, 1, Progress(3, 10), "")])
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).progress == Progress(3, 10)
    assert (await laptop.run(run.id)).progress is None


async def test_a_blob_is_fetched_for_a_run_that_refers_to_it_and_no_other() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.configure(large=10)
    await kitchen.fleet.workflows.add(FLOW)
    referring, other = [await kitchen.fleet.create(FLOW, {"text": text * 100}, device="absent") for text in "xy"]
    private = await kitchen.store.put_blob(b"of no run, such as the snapshot of a plan")
    await laptop.sync_with(kitchen)
    blob = referring.input["$blob"]
    assert await kitchen.exchange.read_blob("laptop", blob, referring.id) is not None
    for name, run in ((blob, other.id), (blob, "unknown"), (blob, ""), (private, referring.id), ("../x", referring.id)):
        assert await kitchen.exchange.read_blob("laptop", name, run) is None


async def test_blobs_arrive_before_their_record_in_both_directions() -> None:
    laptop, kitchen = await two()
    await laptop.fleet.configure(large=10)
    await kitchen.fleet.configure(large=10)
    ours = await laptop.create(input=await laptop.fleet.blobs.keep({"text": "x" * 100}, "it"))
    theirs = await kitchen.create(input=await kitchen.fleet.blobs.keep({"text": "y" * 100}, "it"))
    await laptop.sync_with(kitchen)
    assert await kitchen.fleet.blobs.fetch((await kitchen.run(ours.id)).input) == {"text": "x" * 100}
    assert await laptop.fleet.blobs.fetch((await laptop.run(theirs.id)).input) == {"text": "y" * 100}


async def test_the_limit_of_a_value_is_that_of_each_result_in_an_input() -> None:
    """In both directions; a result has the limit as a whole, whatever it is made of."""
    laptop, kitchen = await two()
    for side in (laptop, kitchen):
        await side.fleet.configure(large=10, most=1000)
    for side, other in ((laptop, kitchen), (kitchen, laptop)):
        results = {"a": f"{side.name} " + "x" * 900, "b": "y" * 900}
        many = {f"{side.name} {number}": "x" * 900 for number in range(9)}
        whole, large = [
            await side.create(input=await side.fleet.blobs.keep(value, "it", results=True)) for value in (results, many)
        ]
        await laptop.sync_with(kitchen)
        assert await other.fleet.blobs.fetch((await other.run(whole.id)).input) == results
        assert await other.store.run(large.id) is None
    data = await laptop.store.blob(whole.input["$blob"]) or b""
    with pytest.raises(PeerRefused, match=r"it has 1,8\d\d bytes, and the limit of this fleet is 1,000"):
        await laptop.exchange._keep_blob(whole.input["$blob"], data, is_input=False)


async def test_only_the_record_with_an_unavailable_blob_is_refused() -> None:
    laptop, kitchen = await two()
    gone = await laptop.create(input={"$blob": "0" * 64, "size": 3})
    there = await laptop.create()
    result = await laptop.sync_with(kitchen)
    assert await kitchen.store.run(gone.id) is None
    assert await kitchen.run(there.id) == there
    assert len(await kitchen.notices("refused")) == 1
    assert result.sent == 2
    await laptop.sync_with(kitchen)
    assert len(await kitchen.notices("refused")) == 1


# -- keys, devices -----------------------------------------------------------------------------------------------------


async def test_remote_devices_are_assigned_work_and_take_it() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    devices = {session.device: session for session in await laptop.fleet.devices()}
    assert (devices["kitchen"].state, devices["kitchen"].host) == (ABROAD, "via kitchen")
    outlook = await laptop.fleet.placer(fresh=True)
    assert set(outlook.sessions) == {"laptop", "kitchen"}
    assert outlook.ranks["kitchen"] == 0.0
    run = await laptop.create(device="kitchen")
    choice = outlook.choose(run)
    assert choice.owner == kitchen.owner
    await laptop.step(run.id, lambda record: transitions.assign(record, kitchen.owner, by="laptop", now=1.0))
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).status is ASSIGNED
    await kitchen.step(run.id, lambda record: transitions.claim(record, record.grant, kitchen.store.clock()))
    assert await kitchen.left_to(run.id) is None
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status == "claimed"
    assert await laptop.left_to(run.id) == await kitchen.id()


async def test_a_device_that_is_no_longer_announced_is_ended() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    [session] = [session for session in await kitchen.store.sessions() if session.device == "kitchen"]
    await kitchen.store.commit([PutSession(session.changed(state=ENDED), session.revision)])
    await laptop.sync_with(kitchen)
    known = {session.id: session.state for session in await laptop.store.sessions(ended=True)}
    assert known == {"laptop-1": "open", "kitchen-1": ENDED}


async def test_a_device_of_a_peer_is_announced_by_its_own_store_alone() -> None:
    laptop, kitchen, garage = await three()
    await kitchen.sync_with(garage)
    await laptop.sync_with(kitchen)
    await laptop.sync_with(garage)
    await laptop.sync_with(kitchen)
    devices = {session.device: session.peer for session in await laptop.fleet.devices()}
    assert devices == {"laptop": None, "kitchen": "kitchen", "garage": "garage"}
    assert not await laptop.notices("impostor")


async def test_a_remote_device_cannot_be_drained_here() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    with pytest.raises(AsterismError, match=r"is one of a peer \(via kitchen\): drain it there"):
        await laptop.fleet.drain("kitchen")


async def test_a_clock_difference_gives_one_notice() -> None:
    laptop, kitchen = await two(skew=86_400.0)
    result = await laptop.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    assert result.skew == pytest.approx(86_400.0, abs=2.0)
    assert await laptop.notices("clock") == ["the clock of peer kitchen is 86400 s ahead of ours"]
    [peer] = await laptop.exchange.peers.all()
    assert peer.skew == pytest.approx(86_400.0, abs=2.0)


# -- identities --------------------------------------------------------------------------------------------------------


async def test_a_store_is_bound_at_the_first_contact() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    assert (await laptop.exchange.peers.get("kitchen")).store == await kitchen.id()
    other = await Side("other").joined()
    await other.exchange.peers.add("laptop")
    with pytest.raises(PeerRefused, match="if the store was created again, remove the peer"):
        await laptop.exchange.sync("kitchen", Direct(laptop, other))
    await laptop.exchange.peers.add("den")
    with pytest.raises(PeerRefused, match="is already peer kitchen"):
        await laptop.exchange.peers.bind("den", await kitchen.id())


async def test_two_copies_of_one_store_do_not_sync() -> None:
    laptop = await Side("laptop").joined()
    copy = Side("copy", laptop.store)
    await laptop.knows(copy)
    await copy.exchange.peers.add("laptop")
    with pytest.raises(PeerRefused, match="is a copy of this store"):
        await laptop.sync_with(copy)


async def test_peers_are_known_by_name_and_token() -> None:
    peers = PeerRegistry(MemoryStore())
    await peers.add("kitchen", url="https://kitchen:7420", pin="ab", token_sha256="cd" * 32, invited_at=5.0)
    await peers.add("den")
    with pytest.raises(PeerExists, match="there is already a peer"):
        await peers.add("kitchen")
    with pytest.raises(AsterismError, match="is not a valid peer name"):
        await peers.add("a/b")
    assert [peer.name for peer in await peers.all()] == ["den", "kitchen"]
    kitchen = await peers.find_by_hash("token_sha256", "cd" * 32)
    assert kitchen is not None
    assert (kitchen.name, kitchen.url, kitchen.invited_at) == ("kitchen", "https://kitchen:7420", 5.0)
    assert await peers.find_by_hash("token_sha256", "") is None
    await peers.remove("kitchen")
    assert [peer.name for peer in await peers.all()] == ["den"]
    with pytest.raises(UnknownPeer, match="there is no peer 'kitchen'; known peers: den"):
        await peers.get("kitchen")
    assert (await peers.add("kitchen")).store is None


async def test_a_removed_peer_leaves_no_devices() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    await laptop.exchange.peers.remove("kitchen")
    assert [session.device for session in await laptop.store.sessions()] == ["laptop"]
    with pytest.raises(UnknownPeer):
        await laptop.sync_with(kitchen)
    assert await laptop.run(run.id) == run


async def test_the_name_of_a_remote_device_is_taken() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    new = Session("kitchen-9", "kitchen", 0.0, host="laptop.local")
    with pytest.raises(DeviceNameTaken, match=r"a peer has a device 'kitchen' \(via kitchen\)"):
        await join(laptop.store, laptop.clock, new, Present())
    laptop.clock.now += 1000.0  # longer than the timeout of the device
    await join(laptop.store, laptop.clock, new, Present())


class Present:
    """The presence of a device that is alone on its machine."""

    host = "laptop.local"

    def acquire(self) -> bool:
        return True

    def kill_orphans(self, session: str) -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing is held."""


async def test_a_sync_ends_despite_constant_changes_on_both_sides() -> None:
    laptop, kitchen = await two()
    await laptop.create()

    class Busy(Direct):
        async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
            assert len(self.sent) < 20, "it does not end"
            await laptop.create()
            await kitchen.create()
            return await super().send(message)

    result = await laptop.exchange.sync("kitchen", Busy(laptop, kitchen))
    assert result.sent
    assert result.taken


async def test_the_server_logs_its_losses(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "asterism.peers"):
        laptop, kitchen = await two()
        run = await laptop.create()
        await laptop.sync_with(kitchen)
        await laptop.take(run.id)
        await kitchen.take(run.id)
        assert (await kitchen.sync_with(laptop)).lost == ()  # its clock is behind
    assert "no longer owns run" in caplog.text
