"""Storage limits: the quota of a peer, and the size of records, which no liar brings beyond what others accept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.history import Entry
from asterism.core.run import transitions
from asterism.core.run.merge import merge_records, own_story
from asterism.core.run.peer_record_validation import LONGEST_TEXT, MAX_ENTRIES, MAX_NUMBER
from asterism.core.run.run import FAILED, REASSIGNING, Assignment, Owner, Run, Superseded
from asterism.peers import messages, storage_limits
from asterism.peers.messages import MAX_RECORD_BLOBS, MAX_RECORD_CHARS
from asterism.peers.storage_limits import Quota
from asterism.store import row_codec
from asterism.store.dump_format import blobs_of
from asterism.store.protocol import Usage, feed_of
from tests.long_tests import rest_long
from tests.peers.exchange_fixtures import FLOW, Liar, Side, a_device, two


async def used(side: Side, other: Side) -> Usage:
    return await feed_of(side.store).usage(await other.id())


async def known(side: Side, runs: list[Run]) -> list[bool]:
    return [await side.store.run(run.id) is not None for run in runs]


async def test_records_beyond_the_quota_arrive_when_there_is_room() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_runs=2)
    runs = [await laptop.create() for _ in range(3)]
    result = await laptop.sync_with(kitchen)
    assert await known(kitchen, runs) == [True, True, False]
    assert result.refused_there[0].startswith("peer laptop has used its quota of 2 runs in this store")
    for _ in range(3):
        await laptop.sync_with(kitchen)
    assert len([notice for notice in await kitchen.notices("refused") if "quota of 2 runs" in notice]) == 1
    await kitchen.fleet.configure(peer_runs=3)
    await laptop.sync_with(kitchen)
    assert await known(kitchen, runs) == [True, True, True]
    assert (await used(kitchen, laptop)).runs == 3


async def test_room_from_forgotten_runs_is_used() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_runs=1, keep=50)
    first, second = [await laptop.create() for _ in range(2)]
    await laptop.take(first.id)
    await laptop.complete(first.id)
    await laptop.sync_with(kitchen)
    assert await known(kitchen, [first, second]) != [True, True]
    for side in (laptop, kitchen):
        side.clock.now += 100.0
    assert await kitchen.store.prune(kitchen.store.clock() - 50, 10) == 1
    assert (await used(kitchen, laptop)) == Usage()
    await laptop.sync_with(kitchen)
    assert await known(kitchen, [second]) == [True]


async def test_a_full_quota_does_not_delay_the_rest_of_a_sync() -> None:
    """Results of our own runs and other news still arrive."""
    laptop, kitchen = await two()
    mine = await kitchen.create()
    await laptop.sync_with(kitchen)
    await kitchen.fleet.configure(peer_runs=0)
    theirs = await laptop.create()
    await laptop.take(mine.id)
    await laptop.complete(mine.id, {"soup": "hot"})
    await laptop.sync_with(kitchen)
    assert await known(kitchen, [theirs]) == [False]
    assert (await kitchen.run(mine.id)).output == {"soup": "hot"}
    assert await used(kitchen, laptop) == Usage()


async def test_records_and_blobs_have_separate_limits() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_bytes=6000, peer_blobs=1000)
    await laptop.fleet.workflows.add(FLOW)
    long = await laptop.create(input={"text": "x" * 5000})
    longer = await laptop.create(input={"text": "y" * 5000})
    result = await laptop.sync_with(kitchen)
    assert await known(kitchen, [long, longer]) == [True, False]
    assert "bytes of records" in result.refused_there[0]
    await kitchen.fleet.configure(peer_bytes=1_000_000)
    await laptop.fleet.configure(large=100)
    large = [await laptop.fleet.create(FLOW, {"text": letter * 800}, device="absent") for letter in "ab"]
    result = await laptop.sync_with(kitchen)
    assert await known(kitchen, large) == [True, False]
    assert "bytes of large inputs and outputs" in result.refused_there[0]
    assert (await used(kitchen, laptop)).blobs <= 1000
    blob = (await laptop.run(large[1].id)).input["$blob"]
    assert await kitchen.store.blob(blob) is None


async def test_records_of_other_stores_are_charged_to_the_sender() -> None:
    laptop = await Side("laptop").joined()
    await laptop.knows(Side("kitchen"))
    await laptop.fleet.configure(peer_runs=3)
    liar = Liar(laptop)
    own = await laptop.id()
    for number in range(6):
        run = transitions.create(f"junk-{number}", FLOW, {}, by="liar", now=5.0)
        await liar.says(run, by=own if number % 2 else "someone else")
    assert sum([await laptop.store.run(f"junk-{number}") is not None for number in range(6)]) == 3


async def test_the_growth_of_a_record_is_charged() -> None:
    laptop = await Side("laptop").joined()
    await laptop.knows(Side("kitchen"))
    await laptop.fleet.configure(peer_bytes=3000)
    liar = Liar(laptop)
    run = transitions.create("grows", FLOW, {}, by="liar", now=5.0)
    await liar.says(run)
    grown = transitions.pause(run, 6.0, "liar: " + "x" * 5000)
    answer = await liar.says(grown)
    assert answer["refused"] == 1
    assert await laptop.run("grows") == run


async def test_without_the_quota_a_peer_stores_any_amount() -> None:
    """Ablation of the quota."""
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_runs=1)
    real = Quota.reserve
    Quota.reserve = lambda self, cost: None  # type: ignore[method-assign, assignment]
    try:
        runs = [await laptop.create() for _ in range(4)]
        await laptop.sync_with(kitchen)
        assert all(await known(kitchen, runs))
    finally:
        Quota.reserve = real  # type: ignore[method-assign]


# -- the size of records -----------------------------------------------------------------------------------------------


OVEN = Owner("oven", "oven-1")
Lie = Callable[[Run], Run]


async def honest_and_liar() -> tuple[Side, Side, Liar, Run]:
    """The laptop and the garage are honest, the kitchen is a liar. The run belongs to the laptop."""
    laptop, garage = await Side("laptop").joined(), await Side("garage").joined()
    await laptop.knows(garage)
    await garage.knows(laptop)
    await laptop.exchange.peers.add("kitchen")
    run = await laptop.create()
    await laptop.sync_with(garage)
    liar = Liar(laptop)
    await liar.says(devices=[a_device()])
    return laptop, garage, liar, await laptop.run(run.id)


async def agree(laptop: Side, garage: Side, run_id: str) -> Run:
    """Sync until neither store has anything left to send."""
    for side, other in ((laptop, garage), (garage, laptop)):
        result = await side.sync_with(other)
        assert (result.refused, result.refused_there) == (0, ())
    result = await laptop.sync_with(garage)
    assert (result.sent, result.taken) == (0, 0)
    mine, theirs = await laptop.run(run_id), await garage.run(run_id)
    assert (mine.status, mine.epoch, mine.output) == (theirs.status, theirs.epoch, theirs.output)
    return mine


def hello(run: Run, **changes: Any) -> Run:
    """A run with one more step."""
    return run.changed(story=(*run.story, Entry(run.created_at, "hello", None, "x")), **changes)


def noise(count: int, text: str = "", at: float = 0.0) -> tuple[Entry, ...]:
    return tuple(Entry(at, f"noise {number}", None, text) for number in range(count))


def long_line(run: Run) -> Run:
    return run.changed(story=(*run.story, *noise(MAX_ENTRIES - len(run.story))))


def size(run: Run) -> int:
    return messages.record_length([*row_codec.fixed(run), *row_codec.moving(run)])


def large_line(run: Run) -> Run:
    entries = noise(41, "y" * (LONGEST_TEXT - 100))
    room = MAX_RECORD_CHARS - messages.record_length(
        [*row_codec.fixed(run), *row_codec.moving(run.changed(story=run.story + entries))]
    )
    assert 0 < room < LONGEST_TEXT
    return run.changed(story=(*run.story, *entries, Entry(0.0, "noise", None, "y" * (room - 100))))


def blob(number: int) -> dict[str, Any]:
    return {"$blob": hashlib.sha256(str(number).encode()).hexdigest(), "size": 1}


LIES: dict[str, Lie] = {
    "the last revision": lambda run: hello(run, revision=MAX_NUMBER - 1),
    "a long story beside": lambda run: run.changed(story=(*noise(MAX_ENTRIES - len(run.story)), *run.story)),
    "a long line": long_line,
    "a large line": large_line,
    "counts": lambda run: hello(run, losses=MAX_ENTRIES, rounds=MAX_ENTRIES, failures=MAX_ENTRIES),
    "many to avoid": lambda run: hello(run, avoid=tuple(f"d{number}" for number in range(MAX_ENTRIES))),
    "many results": lambda run: run.changed(
        superseded=tuple(Superseded("d", 1, float(number), {}) for number in range(MAX_ENTRIES))
    ),
    "large reasons": lambda run: hello(
        run, avoid=("d0",), declined={f"d{number}": "y" * 90_000 for number in range(45)}
    ),
}


@pytest.mark.parametrize("lie", rest_long(list(LIES), 2))
async def test_two_honest_stores_agree_about_a_run_whatever_a_third_sends(lie: str) -> None:
    laptop, garage, liar, run = await honest_and_liar()
    answer = await liar.says(LIES[lie](run))
    assert answer["refused"] == 0
    await agree(laptop, garage, run.id)
    await laptop.take(run.id)
    await laptop.step(
        run.id, lambda record: transitions.release(record, record.grant, "released", "", laptop.store.clock())
    )
    await laptop.take(run.id)
    await agree(laptop, garage, run.id)
    await laptop.complete(run.id, {"ok": 1})
    assert (await agree(laptop, garage, run.id)).output == {"ok": 1}


async def test_losses_are_counted_up_to_the_valid_limit() -> None:
    laptop, garage, liar, run = await honest_and_liar()
    await liar.says(hello(run, losses=MAX_ENTRIES))
    await laptop.take(run.id)
    await laptop.step(run.id, lambda record: transitions.lose(record, laptop.store.clock(), "it is gone"))
    assert (await agree(laptop, garage, run.id)).status is FAILED


async def test_two_lies_that_are_too_large_together_are_not_both_kept() -> None:
    laptop, garage, liar, run = await honest_and_liar()
    await garage.exchange.peers.add("kitchen")
    to_garage = Liar(garage)
    for at, liars in enumerate([(liar,), (to_garage,), (liar, to_garage)]):
        for sender in liars:
            await sender.says(run.changed(story=(*noise(18, "y" * 90_000, float(at)), *run.story)))
    for side in (laptop, garage):
        record = await side.run(run.id)
        assert size(record) < MAX_RECORD_CHARS // 2
    await agree(laptop, garage, run.id)
    await laptop.take(run.id)
    await laptop.complete(run.id, {"ok": 1})
    await agree(laptop, garage, run.id)


def test_superseded_results_of_a_liar_leave_room_for_blobs() -> None:
    """Two lies together refer to more blobs than a record may."""
    run = transitions.create("r1", FLOW, {}, by="ann", now=1.0)
    lies = [
        run.changed(superseded=tuple(Superseded("d", 1, float(at), blob(at)) for at in range(first, first + 60)))
        for first in (0, 60)
    ]
    limited = storage_limits.limit_merged(lies[0], lies[1], merge_records(*lies))
    assert len(set(blobs_of(limited))) <= MAX_RECORD_BLOBS // 2
    sent = storage_limits.sendable_record(1, "me", merge_records(*lies))
    assert messages.parse_message(_message(sent)).items[0].run is not None


def test_a_superseded_result_is_kept_despite_noise() -> None:
    first = transitions.take(transitions.create("r1", FLOW, {}, by="ann", now=1.0), OVEN, 2.0, starts=True)
    mine, theirs = (transitions.complete(first, first.grant, {"from": who}, 3.0) for who in ("here", "there"))
    theirs = theirs.changed(story=(*noise(MAX_ENTRIES - 10), *theirs.story))
    limited = storage_limits.limit_merged(mine, theirs, merge_records(mine, theirs))
    assert sorted(result["from"] for result in (limited.output, *(lost.output for lost in limited.superseded))) == [
        "here",
        "there",
    ]
    assert len(limited.story) < 20
    # even if our own record is too large
    again = storage_limits.limit_merged(theirs, mine, merge_records(mine, theirs))
    assert again.story == own_story(again)
    assert len(again.superseded) == 1


def test_the_last_of_very_large_results_are_kept() -> None:
    run = transitions.create("r1", FLOW, {}, by="ann", now=1.0)
    lost = tuple(Superseded("d", epoch, 1.0, "y" * 400_000) for epoch in range(1, 9))
    mine = run.changed(superseded=lost)
    assert storage_limits.limit_merged(mine, run, mine).superseded == lost[-2:]


def test_a_record_within_the_limits_is_unchanged() -> None:
    run = transitions.create("r1", FLOW, {}, by="ann", now=1.0)
    other = run.changed(story=(Entry(0.5, "resumed", None, "by bob"), *run.story))
    resolved = merge_records(run, other)
    assert storage_limits.limit_merged(run, other, resolved) is resolved
    assert storage_limits.sendable_record(1, "me", resolved) == messages.encode_record(1, "me", resolved)


def _message(*records: dict[str, Any]) -> dict[str, Any]:
    return {
        "protocol": messages.PROTOCOL, "store": "a", "clock": 1.0, "feed": "f", "cursor": None, "after": 0, "upto": 1,
        "more": False, "newest": 1, "records": list(records), "devices": None, "wants": {},
        "lacks": [],
    }  # fmt: skip


LINE = transitions.create("r1", FLOW, {}, by="ann", now=1.0)
TOO_MUCH: dict[str, Run] = {
    "texts": LINE.changed(
        paused="y" * (LONGEST_TEXT + 1), story=(*LINE.story, Entry(2.0, "paused", None, "y" * (LONGEST_TEXT + 1)))
    ),
    "times": LINE.changed(not_before=float(MAX_NUMBER) + 10.0, waiting_since=float(MAX_NUMBER)),
    "devices": LINE.changed(
        avoid=tuple(f"d{number}" for number in range(MAX_ENTRIES + 1)),
        declined={f"d{number}": "no" for number in range(MAX_ENTRIES + 1)},
    ),
    "assignments beside": LINE.changed(
        previous=tuple(Assignment("d", 1, float(number), 2.0, "timeout", "z") for number in range(MAX_ENTRIES + 1))
    ),
    "a detail": LINE.changed(previous=(Assignment("d", 1, 1.0, 2.0, "timeout", "y" * (LONGEST_TEXT + 1)),)),
    "details": LINE.changed(
        status=REASSIGNING,
        epoch=45,
        previous=tuple(Assignment("d", number, 1.0, 2.0, "timeout", "y" * 95_000) for number in range(1, 46)),
    ),
    "results": LINE.changed(superseded=(Superseded("d", 1, 1.0, "y" * 4_200_000),)),
    "many results": LINE.changed(
        superseded=tuple(Superseded("d", 1, float(number)) for number in range(MAX_ENTRIES + 1))
    ),
    "everything": LINE.changed(
        story=(*noise(15, "y" * 90_000), *LINE.story, *noise(60, "y" * 90_000)),
        scores={"y" * 400 + str(number): 1.0 for number in range(3_000)},
    ),
    "what is written longer than it is": LINE.changed(story=(*LINE.story, *noise(30, "\N{BEER MUG}" * 90_000))),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_record_beyond_a_limit_is_sent_shortened(what: str) -> None:
    [item] = messages.parse_message(_message(storage_limits.sendable_record(1, "me", TOO_MUCH[what]))).items
    assert item.run is not None, item.why
    assert item.run.story[-1].at == TOO_MUCH[what].story[-1].at
    assert item.run.status is TOO_MUCH[what].status
