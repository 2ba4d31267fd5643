"""The monitor: which runs it takes away, assigns and gives up."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import ABROAD, Session
from asterism.core.run.work import Workflow
from asterism.fleet import monitor as monitoring
from asterism.fleet.monitor import Monitor
from asterism.fleet.run_explanation import explain_run
from asterism.store.protocol import ExpectSession, PutRun, PutSession, Query
from tests.fleet.fleet_scenes import WORK, Line, Stage

pytestmark = pytest.mark.virtual_time

GPU = Workflow("gpu", call="work:do", needs=frozenset({"gpu"}))


async def watch(monitor: Monitor, seconds: float, every: float = 5.0) -> None:
    """Let a monitor watch for so long."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await monitor.run_pass()
        await asyncio.sleep(every)


async def idle(stage: Stage, name: str, **options: object) -> Session:
    """A device that is joined and sends no heartbeats any more."""
    session = Session(f"{name}-1", name, stage.store.clock(), **options)  # type: ignore[arg-type]
    await stage.store.commit([PutSession(session, None)])
    return session


async def processing(stage: Stage, owner: Owner, flow: Workflow = WORK) -> Run:
    run = await stage.fleet("ben").create(flow, device=owner.device)
    now = stage.store.clock

    def step(current: Run) -> Run:
        current = current if current.session is not None else transitions.take(current, owner, now())
        if current.status == "assigned":
            current = transitions.claim(current, current.grant, now())  # type: ignore[arg-type]
        return transitions.start(current, current.grant, now())  # type: ignore[arg-type]

    return await stage.person.ledger.change(run.id, step)


# -- taking away -------------------------------------------------------------------------------------------------------


async def test_an_unanswered_assignment_expires(stage: Stage) -> None:
    monitor = stage.monitor()
    session = await idle(stage, "kitchen", timeout=1000.0)
    run = await stage.person.create(WORK)
    assert run.session == session.id
    await watch(monitor, 25.0)
    assert (await stage.read(run)).status == "assigned"
    await watch(monitor, 600.0)
    stored = await stage.read(run)
    assert stored.previous[0][4:6] == ("timeout", "kitchen did not answer in time")
    assert stored.losses >= 1


async def test_a_claim_that_is_not_begun_runs_out(stage: Stage) -> None:
    session = await idle(stage, "kitchen", timeout=1000.0)
    run = await stage.person.create(replace(WORK, heartbeat_timeout=1000.0))
    claimed = await stage.person.ledger.change(
        run,
        lambda r: transitions.claim(r, r.grant, stage.store.clock()),  # type: ignore[arg-type]
    )
    assert claimed.session == session.id
    await watch(stage.monitor(), 800.0)
    assert (await stage.read(run)).previous[0].detail == "kitchen claimed it and did not begin in time"


async def test_the_work_of_a_silent_device_is_taken_away_when_its_time_is_up(stage: Stage) -> None:
    monitor = stage.monitor()
    session = await idle(stage, "kitchen")
    run = await processing(stage, session.owner)
    await watch(monitor, 85.0)
    assert (await stage.read(run)).status == "processing"
    await watch(monitor, 30.0)
    stored = await stage.read(run)
    assert (stored.status, stored.losses, stored.avoid) == ("reassigning", 1, ("kitchen",))
    assert stored.previous[0].detail.startswith("kitchen was not heard of for 9")


async def test_nothing_is_taken_from_a_device_of_which_a_heartbeat_slips_in(stage: Stage) -> None:
    session = await idle(stage, "kitchen")
    run = await processing(stage, session.owner)
    line = Line(stage.store)
    monitor = stage.monitor(line=line)
    await watch(monitor, 89.0)
    await asyncio.sleep(5.0)
    line.late["commit"] = 1.0
    watching = asyncio.create_task(monitor.run_pass())
    await asyncio.sleep(0.5)
    assert (await stage.store.heartbeat(session.id, {}, ())).alive
    await watching
    assert (await stage.read(run)).status == "processing"


