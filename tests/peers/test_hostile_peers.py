"""A peer that lies about time, epoch, identity, sessions and workflows gains nothing by it.

Each scenario checks that a lie has no effect. The last test removes a safeguard, and the scenario has to fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asterism.core.errors import AsterismError
from asterism.core.history import Entry
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, COMPLETED, PROCESSING, Assignment, Owner, Progress, Run
from asterism.core.run.session import ABROAD, OPEN
from asterism.core.run.work import Workflow
from asterism.peers import messages, record_decisions, remote_devices
from asterism.peers.record_decisions import Trust
from asterism.peers.registry import PeerRefused
from asterism.store import row_codec
from asterism.store.protocol import Query
from tests.peers.exchange_fixtures import FLOW, Liar, Side, a_device, three

OVEN = Owner("oven", "oven-1")
Scene = Callable[[], Awaitable[None]]
SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    SCENES[function.__name__] = function
    return function


async def victim() -> tuple[Side, Liar, Run]:
    """A store with a run that its own device works on, and which the liar knows."""
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    run = await laptop.create()
    await laptop.take(run.id)
    liar = Liar(laptop)
    await liar.says(devices=[a_device()])
    return laptop, liar, await laptop.run(run.id)


async def check_unchanged(laptop: Side, before: Run, refused: str) -> None:
    """Check that the run is unchanged, and that a notice was given."""
    assert await laptop.run(before.id) == before
    notices = await laptop.notices("refused")
    assert any(refused in notice for notice in notices), notices


# -- about our devices -------------------------------------------------------------------------------------------------


@scene
async def our_device_completed_it() -> None:
    laptop, liar, run = await victim()
    done = transitions.complete(run, run.grant, {"lie": True}, laptop.store.clock())  # type: ignore[arg-type]
    await liar.says(done)
    await check_unchanged(
        laptop, run, "laptop is a device of this store, which has no report of it that the run is completed"
    )


@scene
async def our_device_completed_it_with_another_result() -> None:
    laptop, liar, run = await victim()
    done = await laptop.complete(run.id, {"true": 1})
    await liar.says(done.changed(output={"lie": True}))
    await check_unchanged(laptop, done, "reported another result")


@scene
async def our_device_claimed_an_unknown_run() -> None:
    laptop, liar, run = await victim()
    unknown = transitions.create("unknown", FLOW, {}, by="liar", now=1.0)
    await liar.says(transitions.take(unknown, laptop.owner, 2.0, starts=True))
    assert await laptop.store.run("unknown") is None
    assert (await laptop.store.heartbeat("laptop-1", {}, [])).held[0].run == run.id


@scene
async def another_session_of_our_device_owns_it() -> None:
    laptop, liar, _ = await victim()
    waiting = await laptop.create()
    await liar.says(transitions.take(waiting, Owner("laptop", "laptop-9"), 2.0, starts=True))
    await check_unchanged(laptop, waiting, "which has no report of it that the run is processing")


@scene
async def fields_of_a_run_of_our_device_are_changed() -> None:
    """The same grant and story with other fields: they would be kept if the greater text won."""
    laptop, liar, run = await victim()
    for change in (
        {"progress": Progress(999, 1000)},
        {"failures": 99, "avoid": ("zzz",)},
        {"started_at": 9e9},
        {"stop_request": "cancel", "stop_requested_by": "zoe"},
        {"due_at": 9e9},
    ):
        await liar.says(run.changed(**change))
        assert await laptop.run(run.id) == run, change


@scene
async def a_request_changes_other_fields_too() -> None:
    laptop, liar, run = await victim()
    requested = transitions.cancel(run, laptop.store.clock(), "zoe")
    await liar.says(requested.changed(failures=50, started_at=1.0))
    record = await laptop.run(run.id)
    assert (record.failures, record.started_at) == (run.failures, run.started_at)


# -- about itself and the time -----------------------------------------------------------------------------------------


@scene
async def the_store_id_changes() -> None:
    laptop, liar, _ = await victim()
    with pytest.raises(PeerRefused, match="but the caller is store"):
        await liar.says(store="another-store")
    with pytest.raises(PeerRefused, match="is from another"):
        await liar.says(store="another-store", devices=None)
    with pytest.raises(PeerRefused, match="is a copy of this store"):
        await liar.says(store=await laptop.id())


@scene
async def the_clock_is_a_century_ahead() -> None:
    laptop, liar, run = await victim()
    await liar.says(clock=laptop.store.clock() + 3e9)
    await liar.says(clock=laptop.store.clock() + 3e9)
    assert len(await laptop.notices("clock")) == 1
    assert await laptop.run(run.id) == run
    [peer] = await laptop.exchange.peers.all()
    assert peer.heard_at is not None
    assert peer.heard_at <= laptop.store.clock()
    for clock in (float("inf"), float("nan"), "now", None, 1e300):
        with pytest.raises(PeerRefused, match="incomplete or invalid"):
            await liar.says(clock=clock)


@scene
async def the_cursor_is_beyond_the_feed() -> None:
    laptop, liar, run = await victim()
    feed = (await laptop.exchange._open())[1]
    for cursor in ({"feed": feed, "number": 10**9}, {"feed": "x", "number": 3}, None):
        answer = await liar.says(cursor=cursor, devices=None)
        assert [record["run"][0] for record in answer["records"]] == [run.id]


@scene
async def an_old_record_is_repeated() -> None:
    laptop, liar, run = await victim()
    waiting = await laptop.create()
    theirs = transitions.take(waiting, OVEN, laptop.store.clock(), starts=True)
    await liar.says(theirs)
    assert (await laptop.run(waiting.id)).device == "oven"
    lost = transitions.lose(await laptop.run(waiting.id), laptop.store.clock(), "it is gone")
    await laptop.step(waiting.id, lambda _: lost.changed(not_before=0.0))
    again = await laptop.take(waiting.id)
    liar.number = 0
    await liar.says(theirs)
    assert await laptop.run(waiting.id) == again
    assert (await laptop.store.heartbeat("laptop-1", {}, [])).held[1].run in (waiting.id, run.id)


# -- about epochs and records ------------------------------------------------------------------------------------------


@scene
async def the_epoch_is_the_greatest() -> None:
    laptop, liar, run = await victim()
    base = await laptop.create()
    granted = transitions.take(base, OVEN, 5.0, starts=True)
    for epoch in (7, 9_999, 10**6, 2**70, -1):
        await liar.says(granted.changed(epoch=epoch))
    await check_unchanged(laptop, base, "it contradicts itself")
    assert await laptop.run(run.id) == run


@scene
async def the_history_has_gaps() -> None:
    laptop, liar, _ = await victim()
    base = await laptop.create()
    granted = transitions.take(base, OVEN, 5.0, starts=True)
    gone = [Assignment("oven", epoch, 1.0, 2.0, "timeout") for epoch in (1, 1, 3)]
    await liar.says(granted.changed(epoch=4, previous=tuple(gone)))
    await check_unchanged(laptop, base, "its 3 ended assignments have the epochs [1, 1, 3]")


@scene
async def records_contradict_themselves() -> None:
    laptop, liar, _ = await victim()
    base = await laptop.create()
    granted = transitions.take(base, OVEN, 5.0, starts=True)
    for change in (
        {"session": None},
        {"assigned_at": float("inf")},
        {"assigned_at": float("nan")},
        {"assigned_at": None},
        {"story": ()},
        {"story": (Entry(1.0, "processing", None, "on oven"),)},
        {"story": granted.story * 5_000},
        {"ended_at": 5.0},
        {"error": "x"},
        {"device": "a|b"},
        {"device": "x" * 1000},
        {"stop_request": "burn"},
        {"keep": "mine"},
        {"progress": Progress(2**70)},
        {"output": {"early": True}},
        {"failures": -1},
        {"paused": "by me"},
    ):
        try:
            await liar.says(granted.changed(**change))
        except ValueError:  # not JSON: it cannot be sent
            continue
        assert await laptop.run(base.id) == base, change


@scene
async def records_are_invalid() -> None:
    laptop, liar, run = await victim()
    good = [*row_codec.fixed(run), *row_codec.moving(run)]
    where = row_codec.COLUMNS.index("input")
    deep = "[" * 50_000 + "]" * 50_000
    for row in (
        [],
        [1, 2, 3],
        "a run",
        None,
        good[:-1],
        [*good[:-1], "{}"],
        [*good[:-1], '{"story":[]'],
        [*good[:-1], '{"story":[[1,2]]}'],
        [*good[:-1], good[-1][:-1] + ',"_told":[[],"x"],"evil":1}'],
        [*good[:where], deep, *good[where + 1 :]],
        [*good[:where], '{"x":NaN}', *good[where + 1 :]],
        ["\ud800", *good[1:]],
        [None, *good[1:]],
        [*good[:1], 5, *good[2:]],
    ):
        await liar.says(row)
        assert await laptop.run(run.id) == run
    assert len(await laptop.store.find(Query())) == 1


@scene
async def valid_records_beside_an_invalid_one_are_ingested() -> None:
    laptop, liar, run = await victim()
    good = transitions.create("good", FLOW, {}, by="liar", now=1.0)
    bad = run.changed(pinned="oven")
    await liar.says(bad, [1], good, good)
    assert await laptop.run("good") == good
    assert await laptop.run(run.id) == run
    notices = await laptop.notices("refused")
    assert any("it differs from our record in pinned" in notice for notice in notices)
    assert any("the message contains it twice" in notice for notice in notices)
    count = len(notices)
    await liar.says(bad)
    assert len(await laptop.notices("refused")) == count


@scene
async def the_fixed_fields_of_our_run_differ() -> None:
    laptop, liar, run = await victim()
    for change in ({"input": {"rm": "-rf"}}, {"created_by": "zoe"}, {"pinned": "oven"}, {"keep": "original"}):
        await liar.says(run.changed(**change))
        assert await laptop.run(run.id) == run, change


# -- about devices and others ------------------------------------------------------------------------------------------


@scene
async def it_announces_our_device() -> None:
    laptop, liar, _ = await victim()
    await liar.says(devices=[a_device(device="laptop"), a_device(id="laptop-1", device="x"), a_device()])
    sessions = {session.id: session for session in await laptop.store.sessions()}
    assert set(sessions) == {"laptop-1", "oven-1"}
    assert (sessions["laptop-1"].state, sessions["laptop-1"].device) == (OPEN, "laptop")
    [notice, _] = await laptop.notices("impostor")
    assert notice.startswith("peer kitchen announced device laptop, which belongs to this store")
    await liar.says(devices=[a_device(device="laptop"), a_device(id="laptop-1", device="x")])
    assert len(await laptop.notices("impostor")) == 2


@scene
async def it_announces_a_device_of_another_peer() -> None:
    laptop, liar, _ = await victim()
    await laptop.exchange.peers.add("garage")
    other = Liar(laptop, "garage")
    await other.says(store="garage-store", devices=[a_device(id="mill-1", device="mill")])
    await liar.says(devices=[a_device(), a_device(id="mill-1", device="drill"), a_device(id="m", device="mill")])
    hosts = {session.id: session.host for session in await laptop.store.sessions() if session.state == ABROAD}
    assert hosts == {"mill-1": "via garage", "oven-1": "via kitchen"}
    assert len(await laptop.notices("impostor")) == 2


@scene
async def devices_are_invalid() -> None:
    laptop, liar, _ = await victim()
    bad: list[Any] = [
        None, 5, {}, a_device(id=""), a_device(device="a|b"), a_device(slots=-1), a_device(slots=True) | {"slots": "2"},
        a_device(timeout=0), a_device(timeout=float("inf")), a_device(profile={"x": "y" * 30_000}), a_device(can=[1]),
        a_device(joined=-5), a_device(id="x" * 300), a_device(accepts=7),
    ]  # fmt: skip
    await liar.says(devices=[*bad, a_device()])
    assert {session.id for session in await laptop.store.sessions()} == {"laptop-1", "oven-1"}


@scene
async def it_reports_for_a_device_of_another_peer() -> None:
    laptop, kitchen, garage = await three()
    run = await laptop.create()
    for other in (kitchen, garage):
        await laptop.sync_with(other)
    before = await laptop.run(run.id)
    lie = transitions.take(before, garage.owner, 5.0, starts=True)
    message = _message(kitchen, await kitchen.id(), lie, await garage.id())
    await laptop.exchange.answer("kitchen", message)
    assert await laptop.run(run.id) == before
    laptop.clock.now += 4000.0  # longer than peer_timeout
    await laptop.exchange.answer("kitchen", message | {"feed": "again"})
    assert (await laptop.run(run.id)).device == "garage"


def _message(side: Side, store: str, run: Run, by: str) -> dict[str, Any]:
    return {
        "protocol": 2,
        "store": store,
        "clock": side.store.clock(),
        "feed": "kitchen-feed",
        "cursor": None,
        "after": 0,
        "upto": 1,
        "more": False,
        "newest": 0,
        "records": [messages.encode_record(1, by, run)],
        "devices": None,
        "wants": {},
        "lacks": [],
    }


# -- about work and blobs ----------------------------------------------------------------------------------------------


@scene
async def its_work_is_invalid() -> None:
    laptop, liar, _ = await victim()
    new = transitions.create("new", Workflow("new", argv=("true",), version=1), {}, by="liar", now=1.0)
    for bad in (
        "5",
        "{}",
        "{",
        '{"argv":["true"],"requires":5}',
        '{"argv":["true"],"evil":1}',
        '{"argv":["true"],"losses":1e999}',
    ):
        new.work.__dict__["text"] = bad
        await liar.says(new)
        assert await laptop.store.run("new") is None
    del new.work.__dict__["text"]
    await liar.says(new)
    assert await laptop.run("new") == new


@scene
async def a_blob_does_not_match_its_name() -> None:
    laptop, liar, _ = await victim()
    name = "ab" * 32
    large = transitions.create("large", FLOW, {"$blob": name, "size": 5}, by="liar", now=1.0)
    answer = await liar.says(large)
    assert answer["wants"] == {name: 5}
    with pytest.raises(PeerRefused, match="its name is not the hash of its bytes"):
        await laptop.exchange.receive_blob("kitchen", name, b"evil")
    with pytest.raises(PeerRefused, match="did not ask for this blob"):
        await laptop.exchange.receive_blob("kitchen", "cd" * 32, b"evil")
    await laptop.fleet.configure(most=3)
    with pytest.raises(PeerRefused, match="limit of this fleet is 3"):
        await laptop.exchange.receive_blob("kitchen", name, b"12345")
    assert await laptop.store.run("large") is None
    assert await laptop.exchange.read_blob("kitchen", "../../etc/passwd", "r1") is None


@scene
async def messages_are_invalid() -> None:
    laptop, liar, run = await victim()
    for changes in (
        {"protocol": 1}, {"records": "x"}, {"records": [{}] * 501}, {"cursor": 5}, {"after": -1}, {"upto": "9"},
        {"devices": 7}, {"wants": ["x"]},
        {"wants": {"ab" * 32: -1}}, {"lacks": ["y"] * 100}, {"feed": ""}, {"store": 5},
    ):  # fmt: skip
        with pytest.raises(PeerRefused):
            await liar.says(**changes)  # type: ignore[arg-type]
    with pytest.raises(PeerRefused, match="a message has to be a JSON object"):
        await laptop.exchange.answer("kitchen", [])  # type: ignore[arg-type]
    assert await laptop.run(run.id) == run


@scene
async def allowed_steps_have_an_effect() -> None:
    """A peer may assign a waiting run to its own device."""
    laptop, liar, _ = await victim()
    waiting = await laptop.create()
    await liar.says(transitions.take(waiting, OVEN, laptop.store.clock(), starts=True))
    record = await laptop.run(waiting.id)
    assert (record.device, record.status) == ("oven", PROCESSING)
    grant = record.grant
    assert grant is not None
    await liar.says(transitions.complete(record, grant, {"ok": 1}, laptop.store.clock()))
    assert (await laptop.run(waiting.id)).status is COMPLETED
    own = await laptop.create()
    await liar.says(transitions.assign(own, laptop.owner, by="oven", now=1.0))
    assert (await laptop.run(own.id)).status is ASSIGNED


@pytest.mark.parametrize("name", sorted(SCENES))
async def test_a_lie_has_no_effect(name: str) -> None:
    await SCENES[name]()


# -- safeguards that are missing ---------------------------------------------------------------------------------------


def believed(*_: Any) -> None:
    return None


ABLATIONS: list[tuple[str, object, str, object]] = [
    ("our_device_completed_it", Trust, "unconfirmed", believed),
    ("our_device_completed_it_with_another_result", Trust, "is_own", lambda *_: False),
    ("our_device_claimed_an_unknown_run", Trust, "unconfirmed", believed),
    ("another_session_of_our_device_owns_it", Trust, "unconfirmed", believed),
    ("fields_of_a_run_of_our_device_are_changed", Trust, "is_own", lambda *_: False),
    ("a_request_changes_other_fields_too", record_decisions, "only_adds_request", lambda *_: True),
    ("the_epoch_is_the_greatest", messages, "problems_in", lambda _: []),
    ("the_history_has_gaps", messages, "problems_in", lambda _: []),
    ("it_announces_our_device", remote_devices, "_impersonation", believed),
    ("it_announces_a_device_of_another_peer", remote_devices, "_impersonation", believed),
    ("it_reports_for_a_device_of_another_peer", Trust, "belongs_to_other_peer", lambda *_: False),
]


@pytest.mark.parametrize(("name", "where", "what", "instead"), ABLATIONS)
async def test_a_missing_safeguard_is_detected(
    name: str, where: object, what: str, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, instead)
    with pytest.raises((AssertionError, AsterismError, ValueError, TypeError)):
        await SCENES[name]()
