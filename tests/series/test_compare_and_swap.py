"""The update loop: conflicts, lost replies, deadlines, rate limits and repairs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asterism.core.series.machine import Live, Series, UnreadableSeries
from asterism.series.claims import Claim, Release, claim
from asterism.series.compare_and_swap import (
    DEFAULT_DEADLINE,
    RETRY_PAUSE,
    Contended,
    RetryOptions,
    Step,
    UpdateCounts,
    is_newer_version,
    update,
)
from asterism.series.register import OutcomeUnknown, RateLimited, RegisterBusy, RegisterUnavailable, RevisionConflict
from asterism.series.store_register import StoreRegister
from asterism.store.memory import MemoryStore
from asterism.store.store_errors import StoreBusy
from tests.laboratory.register_conformance import FaultyRegister

pytestmark = pytest.mark.virtual_time

NAME = "RFC-093"


class Clocked(StoreRegister):
    """Its clock is that of the loop."""

    def clock(self) -> float:
        return 1000.0 + asyncio.get_running_loop().time()


def retry_options(**limits: Any) -> RetryOptions:
    """Five tries, unless the test says otherwise."""
    options = limits or {"tries": 5, "deadline": None}
    return RetryOptions(chance=random.Random(7), clock=lambda: asyncio.get_running_loop().time(), **options)


@pytest.fixture
def register() -> Clocked:
    return Clocked(MemoryStore())


@pytest.fixture
def faulty(register: Clocked) -> FaultyRegister:
    return FaultyRegister(register)


def moved(times: int) -> list[RevisionConflict]:
    return [RevisionConflict(NAME)] * times


async def state(register: StoreRegister) -> Series:
    return Series.from_text((await register.read(NAME)).text, NAME)


# -- tries -------------------------------------------------------------------------------------------------------------


async def test_by_default_it_is_tried_until_the_deadline_however_often_others_are_faster(
    faulty: FaultyRegister, register: Clocked
) -> None:
    defaults = RetryOptions.limited(None, None)
    assert (defaults.tries, defaults.deadline, RetryOptions().deadline) == (0, DEFAULT_DEADLINE, DEFAULT_DEADLINE)
    faulty.swaps += moved(25)
    outcome = await claim(faulty, NAME, Claim(1), retry=retry_options(tries=0, deadline=DEFAULT_DEADLINE))
    assert (outcome.after.active, outcome.tries) == (1, 26)
    faulty.swaps += moved(10_000)
    before = asyncio.get_running_loop().time()
    with pytest.raises(Contended):
        await claim(faulty, NAME, Claim(2), retry=retry_options(tries=0, deadline=DEFAULT_DEADLINE))
    assert 0.8 * DEFAULT_DEADLINE < asyncio.get_running_loop().time() - before < DEFAULT_DEADLINE


@pytest.mark.parametrize(
    ("tries", "deadline", "limits"),
    [(None, 60.0, (0, 60.0)), (5, None, (5, None)), (0, None, (0, None)), (5, 60.0, (5, 60.0))],
)
def test_the_default_deadline_is_for_who_gives_no_limit(
    tries: int | None, deadline: float | None, limits: tuple[int, float | None]
) -> None:
    retry = RetryOptions.limited(tries, deadline)
    assert (retry.tries, retry.deadline) == limits


async def test_with_a_limit_of_tries_the_pauses_have_a_chance_length(faulty: FaultyRegister, register: Clocked) -> None:
    faulty.swaps += moved(100)
    counts = UpdateCounts()
    with pytest.raises(Contended, match="other writers won all 5 tries") as caught:
        await claim(faulty, NAME, Claim(1), retry=retry_options(), counts=counts)
    assert RETRY_PAUSE == (0.2, 0.8)
    assert caught.value.tries == 5
    assert 4 * 0.2 <= asyncio.get_running_loop().time() <= 4 * 0.8
    assert (counts.conflicts, counts.retries, counts.swaps) == (5, 4, 0)
    assert (await register.read(NAME)).token is None, "nothing was written"


async def test_without_a_limit_it_is_tried_until_it_is_done(faulty: FaultyRegister) -> None:
    faulty.swaps += moved(2000)
    outcome = await claim(faulty, NAME, Claim(1), retry=retry_options(tries=0, deadline=None))
    assert (outcome.tries, outcome.after.active, outcome.changed) == (2001, 1, True)


async def test_a_deadline_ends_it_and_is_never_overstepped(faulty: FaultyRegister) -> None:
    faulty.swaps += moved(10_000)
    with pytest.raises(Contended):
        await claim(faulty, NAME, Claim(1), retry=retry_options(tries=0, deadline=60.0))
    assert 40.0 < asyncio.get_running_loop().time() < 60.0


async def test_each_try_sees_the_newest_state(faulty: FaultyRegister, register: Clocked) -> None:
    async def another() -> None:
        number = (await state(register)).revision + 10
        await claim(register, NAME, Claim(number))

    faulty.swaps += [another, another, None]
    outcome = await claim(faulty, NAME, Claim(1), retry=retry_options())
    assert (outcome.after.active, outcome.after.queue, outcome.tries) == (10, (11, 1), 3)


async def test_what_changes_nothing_is_not_written(faulty: FaultyRegister) -> None:
    first = await claim(faulty, NAME, Claim(1))
    again = await claim(faulty, NAME, Claim(1))
    assert (again.changed, again.token, again.after) == (False, first.token, first.after)
    assert faulty.swapped == 1


@pytest.mark.parametrize("error", [RegisterBusy("busy"), RateLimited("slow down", 0.0)])
async def test_who_was_never_forestalled_is_not_told_that_others_were_first(
    faulty: FaultyRegister, error: Exception
) -> None:
    faulty.reads += [error] * 5
    with pytest.raises(type(error)) as caught:
        await claim(faulty, NAME, Claim(1), retry=retry_options())
    assert caught.value is error
    faulty.reads += [error] * 4
    faulty.swaps += moved(1)
    with pytest.raises(Contended, match="other writers won 1 of 5 tries"):
        await claim(faulty, NAME, Claim(1), retry=retry_options())


async def test_who_finds_it_busy_and_then_changed_by_others_each_time_is_told_that_they_were_first(
    register: Clocked,
) -> None:
    swap, others = register.swap, iter(range(2, 100))

    async def forestalled(name: str, expected: str | None, text: str, message: str) -> str:
        """Another has locked it just now, and comes to its end after we were told so."""
        later = Series.from_text((await register.read(name)).text, name).claim(next(others), 1.0)
        await swap(name, expected, later.to_text(), "another")
        raise RegisterBusy("locked")

    register.swap = forestalled  # type: ignore[method-assign]
    with pytest.raises(Contended, match="other writers won 4 of 5 tries"):
        await claim(register, NAME, Claim(1), retry=retry_options())


async def test_a_store_that_is_busy_is_tried_again(register: Clocked) -> None:
    store = register._store
    commit, read = store.commit, store.register
    calls: list[str] = []

    async def busy(what: str, right: Callable[..., Awaitable[Any]], *words: Any) -> Any:
        calls.append(what)
        if calls.count(what) == 1:
            raise StoreBusy("locked by another process for too long")
        return await right(*words)

    store.commit = lambda *words: busy("commit", commit, *words)  # type: ignore[method-assign, assignment]
    store.register = lambda *words: busy("read", read, *words)  # type: ignore[method-assign, assignment]
    outcome = await claim(register, NAME, Claim(1), retry=retry_options())
    assert (outcome.after.active, outcome.tries) == (1, 3)
    assert calls == ["read", "read", "commit", "read", "commit"]


# -- deadlines that come in the middle ---------------------------------------------------------------------------------


async def for_ever() -> None:
    await asyncio.sleep(1e6)


async def test_a_deadline_ends_a_reading_that_hangs(faulty: FaultyRegister) -> None:
    faulty.reads += [for_ever]
    with pytest.raises(RegisterUnavailable, match="did not answer within the deadline of 20 s"):
        await claim(faulty, NAME, Claim(1), retry=retry_options(deadline=20.0))
    assert asyncio.get_running_loop().time() == 20.0


async def test_who_was_writing_when_the_deadline_came_does_not_know(faulty: FaultyRegister) -> None:
    faulty.swaps += [for_ever]
    counts = UpdateCounts()
    with pytest.raises(OutcomeUnknown, match=r"unknown whether series RFC-093 was changed: .* deadline of 20 s"):
        await claim(faulty, NAME, Claim(1), retry=retry_options(deadline=20.0), counts=counts)
    assert (asyncio.get_running_loop().time(), counts.unsure) == (20.0, 1)


async def test_a_write_that_was_in_doubt_is_not_forgotten_when_the_deadline_comes(faulty: FaultyRegister) -> None:
    faulty.swaps += ["before"]
    faulty.reads += [None, for_ever]
    with pytest.raises(OutcomeUnknown, match="the reply was lost"):
        await claim(faulty, NAME, Claim(1), retry=retry_options(deadline=20.0))


async def test_a_try_that_the_deadline_would_cut_off_is_not_begun(faulty: FaultyRegister) -> None:
    async def slowly() -> None:
        await asyncio.sleep(8.0)

    faulty.reads += [slowly] * 9
    faulty.swaps += moved(9)
    with pytest.raises(Contended, match="won all 2 tries"):
        await claim(faulty, NAME, Claim(1), retry=retry_options(tries=0, deadline=20.0))


async def test_an_error_of_the_register_about_time_is_not_taken_for_the_deadline(faulty: FaultyRegister) -> None:
    faulty.reads += [TimeoutError("its own")]
    with pytest.raises(TimeoutError, match="its own"):
        await claim(faulty, NAME, Claim(1), retry=retry_options(deadline=20.0))


# -- lost replies ------------------------------------------------------------------------------------------------------


async def test_a_reply_that_was_lost_at_the_last_try_is_no_contention(faulty: FaultyRegister) -> None:
    """It may still take effect, so no error says that nothing was written."""
    faulty.swaps += [*moved(4), "before"]
    with pytest.raises(OutcomeUnknown):
        await claim(faulty, NAME, Claim(1), retry=retry_options())


async def test_a_reply_that_was_lost_before_the_register_went_away_is_not_forgotten(
    faulty: FaultyRegister, register: Clocked
) -> None:
    faulty.swaps += ["after"]
    faulty.reads += [None, RegisterUnavailable("out of reach")]
    with pytest.raises(OutcomeUnknown):
        await claim(faulty, NAME, Claim(1), retry=retry_options())
    assert (await state(register)).active == 1, "it did happen"


async def test_once_the_state_has_moved_on_a_lost_write_is_no_doubt_any_more(
    faulty: FaultyRegister, register: Clocked
) -> None:
    async def another() -> None:
        await claim(register, NAME, Claim(9))

    faulty.reads += [None, another]
    faulty.swaps += ["before", *moved(4)]
    with pytest.raises(Contended):
        await claim(faulty, NAME, Claim(1), retry=retry_options())


async def test_a_reading_whose_reply_was_lost_is_no_doubt(faulty: FaultyRegister) -> None:
    faulty.reads += [OutcomeUnknown("the reply was lost")] * 5
    with pytest.raises(RegisterUnavailable, match="the reply was lost"):
        await claim(faulty, NAME, Claim(1), retry=retry_options())
    faulty.reads += [OutcomeUnknown("the reply was lost")]
    assert (await claim(faulty, NAME, Claim(1), retry=retry_options())).after.active == 1


async def test_a_register_that_is_out_of_reach_is_told_at_once(faulty: FaultyRegister) -> None:
    faulty.reads += [RegisterUnavailable("out of reach")]
    with pytest.raises(RegisterUnavailable, match="out of reach"):
        await claim(faulty, NAME, Claim(1), retry=retry_options())


async def test_a_release_whose_reply_was_lost_does_not_release_the_next_claim_of_the_same_issue(
    faulty: FaultyRegister, register: Clocked
) -> None:
    await claim(register, NAME, Claim(1, "ann"))

    async def claimed_anew() -> None:
        await claim(register, NAME, Claim(1, "bob"))

    faulty.swaps += ["after"]
    faulty.reads += [None, claimed_anew]
    step = Release(1)
    await update(faulty, NAME, step, step.message, retry=retry_options())
    series = await state(register)
    assert (series.active, series.by) == (1, "bob")


# -- rate limits -------------------------------------------------------------------------------------------------------


async def test_a_register_that_asks_for_patience_gets_it(faulty: FaultyRegister) -> None:
    faulty.reads += [RateLimited("too often", 30.0)]
    counts = UpdateCounts()
    await claim(faulty, NAME, Claim(1), retry=retry_options(), counts=counts)
    assert 30.0 < asyncio.get_running_loop().time() < 31.0
    assert counts.rate_limited == 1


@pytest.mark.parametrize(("deadline", "asked"), [(20.0, 30.0), (None, 3600.0)])
async def test_a_wait_beyond_the_deadline_or_all_reason_is_not_waited_for(
    faulty: FaultyRegister, deadline: float | None, asked: float
) -> None:
    faulty.reads += [RateLimited("too often", asked)]
    with pytest.raises(RateLimited):
        await claim(faulty, NAME, Claim(1), retry=retry_options(deadline=deadline))
    assert asyncio.get_running_loop().time() == 0.0


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_a_series_whose_holders_all_died_goes_on_by_itself(register: Clocked) -> None:
    """The first claims with a lease and dies; so does the second, while it waits. The third is up after two leases."""
    await claim(register, NAME, Claim(1, lease=60.0))
    await claim(register, NAME, Claim(2, lease=60.0))
    active = []
    for _ in range(13):
        active.append((await claim(register, NAME, Claim(3, lease=60.0))).after.active)
        await asyncio.sleep(10.0)
    assert active == [1] * 6 + [2] * 6 + [3]


async def test_a_lease_that_is_renewed_goes_on_and_one_that_is_not_ends(register: Clocked) -> None:
    await claim(register, NAME, Claim(1, lease=60.0))
    await claim(register, NAME, Claim(2))
    for _ in range(5):
        await asyncio.sleep(50.0)
        renewed = await claim(register, NAME, Claim(1, lease=60.0, renew=True))
        assert renewed.after.active == 1
    assert (await register.history(NAME, 1))[0].message == "renew #1"
    await asyncio.sleep(60.0)
    late = await claim(register, NAME, Claim(1, "ann", lease=60.0, renew=True))
    assert (late.after.active, late.after.queue, late.promoted, late.after.by) == (2, (1,), 2, "ann")


async def test_who_is_first_in_the_queue_takes_over_from_a_lease_that_has_run_out_with_its_own(
    register: Clocked,
) -> None:
    await claim(register, NAME, Claim(1, lease=60.0))
    await claim(register, NAME, Claim(2))
    await asyncio.sleep(61.0)
    wanted = Claim(2, "bob", lease=5.0)
    after = (await claim(register, NAME, wanted)).after
    assert (after.active, after.claim_id, after.by, after.lease_until) == (2, wanted.id, "bob", 1066.0)


def test_an_expired_lease_can_be_ended_by_any_caller() -> None:
    series = Series(NAME).claim(1, 10.0, lease=5.0).claim(2, 11.0)
    assert series.expire(14.0) is series
    after = series.expire(15.0).promote(15.0).as_one_change_of(series)
    assert (after.active, after.revision) == (2, series.revision + 1)


async def test_a_claim_gives_a_lease_to_who_is_active_without_one(register: Clocked) -> None:
    await claim(register, NAME, Claim(1))
    assert (await claim(register, NAME, Claim(1, lease=60.0))).after.lease_until == 1060.0
    assert not (await claim(register, NAME, Claim(1, lease=60.0))).changed
    assert [change.message for change in await register.history(NAME, 5)] == ["lease #1", "claim #1"]


# -- states that cannot be read ----------------------------------------------------------------------------------------


async def test_two_who_mend_at_once_mend_it_once(faulty: FaultyRegister, register: Clocked) -> None:
    await register.swap(NAME, None, "{", "by hand")
    live = [Live(5, 2), Live(4, 1)]

    async def another() -> None:
        await update(register, NAME, lambda series, now: series.rebuild(live, now), "theirs", repair=True)

    faulty.swaps += [another]
    outcome = await update(
        faulty, NAME, lambda series, now: series.rebuild(live, now), "ours", retry=retry_options(), repair=True
    )
    assert (outcome.changed, outcome.after.queue, outcome.tries) == (False, (4, 5), 2)
    assert [change.message for change in await register.history(NAME, 5)] == ["theirs", "by hand"]


@pytest.mark.parametrize("step", [lambda series, now: series, lambda series, now: series.rebuild([Live(1, 1)], now)])
async def test_what_is_mended_says_when(register: Clocked, step: Step) -> None:
    await register.swap(NAME, None, '{"active_issue": 1, "revision": 4}', "by hand")
    await asyncio.sleep(5.0)
    outcome = await update(register, NAME, step, "mend", retry=retry_options(), repair=True)
    assert (outcome.changed, outcome.after.updated_at, outcome.after.revision) == (True, 1005.0, 5)
    assert await state(register) == outcome.after


async def test_what_cannot_be_read_is_nobodys_to_change(faulty: FaultyRegister, register: Clocked) -> None:
    await register.swap(NAME, None, "{", "by hand")
    with pytest.raises(UnreadableSeries):
        await update(faulty, NAME, lambda series, now: series.promote(now), "promote", retry=retry_options())
    assert faulty.swapped == 0


async def test_the_history_says_that_a_lease_was_ended_and_who_came_by_that(register: Clocked) -> None:
    await claim(register, NAME, Claim(1, lease=10.0))
    await claim(register, NAME, Claim(2, lease=10.0))
    await asyncio.sleep(20.0)
    await claim(register, NAME, Claim(3, by="ann", lease=10.0))
    await asyncio.sleep(20.0)
    await claim(register, NAME, Claim(3, lease=10.0))
    await asyncio.sleep(20.0)
    await claim(register, NAME, Claim(3))
    said = [change.message for change in await register.history(NAME, 9)]
    assert said == [
        "end the lease of #3; claim #3",
        "end the lease of #2; claim #3",
        "end the lease of #1; promote #2; queue #3 by ann",
        "queue #2",
        "claim #1",
    ]


def test_a_later_version_is_told_from_rubbish():
    assert is_newer_version('{"version": 2}')
    for text in (None, "", "{", "[]", "7", '{"version": 1}', '{"version": "2"}', '{"version": true}', '{"version": 0}'):
        assert not is_newer_version(text)