async def test_a_loss_is_committed_only_against_the_silence_that_was_seen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is what keeps the heartbeat above from being overlooked."""
    guards = []

    class Ear(Line):
        async def commit(self, writes: object) -> None:
            guards.extend([write for write in writes if isinstance(write, ExpectSession)])  # type: ignore[attr-defined]
            await stage.store.commit(writes)  # type: ignore[arg-type]

    session = await idle(stage, "kitchen")
    await processing(stage, session.owner)
    await watch(stage.monitor(line=Ear(stage.store)), 120.0)
    assert guards == [ExpectSession(session.id, session.revision)]


@pytest.mark.virtual_time(seeds=3)
async def test_two_monitors_at_once_take_a_run_away_once(stage: Stage) -> None:
    session = await idle(stage, "kitchen")
    runs = [await processing(stage, session.owner) for _ in range(5)]
    monitors = [stage.monitor(f"hub-{number}") for number in range(2)]
    await asyncio.gather(*(watch(monitor, 120.0) for monitor in monitors))
    for run in runs:
        stored = await stage.read(run)
        assert (stored.losses, len(stored.previous), stored.revision) == (1, 1, run.revision + 1)


async def test_a_run_that_is_to_be_cancelled_ends_when_its_device_is_lost(stage: Stage) -> None:
    session = await idle(stage, "kitchen")
    run = await processing(stage, session.owner)
    await stage.person.cancel(run.id)
    await watch(stage.monitor(), 120.0)
    assert (await stage.read(run)).cancelled


async def test_a_run_that_is_lost_too_often_is_given_up_and_its_series_goes_on(stage: Stage) -> None:
    session = await idle(stage, "kitchen")
    flow = replace(WORK, losses=0)
    run = await stage.person.create(flow, series="films")
    now = stage.store.clock
    next_one = await stage.person.create(flow, series="films")
    await stage.person.ledger.change(
        run.id, lambda r: transitions.take(transitions.admit(r), session.owner, now(), starts=True)
    )
    await watch(stage.monitor(), 120.0)
    stored = await stage.read(run)
    assert (stored.error or "").startswith("lost 1 times, the last time because kitchen was not heard of")
    assert "series" not in str(await explain_run(stage.person, next_one.id))
    assert [notice.run for notice in await stage.notices("failed")] == [run.id]


# -- the brake ---------------------------------------------------------------------------------------------------------


async def test_when_most_of_a_fleet_vanishes_at_once_nothing_is_taken_away_for_a_while(stage: Stage) -> None:
    monitor = stage.monitor()
    sessions = [await idle(stage, f"device-{number}") for number in range(4)]
    runs = [await processing(stage, session.owner) for session in sessions]
    await watch(monitor, 175.0)
    assert {(await stage.read(run)).status for run in runs} == {"processing"}
    [notice] = await stage.notices("brake")
    assert notice.message == "4 of 4 devices vanished at once: nothing is taken away for 90 s"
    await watch(monitor, 30.0)
    assert "processing" not in {(await stage.read(run)).status for run in runs}, "and only for a while"
    assert len(await stage.notices("brake")) == 1


async def test_a_device_that_comes_back_while_the_brake_holds_keeps_its_work(stage: Stage) -> None:
    monitor = stage.monitor()
    sessions = [await idle(stage, f"device-{number}") for number in range(4)]
    runs = [await processing(stage, session.owner) for session in sessions]
    await watch(monitor, 150.0)
    for session in sessions[:3]:
        await stage.store.heartbeat(session.id, {}, ())
    await watch(monitor, 60.0)
    assert [(await stage.read(run)).status for run in runs] == ["processing"] * 3 + ["reassigning"]


# -- handing out -------------------------------------------------------------------------------------------------------


async def test_waiting_runs_are_assigned_by_score_and_keep_the_scores(stage: Stage) -> None:
    run = await stage.person.create(WORK)
    await idle(stage, "slow", profile={"quality": 0.1})
    await idle(stage, "fast", profile={"quality": 0.9})
    await stage.monitor().run_pass()
    stored = await stage.read(run)
    assert (stored.device, stored.assigned_by) == ("fast", "hub")
    assert stored.scores == {"slow": 40 + 3 + 10, "fast": 40 + 27 + 20}


async def test_the_most_urgent_is_handed_out_first_and_nothing_while_it_backs_off(stage: Stage) -> None:
    low, high = await stage.person.create(WORK), await stage.person.create(WORK, priority=5)
    later = await stage.person.create(WORK, priority=9)
    await stage.person.ledger.change(
        later.id, lambda r: r.changed(not_before=stage.store.clock() + 50.0, revision=r.revision + 1)
    )
    await idle(stage, "kitchen")
    await stage.monitor().run_pass()
    assert [(await stage.read(run)).status for run in (low, high, later)] == ["created", "assigned", "created"]


async def test_a_preferred_device_gets_an_offered_run_before_others(stage: Stage) -> None:
    await stage.device("plain", monitor_every=5.0)
    liked = await stage.device("liked", labels={"room": "attic"})
    await stage.until(lambda: liked.line.asked["heartbeat"])
    flow = replace(WORK, name="picky", prefers="has(labels.room) && labels.room == 'attic'")
    first = await stage.person.create(flow)
    await stage.at_work(liked, first)
    await stage.person.pause(first.id)
    await stage.reaches(first, "reassigning")
    await stage.person.resume(first.id)
    await stage.until(lambda: len(liked.hands.begun) == 2)


async def test_without_the_preferred_device_any_device_may_take_the_run(stage: Stage) -> None:
    flow = replace(WORK, name="picky", prefers="os == 'plan9'")
    orchestration = replace(WORK, name="orchestration", orchestration=True)
    runs = [await stage.person.create(flow), await stage.person.create(orchestration)]
    plain = await stage.device("plain", slots=2)  # no coordinator: it takes runs by itself
    for run in runs:
        await stage.at_work(plain, run)


async def test_orchestration_goes_to_the_coordinator(stage: Stage) -> None:
    others = [await stage.device(f"device-{number}") for number in range(3)]
    hub = await stage.device("hub", monitor_every=5.0)
    await asyncio.sleep(20.0)
    assert await stage.person.coordinator() == "hub"
    run = await stage.person.create(replace(WORK, name="orchestration", orchestration=True))
    await stage.at_work(hub, run)
    assert all(not other.hands.begun for other in others)


@pytest.mark.store_only("a process that runs a plan has the store")
async def test_the_loss_of_the_process_that_runs_a_plan_is_not_a_loss_of_its_task(stage: Stage) -> None:
    await stage.device("hub", slots=0, monitor_every=2.0)
    run = await stage.person.create(replace(WORK, name="plan:nightly", losses=1))
    for _ in range(4):
        nightly = await stage.device("nightly@here")
        await stage.at_work(nightly, run)
        await nightly.crash()
        stored = await stage.reaches(run, "reassigning")
        assert (stored.losses, stored.avoid, stored.previous[-1].reason) == (0, (), "timeout")
    for _ in range(2):
        other = await stage.device("weekly@here")
        await stage.at_work(other, run)
        await other.crash()
        await asyncio.sleep(200.0)
    ended = await stage.read(run)
    assert (ended.status, ended.losses) == ("failed", 2), "the loss of another plan's process counts"


# -- giving up ---------------------------------------------------------------------------------------------------------


async def test_when_all_decline_they_are_asked_again_and_at_last_it_fails_with_every_reason(stage: Stage) -> None:
    hub = await stage.device("hub", slots=0, monitor_every=2.0)
    kitchen, attic = await stage.device("kitchen"), await stage.device("attic")
    kitchen.hands.refuses, attic.hands.refuses = "not on battery", "not at night"
    run = await stage.person.create(replace(WORK, rounds=3))
    ended = await stage.end_of(run)
    assert (ended.status, ended.rounds, ended.failures, ended.losses) == ("failed", 3, 0, 0)
    assert (ended.error or "").startswith("all devices declined, in 3 rounds. ")
    assert "kitchen (declined): not on battery" in (ended.error or "")
    assert "attic (declined): not at night" in (ended.error or "")
    refused = [entry.why for entry in ended.story if entry.what == "declined"]
    for device, why in (("kitchen", "not on battery"), ("attic", "not at night")):
        asked = [assignment for assignment in ended.previous if assignment.device == device]
        assert len(asked) + refused.count(f"by {device}: {why}") == 3, "rounds=3 asks three times"
    assert [notice.run for notice in await stage.notices("failed")] == [run.id]
    assert not hub.hands.begun


async def test_a_run_that_no_device_can_execute_fails_with_all_reasons(stage: Stage) -> None:
    monitor = stage.monitor()
    run = await stage.person.create(GPU)
    kitchen = await stage.device("kitchen")
    await stage.device("attic", can={"gpu"}, slots=0)
    await watch(monitor, 290.0)
    assert (await stage.read(run)).status == "created"
    await watch(monitor, 30.0)
    error = (await stage.read(run)).error
    assert error == ("no device could take it for 300 s. kitchen: it lacks gpu; attic: it has no slots")
    assert not kitchen.hands.begun


async def test_a_run_without_any_device_fails_too(stage: Stage) -> None:
    run = await stage.person.create(WORK, device="nowhere")
    await watch(stage.monitor(), 320.0)
    assert (await stage.read(run)).error == "no device could take it for 300 s. no device is joined"


async def test_a_joining_device_gets_the_run_and_a_leaving_one_restarts_the_wait(stage: Stage) -> None:
    monitor = stage.monitor()
    first = await stage.person.create(GPU)
    await watch(monitor, 250.0)
    attic = await stage.device("attic", can={"gpu"})
    await stage.at_work(attic, first)
    second = await stage.person.create(GPU)
    await watch(monitor, 500.0)
    assert (await stage.read(second)).status == "created", "the device is busy, and that is no reason to give up"
    await attic.leave()
    await watch(monitor, 250.0)
    assert (await stage.read(second)).status in ("created", "assigned", "reassigning")


async def test_a_run_that_the_rules_of_all_devices_refuse_is_declined_and_does_not_wait_for_another_device(
    stage: Stage,
) -> None:
    kitchen = await stage.device("kitchen", accepts="run.priority > 3", monitor_every=5.0)
    await stage.device("attic", accepts="run.by == 'bob'")
    await stage.device("cellar", can={"camera"}, accepts="false")
    run = await stage.person.create(replace(WORK, rounds=3, needs=frozenset({"gpu"})))
    assert (await stage.read(run)).rounds == 0
    run = await stage.person.create(replace(WORK, rounds=3, backoff=30.0))
    began = stage.store.clock()
    ended = await stage.end_of(run)
    assert (ended.status, ended.rounds, ended.epoch) == ("failed", 3, 0)
    assert (ended.error or "").startswith("all devices declined, in 3 rounds. ")
    assert "kitchen (declined): its own rule: 'run.priority > 3' does not hold" in (ended.error or "")
    assert 90.0 <= stage.store.clock() - began <= 115.0, "the rounds are 30 s and 60 s apart, and a pass takes 5 s"
    urgent = await stage.person.create(WORK, priority=7)
    await stage.at_work(kitchen, urgent)


async def test_the_rule_of_a_device_does_not_use_up_the_rounds_of_a_run_that_another_device_works_on(
    stage: Stage,
) -> None:
    kitchen = await stage.device("kitchen", monitor_every=5.0)
    await stage.device("attic", accepts="false")
    run = await stage.person.create(replace(WORK, rounds=1, retries=5))
    for attempt in range(1, 6):
        await stage.until(lambda wanted=attempt: len(kitchen.hands.begun) == wanted)
        kitchen.hands.fail(run, ValueError("no"))
    await stage.until(lambda: len(kitchen.hands.begun) == 6)
    assert (await stage.read(run)).rounds == 0


async def test_a_run_that_a_rule_accepts_is_not_given_up_because_of_others_that_it_does_not(stage: Stage) -> None:
    """A device's own rule may look at a run's priority, series and creator."""
    kitchen = await stage.device("kitchen", accepts="run.priority > 3", monitor_every=5.0)
    first = await stage.person.create(WORK, priority=9)
    await stage.at_work(kitchen, first)
    waits = await stage.person.create(WORK, priority=8)
    never = await stage.person.create(WORK, priority=1)
    ended = await stage.end_of(never)
    assert "kitchen (declined): its own rule: 'run.priority > 3' does not hold" in (ended.error or "")
    assert (await stage.read(waits)).status == "created"
    kitchen.hands.finish(first)
    await stage.at_work(kitchen, waits)


# -- tidying -----------------------------------------------------------------------------------------------------------


async def test_old_runs_are_removed_with_their_blobs_and_reports(stage: Stage) -> None:
    await stage.person.configure(keep=1000.0)
    monitor = stage.monitor()
    old = await stage.person.create(WORK, {"text": "x" * 200_000})
    await stage.person.cancel(old.id)
    await asyncio.sleep(3000.0)
    young = await stage.person.create(WORK)
    await stage.person.cancel(young.id)
    await watch(monitor, 1200.0, every=10.0)
    assert [run.id for run in await stage.person.runs()] in ([young.id], [])
    await watch(monitor, 6000.0, every=10.0)
    assert await stage.person.runs() == []
    assert not stage.store._blobs


async def test_a_great_many_old_runs_do_not_keep_the_monitor_from_its_work(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "PRUNED_PER_PASS", 6)
    await stage.person.configure(keep=10.0)
    for _ in range(20):
        await stage.person.cancel((await stage.person.create(WORK)).id)
    await asyncio.sleep(20.0)
    monitor, counts = stage.monitor(), []
    for _ in range(6):
        await monitor.run_pass()
        counts.append(len(await stage.person.runs()))
        await asyncio.sleep(1.0)
    assert counts == [14, 8, 2, 0, 0, 0]


async def test_a_long_silent_session_ends_and_so_does_a_replaced_one(
    stage: Stage,
) -> None:
    """It may take work for as long as it believes that it was heard of, and an ended session owns nothing."""
    gone, other = await idle(stage, "kitchen"), await idle(stage, "attic")
    await stage.store.commit([PutSession(other.changed(state="replaced"), other.revision)])
    monitor = stage.monitor()

    async def states() -> dict[str, str]:
        return {session.id: session.state for session in await stage.store.sessions(ended=True)}

    await watch(monitor, 600.0, every=20.0)
    assert await states() == {gone.id: "open", other.id: "replaced"}
    await watch(monitor, 4000.0, every=20.0)
    assert await states() == {gone.id: "ended", other.id: "ended"}


@pytest.mark.parametrize("every", [1.0, 30.0, 120.0])
async def test_a_monitor_that_rarely_looks_finds_the_dead_all_the_same(stage: Stage, every: float) -> None:
    hub = await stage.device("hub", slots=0, monitor_every=every, heartbeat=10.0)
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await kitchen.crash()
    began = stage.now()
    await stage.until(lambda: stage.store._runs[run.id].status != "processing")
    assert stage.now() - began < 200.0 + 5 * every
    assert not hub.task.done()


async def test_a_store_out_of_reach_does_not_end_a_monitor(stage: Stage) -> None:
    hub = await stage.device("hub", slots=0, monitor_every=5.0)
    await asyncio.sleep(20.0)
    hub.line.down = True
    await asyncio.sleep(600.0)
    hub.line.down = False
    run = await stage.person.create(GPU)
    assert (await stage.end_of(run)).status == "failed"
    assert await stage.store.find(Query(offered=True)) == []


async def test_a_run_that_all_declined_starts_a_new_round_however_many_wait_before_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "RUNS_PER_PASS", 5)
    kitchen = await stage.device("kitchen")
    await stage.at_work(kitchen, await stage.person.create(WORK))
    runs = sorted([await stage.person.create(WORK) for _ in range(12)], key=lambda run: run.id)
    for run, device in zip(runs, [*["attic"] * 11, "kitchen"], strict=True):
        avoiding = run.changed(avoid=(device,), declined={device: "no"}, revision=run.revision + 1)
        await stage.store.commit([PutRun(avoiding, run.revision)])
    monitor = stage.monitor()
    rounds = []
    for _ in range(3):
        await monitor.run_pass()
        rounds.append((await stage.read(runs[-1])).rounds)
    assert rounds == [0, 0, 1]
    assert not any([(await stage.read(run)).rounds for run in runs[:-1]])


async def test_an_unplaceable_run_is_given_up_however_many_wait_before_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "RUNS_PER_PASS", 5)
    kitchen = await stage.device("kitchen")
    before = [await stage.person.create(WORK) for _ in range(12)]
    await stage.at_work(kitchen, before[0])
    unplaceable = [await stage.person.create(WORK, device="attic") for _ in range(7)]
    monitor = stage.monitor()
    await monitor.run_pass()
    await asyncio.sleep(WORK.no_device_timeout + 1.0)
    await monitor.run_pass()
    given_up = [run for run in unplaceable if (await stage.read(run)).ended]
    assert len(given_up) == 5
    await monitor.run_pass()
    assert all([(await stage.read(run)).ended for run in unplaceable])
    assert not any([(await stage.read(run)).ended for run in before])


async def test_a_device_of_a_peer_gets_its_run_however_many_runs_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing by itself, so a run for it alone would wait forever beside a device that cannot execute it."""
    monkeypatch.setattr(monitoring, "RUNS_PER_PASS", 5)
    await stage.device("kitchen")
    for _ in range(7):
        await stage.person.create(WORK, device="attic")
    runs = [await stage.person.create(GPU) for _ in range(5)]
    heard = {"state": ABROAD, "beat_at": stage.store.clock(), "timeout": 1000.0}
    cellar = await idle(stage, "cellar", can=frozenset({"gpu"}), **heard)
    monitor = stage.monitor()
    await monitor.run_pass()
    await monitor.run_pass()  # the first pass saw nothing for it
    assert [(await stage.read(run)).session for run in runs].count(cellar.id) == 1
