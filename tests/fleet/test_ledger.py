"""The ledger: every change happens once, or is refused with a reason, whatever gets lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.fleet.ledger import CHANGE_TIMEOUT, UnknownRun, failure_notice, happened
from asterism.store.protocol import Notice, PutRun, PutSession, Write
from asterism.store.store_errors import StoreUnavailable
from tests.fleet.fleet_scenes import WORK, Line, Stage

pytestmark = pytest.mark.virtual_time

KITCHEN = Owner("kitchen", "kitchen-1")


async def known(stage: Stage) -> None:
    """The owner, as the store knows it. It has no slots, so only the test assigns runs to it."""
    await stage.store.commit([PutSession(Session(KITCHEN.session, KITCHEN.device, 0.0, slots=0), None)])


def _grant(run: Run) -> Any:
    assert run.grant is not None
    return run.grant


STEPS: dict[str, tuple[str, Callable[[Run, float], Run]]] = {
    "assign": ("created", lambda run, now: transitions.assign(run, KITCHEN, by="hub", now=now)),
    "take": ("created", lambda run, now: transitions.take(run, KITCHEN, now)),
    "claim": ("assigned", lambda run, now: transitions.claim(run, _grant(run), now)),
    "decline": ("assigned", lambda run, now: transitions.decline(run, _grant(run), "on battery", now)),
    "start": ("claimed", lambda run, now: transitions.start(run, _grant(run), now)),
    "complete": ("processing", lambda run, now: transitions.complete(run, _grant(run), 42, now)),
    "fail": ("processing", lambda run, now: transitions.fail(run, _grant(run), "no", now)),
    "release": ("processing", lambda run, now: transitions.release(run, _grant(run), "released", "", now)),
    "lose": ("processing", lambda run, now: transitions.lose(run, now, "silent")),
    "give up": ("created", lambda run, now: transitions.give_up(run, now, "nobody")),
    "cancel": ("created", lambda run, now: transitions.cancel(run, now, "ann")),
    "ask to cancel": ("processing", lambda run, now: transitions.cancel(run, now, "ann")),
    "pause": ("assigned", lambda run, now: transitions.pause(run, now, "ann")),
    "resume": ("paused", lambda run, now: transitions.resume(run, now, "ann")),
}


async def run_that_is(stage: Stage, state: str) -> Run:
    await known(stage)
    run = await stage.person.create(WORK)
    ledger = stage.person.ledger
    now = stage.store.clock
    if state == "paused":
        return await ledger.change(run, lambda r: transitions.pause(r, now(), "ann"))
    if state in ("assigned", "claimed", "processing"):
        run = await ledger.change(run, lambda r: transitions.assign(r, KITCHEN, by="hub", now=now()))
    if state in ("claimed", "processing"):
        run = await ledger.change(run, lambda r: transitions.claim(r, _grant(r), now()))
    if state == "processing":
        run = await ledger.change(run, lambda r: transitions.start(r, _grant(r), now()))
    return run


@pytest.mark.parametrize("name", STEPS)
async def test_a_change_whose_answer_got_lost_is_recognised_and_not_made_twice(stage: Stage, name: str) -> None:
    state, step = STEPS[name]
    run = await run_that_is(stage, state)
    line = Line(stage.store)
    line.loses["commit"] = 1
    fleet = stage.fleet("kitchen", line)
    await asyncio.sleep(5.0)
    after = await fleet.ledger.change(run.id, lambda r: step(r, stage.store.clock()))
    assert after == await stage.read(run)
    assert (line.asked["commit"], after.revision) == (1, run.revision + 1)


@pytest.mark.parametrize("name", STEPS)
async def test_a_change_that_got_lost_on_the_way_is_made_again(stage: Stage, name: str) -> None:
    state, step = STEPS[name]
    run = await run_that_is(stage, state)
    line = Line(stage.store)
    line.drops["commit"] = 3
    after = await stage.fleet("kitchen", line).ledger.change(run, lambda r: step(r, stage.store.clock()))
    assert after == await stage.read(run)
    assert (line.asked["commit"], after.revision) == (4, run.revision + 1)


async def test_a_change_that_arrives_after_it_was_tried_again_is_recognised(stage: Stage) -> None:
    """The first try is under way for so long that the second one meets it in the store."""
    run = await run_that_is(stage, "processing")
    ledger = stage.person.ledger
    now = stage.store.clock
    tries: list[Run] = []

    class Slow(Line):
        async def commit(self, writes: Sequence[Write]) -> None:
            tries.append(next(write.run for write in writes if isinstance(write, PutRun)))
            if len(tries) == 1:
                raise StoreUnavailable("no answer, and it is still on its way")
            await stage.store.commit([PutRun(tries[0], run.revision)])
            await stage.store.commit(writes)

    ledger.store = Slow(stage.store)
    after = await ledger.change(run, lambda r: transitions.complete(r, _grant(r), 42, now()))
    assert after == tries[0] == await stage.read(run)
    assert tries[0].story != tries[1].story


async def test_a_writer_that_loses_the_race_reads_again(stage: Stage) -> None:
    run = await stage.person.create(WORK)
    await stage.person.pause(run.id, "first")
    seen = []

    def step(before: Run) -> Run:
        seen.append(before.revision)
        return transitions.cancel(before, stage.store.clock(), "bob")

    after = await stage.person.ledger.change(run, step)
    assert seen == [run.revision, run.revision + 1]
    assert after.cancelled


async def test_a_step_that_changes_nothing_writes_nothing(stage: Stage) -> None:
    run = await stage.person.create(WORK)
    line = Line(stage.store)
    assert await stage.fleet("ann", line).ledger.change(run, lambda r: r) is run
    assert not line.asked["commit"]


async def test_patience_ends(stage: Stage) -> None:
    run = await stage.person.create(WORK)
    line = Line(stage.store)
    line.down = True
    began = stage.now()
    with pytest.raises(StoreUnavailable):
        await stage.fleet("ann", line).cancel(run.id)
    assert CHANGE_TIMEOUT <= stage.now() - began < 2 * CHANGE_TIMEOUT
    with pytest.raises(StoreUnavailable):
        await stage.fleet("ann", line).create(WORK)


async def test_a_run_that_is_not_there_is_said_not_to_be(stage: Stage) -> None:
    with pytest.raises(UnknownRun, match="there is no such run"):
        await stage.person.cancel("nobody")


async def test_an_invalid_step_of_an_owner_is_refused_and_changes_nothing(stage: Stage) -> None:
    run = await run_that_is(stage, "processing")
    lost = await stage.person.ledger.change(run, lambda r: transitions.lose(r, 5.0, "silent"))
    with pytest.raises(RunRefused, match="epoch 1 can no longer complete it"):
        await stage.person.ledger.change(run, lambda r: transitions.complete(r, _grant(run), 42, 6.0))
    assert await stage.read(run) == lost


def test_a_write_is_recognised_in_the_story_of_a_run() -> None:
    run = transitions.create("r", WORK, {}, by="ann", now=0.0)
    ours = transitions.take(run, KITCHEN, 1.0)
    theirs = transitions.take(run, Owner("kitchen", "kitchen-2"), 1.0)
    assert happened(ours, ours)
    assert happened(ours, transitions.start(ours, _grant(ours), 2.0))
    assert happened(ours, transitions.release(ours, _grant(ours), "released", "", 2.0))
    assert not happened(ours, run), "it has not been written yet"
    assert not happened(ours, theirs), "the same words at the same moment, of another session"
    assert not happened(ours, transitions.take(run, KITCHEN, 2.0)), "at another moment"


# -- creating --------------------------------------------------------------------------------------------------------


async def test_a_creation_whose_answer_got_lost_is_recognised(stage: Stage) -> None:
    await stage.person.workflows.add(WORK)
    for lost, dropped in ((1, 0), (0, 1), (1, 1)):
        line = Line(stage.store)
        line.loses["commit"], line.drops["commit"] = lost, dropped
        run = await stage.fleet("ann", line).create("work")
        assert await stage.read(run) == run
    assert len(await stage.person.runs()) == 3


@pytest.mark.virtual_time(seed=3)
async def test_one_key_is_one_run_also_when_twenty_ask_at_once(stage: Stage) -> None:
    first = await stage.person.create(WORK, {"n": 0}, key="nightly")
    again = await stage.person.create(WORK, {"n": 1}, key="nightly")
    assert again == first
    fleets = [stage.fleet(f"person-{number}") for number in range(20)]
    runs = await asyncio.gather(*(fleet.create(WORK, {"by": fleet.by}, key="weekly") for fleet in fleets))
    assert len({run.id for run in runs}) == 1
    assert len(await stage.person.runs()) == 2


async def test_a_key_whose_answer_got_lost_is_still_one_run(stage: Stage) -> None:
    await stage.person.workflows.add(WORK)
    line = Line(stage.store)
    line.loses["commit"] = 1
    run = await stage.fleet("ann", line).create("work", key="nightly")
    assert (await stage.person.create("work", key="nightly")).id == run.id


async def test_a_retry_is_a_new_run_that_names_the_old_one(stage: Stage) -> None:
    run = await run_that_is(stage, "processing")
    with pytest.raises(Exception, match="only a run that has ended can be retried"):
        await stage.person.retry(run.id)

    def fail(before: Run) -> Run:
        half = before.changed(progress=transitions.Progress(5, 10))
        return transitions.fail(half, _grant(before), "no", stage.store.clock())

    old = await stage.person.ledger.change(run, fail)
    new = await stage.person.retry(run.id)
    assert (new.retry_of, new.status, new.epoch, new.progress) == (old.id, "created", 0, old.progress)
    assert new.story[0].why == f"by ann, a retry of {old.id}"
    assert await stage.read(old) == old


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": "high"}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"input": [1]}, "must be an object of named values"),
        ({"input": {"x": {1, 2}}}, "which is not JSON"),
        ({"input": {"$blob": "x", "size": 1}}, "looks like a reference"),
        ({"key": ""}, "key must be a text"),
        ({"key": "plan:nightly/a/1"}, "are reserved for plans"),
        ({"series": "a\nb"}, "series must be a text"),
        ({"device": 3}, "device must be a text"),
    ],
)
async def test_invalid_terms_are_refused_before_any_write(stage: Stage, options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        await stage.person.create(Workflow("new", argv=("true",)), options.pop("input", None), **options)
    assert await stage.person.runs() == []
    assert "new" not in await stage.person.workflows.names()


# -- notices ---------------------------------------------------------------------------------------------------------


async def test_a_failure_is_noticed_in_the_same_commit_and_a_cancellation_is_not(stage: Stage) -> None:
    run = await run_that_is(stage, "processing")
    line = Line(stage.store)

    def fail(before: Run) -> Run:
        return transitions.fail(before, _grant(before), "out of paper", 9.0)

    await stage.fleet("kitchen", line).ledger.change(run, fail)
    assert line.asked["commit"] == 1
    await stage.person.cancel((await stage.person.create(WORK)).id)
    [notice] = await stage.notices("failed")
    assert (notice.run, notice.device) == (run.id, "kitchen")
    assert notice.message == f"run {run.id} (work) failed: out of paper"


def test_the_notice_of_a_failure_names_the_label_or_the_task() -> None:
    run = transitions.create("r1", WORK, {}, by="ann", now=1.0).changed(error="out of paper")
    for changes, named in [
        ({"label": "a.mp4"}, "work: a.mp4"),
        ({"key": "plan:nightly/load/3"}, "work: load"),
        ({"key": "mine"}, "work"),
    ]:
        [notice] = failure_notice(run.changed(**changes), 2.0)
        assert isinstance(notice, Notice)
        assert notice.message == f"run r1 ({named}) failed: out of paper"


async def test_however_much_a_person_says_a_record_stays_small(stage: Stage) -> None:
    await stage.person.workflows.add(WORK)
    run = await stage.person.create("work")
    for ask in (stage.person.pause, stage.person.resume, stage.person.cancel):
        run = await ask(run.id, "w" * 1_000_000)
    assert run.error is not None
    assert max(len(run.error), *(len(entry.why) for entry in run.story)) < 11_000
    assert "ann: www" in run.story[-1].why
