"""The assignment lock, without which a delayed assignment would be a second one, and the assignees that must stay."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from asterism.series.compare_and_swap import RetryOptions, update
from asterism.series.github import assignment
from asterism.series.github.assignment import DURATION, HeldLock, LockExpired, LockHeld, SeriesAssignmentLock
from asterism.series.github.github_client import MAX_ATTEMPTS
from asterism.series.github.series_sync import SyncSettings
from asterism.series.github.sync import SyncService
from asterism.series.github.sync_report import SyncReport
from asterism.series.register import STATE_FILE, RegisterUnavailable
from tests.series.github.github_fixtures import (
    QUICK,
    SERIES,
    assigned,
    merged,
    opened,
    service_of,
    sync,
    synced,
    world_of,
)
from tests.series.github.github_server import Aborted, Faults, GitHubServer

BOT = "copilot-swe-agent"
REF = f"refs/asterism/turns/{SERIES}"


@pytest.fixture
def server():
    with GitHubServer(world_of()) as running:
        yield running


async def released(server: GitHubServer, issue: int) -> None:
    """What ``series release`` does: the state changes, and the issue stays assigned."""
    register = opened(server)
    await update(register, SERIES, lambda series, now: series.leave(issue, now), "release", retry=QUICK)
    await register.close()


async def late_assignment(server: GitHubServer) -> str:
    """One sync is held up just before it assigns #1. Then #1 is released, and another sync wants to assign #2. Returns
    how that one ended, before the first continues."""
    gate = server.hold("POST", "/issues/1/assignees")
    late = asyncio.create_task(synced(server))
    await gate.reached_by(late)
    await released(server, 1)
    other = await synced(server, lock_deadline=0.05)
    gate.open()
    await late
    return other.series[0].status


def test_an_assignment_that_is_late_does_not_land_beside_another(server):
    assert asyncio.run(late_assignment(server)) == "contended"
    assert assigned(server) == [1]  # the late one has arrived: nobody else had been assigned
    report = sync(server)
    assert (report.state.active, report.repaired) == (2, [1])
    assert assigned(server) == [2]
    assert server.world.doubles == []


def test_without_turns_it_does(server, monkeypatch):
    async def acquire(self: SeriesAssignmentLock, name: str) -> HeldLock:
        return HeldLock(name, "", float("inf"), lambda: 0.0)

    async def release(self: SeriesAssignmentLock, turn: HeldLock) -> None:
        return None

    monkeypatch.setattr(SeriesAssignmentLock, "acquire", acquire)
    monkeypatch.setattr(SeriesAssignmentLock, "release", release)
    asyncio.run(late_assignment(server))
    assert server.world.doubles != []


async def test_a_turn_is_taken_by_one_and_given_back(server):
    register = opened(server)
    turns = SeriesAssignmentLock(register)
    turn = await turns.acquire(SERIES)
    with pytest.raises(LockHeld):
        await turns.acquire(SERIES)
    await turns.acquire("OPS-7")  # another series has turns of its own
    await turns.release(turn)
    await turns.acquire(SERIES)
    await register.close()


async def test_many_who_want_a_turn_at_once_get_it_one_at_a_time(server):
    registers = [opened(server) for _ in range(10)]
    taken = await asyncio.gather(
        *(SeriesAssignmentLock(register).acquire(SERIES) for register in registers), return_exceptions=True
    )
    for register in registers:
        await register.close()
    assert len([outcome for outcome in taken if isinstance(outcome, HeldLock)]) == 1
    assert len([outcome for outcome in taken if isinstance(outcome, LockHeld)]) == 9


async def test_a_turn_whose_reply_was_lost_is_recognised(server):
    server.faults.lose, server.faults.only = 1.0, lambda method, path: path.endswith("/git/refs")
    register = opened(server)
    turn = await SeriesAssignmentLock(register).acquire(SERIES)
    turn.check()
    await register.close()


async def test_a_turn_is_given_back_although_the_first_tries_get_lost(server):
    register = opened(server)
    turns = SeriesAssignmentLock(register)
    turn = await turns.acquire(SERIES)
    await register._query_repository("")  # so that only the swap itself is asked of GraphQL
    left = [2]

    def twice(method: str, path: str) -> bool:
        left[0] -= path == "/graphql"
        return path == "/graphql" and left[0] >= 0

    server.faults = Faults(drop=1.0, only=twice)
    await turns.release(turn)
    assert left[0] < 0
    await turns.acquire(SERIES)
    await register.close()


def held(server: GitHubServer, **document: object) -> None:
    text = json.dumps({"series": SERIES, **document})
    server.call(lambda world: world.write_document(REF, text, STATE_FILE))


async def can_take(server: GitHubServer) -> bool:
    register = opened(server)
    try:
        await SeriesAssignmentLock(register).acquire(SERIES)
    except LockHeld:
        return False
    finally:
        await register.close()
    return True


def test_the_turn_of_one_who_died_runs_out_by_the_clock_of_github(server):
    held(server, holder="the dead", until=time.time() + 80)
    assert not asyncio.run(can_take(server))
    held(server, holder="the dead", until=time.time() - 1000)
    assert asyncio.run(can_take(server))


def test_a_turn_that_nobody_of_ours_wrote_lasts_as_long_as_one_from_its_commit(server):
    server.world.clock = datetime.now(UTC)
    for text in ("{broken", json.dumps({"holder": "x", "until": time.time() + 1e9}), '{"holder": 7, "until": 1}'):
        server.call(lambda world, text=text: world.write_document(REF, text, STATE_FILE))
        assert not asyncio.run(can_take(server))
    server.world.clock = datetime.fromtimestamp(time.time() - DURATION - 60, UTC)
    server.call(lambda world: world.write_document(REF, "{broken still", STATE_FILE))
    assert asyncio.run(can_take(server))


def test_a_lock_dated_to_the_future_does_not_block_the_series_until_then(server):
    server.world.clock = datetime(2099, 1, 1, tzinfo=UTC)
    server.call(lambda world: world.write_document(REF, "rubbish", STATE_FILE))
    server.world.clock = datetime.now(UTC)
    assert asyncio.run(can_take(server))


async def test_who_was_held_up_for_too_long_sends_nothing_more(server):
    now = [0.0]
    register = opened(server)
    service = service_of(register)
    service.lock = SeriesAssignmentLock(register, clock=lambda: now[0])
    acquire = service.lock.acquire

    async def slow(name: str) -> HeldLock:
        turn = await acquire(name)
        now[0] = DURATION - 20.0
        return turn

    service.lock.acquire = slow  # type: ignore[method-assign]
    [report] = (await service.sync()).series
    assert (report.status, report.assigned) == ("unavailable", False)
    assert "took too long" in (report.problem or "")
    await register.close()
    assert assigned(server) == []
    assert not [path for _, path, _ in server.log if path.endswith("/assignees")]


def test_the_margins_leave_time_to_work_and_time_to_arrive():
    assert assignment.TIMEOUT + assignment.MARGIN < DURATION / 2
    turn = HeldLock(SERIES, "", 100.0, lambda: 100.0 - assignment.TIMEOUT - assignment.MARGIN - 1)
    turn.check()
    late = HeldLock(SERIES, "", 100.0, lambda: 100.0 - assignment.TIMEOUT - assignment.MARGIN + 1)
    with pytest.raises(LockExpired):
        late.check()


def test_who_does_not_get_the_turn_is_told_that_what_was_decided_stands(server):
    held(server, holder="another", until=time.time() + 60)
    report = sync(server, view=False, lock_deadline=0.05)
    assert (report.status, report.changed, report.state.active) == ("contended", True, 1)
    assert "the state is up to date" in (report.problem or "")
    assert "nothing was written" not in (report.problem or "")


def blocked(server: GitHubServer, *names: str) -> None:
    """One who died has the turn of these series."""
    for name in names:
        text = json.dumps({"series": name, "holder": "the dead", "until": time.time() + 80})
        server.call(
            lambda world, name=name, text=text: world.write_document(f"refs/asterism/turns/{name}", text, STATE_FILE)
        )


async def waiting(server: GitHubServer, **settings: Any) -> tuple[SyncReport, float]:
    """A sync, and how long it waited by a clock that runs while it waits, and a second with each reading."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    register = opened(server)
    settings = {"by": "cron", "retry": RetryOptions(tries=20), **settings}
    service = SyncService(register, SyncSettings("robot", **settings), sleep=sleep, clock=clock)
    report = await service.sync()
    await register.close()
    return report, now[0]


@pytest.mark.parametrize(("deadline", "lock_deadline"), [(60.0, 60.0), (60.0, 1e9), (None, 60.0)])
def test_the_deadline_is_one_for_all_series_and_their_views(server, deadline, lock_deadline):
    """Each of them would wait as long, for its turn to assign and again for the one to make a view."""
    names = [f"OPS-{number}" for number in range(5)]
    for name in names:
        server.call(lambda world, name=name: world.add_issue(f"{name}-1: tidy"))
    blocked(server, *names)
    report, waited = asyncio.run(waiting(server, deadline=deadline, lock_deadline=lock_deadline))
    statuses = {series_report.name: series_report.status for series_report in report.series}
    assert statuses["OPS-0"] == "contended"
    assert "in step" not in {statuses[name] for name in names}
    assert waited < 60.0 + 5.0 + 10.0 * len(statuses)  # a pause that began before the end, and what the looks take


async def test_who_is_not_to_wait_for_a_turn_goes_on_to_the_next_series_at_once(server):
    server.call(lambda world: world.add_issue("OPS-7-1: tidy"))
    blocked(server, "OPS-7")
    register = opened(server)
    service = service_of(register, lock_deadline=0.0)

    async def never(seconds: float) -> None:
        pytest.fail("it waited")

    service.sleep = never
    report = await service.sync()
    await register.close()
    assert {series_report.name: series_report.status for series_report in report.series} == {
        "OPS-7": "contended",
        SERIES: "in step",
    }
    assert "this run did not wait" in (report.series[0].problem or "")
    assert (assigned(server), assigned(server, "OPS-7")) == ([1], [])


async def test_a_read_that_hangs_ends_at_the_deadline(server):
    """Without a clock to go by: it would hang for as long as the connection is allowed to, four times over."""
    gate = server.hold("GET", "/repos/acme/rocket/issues")
    register = opened(server, deadline=0.2)
    with pytest.raises(RegisterUnavailable, match=r"within the deadline of 0\.2 s"):
        await service_of(register, deadline=0.2).sync()
    await register.close()
    gate.open()


def test_a_turn_runs_out_while_the_machine_sleeps(monkeypatch):
    """The clock that stops meanwhile would let an assignment go out hours after the turn was another's."""
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", -7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {-7: 5000.0}[clock])
    assert assignment.suspend_aware_clock() == 5000.0
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    assert assignment.suspend_aware_clock() == 7.0


async def test_an_active_issue_that_is_closed_while_one_waits_for_the_turn_is_not_assigned(server):
    gate = server.hold("GET", f"/git/matching-refs/asterism/turns/{SERIES}")
    slow = asyncio.create_task(synced(server))
    await gate.reached_by(slow)
    await asyncio.to_thread(merged, server, 1)
    gate.open()
    [report] = (await slow).series
    assert report.state.active == 2
    assert assigned(server) == [2]
    assert ("assign", 1, "robot") not in server.world.assigned_log
    assert server.world.doubles == []


# -- the other assignees ----------------------------------------------------------------------------------------------


def people(server: GitHubServer, number: int) -> set[str]:
    return {assignee.login for assignee in server.call(lambda world: world.issue(number)).assignees}


def before_the_list(server: GitHubServer, happens: Callable[[], None]) -> None:
    """``happens`` once, after the assignees were read and before the whole list is replaced."""
    answer = server.routes.answer
    left = [happens]

    def answered(method: str, path: str, query: Any, headers: Any, body: bytes) -> Any:
        if path == "/graphql" and b"replaceActorsForAssignable(" in body and left:
            left.pop()()
        return answer(method, path, query, headers, body)

    server.routes.answer = answered


def test_who_is_assigned_while_the_bot_is_stays_assigned(server):
    server.call(lambda world: world.assign(1, "grace", by_hand=True))
    before_the_list(server, lambda: server.world.assign(1, "ada", by_hand=True))
    report = sync(server, assignee=BOT)
    assert (report.status, people(server, 1)) == ("in step", {"grace", "ada", BOT})


def test_who_is_assigned_while_the_bot_is_taken_away_stays_assigned(server):
    sync(server, assignee=BOT)
    server.call(lambda world: world.assign(3, BOT, by_hand=True))
    before_the_list(server, lambda: server.world.assign(3, "ada", by_hand=True))
    report = sync(server, assignee=BOT)
    assert (report.repaired, people(server, 3)) == ([3], {"ada"})


def test_who_leaves_while_the_bot_is_assigned_is_not_brought_back(server):
    """The list that is put in place has them, and so they are there until they leave again; whom people take away
    later is not ours to assign."""
    server.call(lambda world: world.assign(2, "ada", by_hand=True))
    server.call(lambda world: world.unassign(2, "ada", by="grace"))
    before_the_list(server, lambda: (server.world.assign(1, "ada"), server.world.unassign(1, "ada", by="grace")))
    sync(server, assignee=BOT)
    assert people(server, 1) == {BOT}


@pytest.mark.parametrize("times", [1, MAX_ATTEMPTS], ids=["once", "each time"])
def test_who_was_dropped_by_a_list_whose_reply_got_lost_is_brought_back_too(server, times):
    exchange = server.exchange

    async def exchanged(method: str, target: str, headers: dict[str, str], body: bytes) -> Any:
        answer = await exchange(method, target, headers, body)
        if b"replaceActorsForAssignable(" in body and server.counted["replies lost"] < times:
            server.counted["replies lost"] += 1
            raise Aborted
        return answer

    server.exchange = exchanged
    before_the_list(server, lambda: server.world.assign(1, "ada", by_hand=True))
    report = sync(server, assignee=BOT)
    assert (report.status, people(server, 1)) == ("in step", {"ada", BOT})
    assert server.counted["replies lost"] == times


def test_a_bot_that_is_the_last_of_many_who_can_be_assigned_is_found():
    world = world_of()
    for number in range(230):
        world.add_person(f"person-{number}")
    world.add_person("release-robot", "Bot")
    with GitHubServer(world) as server:
        report = sync(server, assignee="release-robot[bot]")
        assert (report.status, people(server, 1)) == ("in step", {"release-robot"})
        assert sync(server, assignee="nobody-at-all[bot]", view=False).status == "unassignable"
