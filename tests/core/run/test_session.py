"""A device in one of its lives: what room it has, when it counts as gone, and how it stands in an election."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asterism.core.record import replace
from asterism.core.run.circuit_breaker import mass_loss_hold_until
from asterism.core.run.placement import Placer, candidate_of
from asterism.core.run.run import Owner
from asterism.core.run.session import ABROAD, ENDED, OPEN, PATH, REPLACED, VIA, Session, election_ranks

unhurried = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def session(**options: Any) -> Session:
    return Session(**{"id": "kitchen-1", "device": "kitchen", "joined_at": 0.0, **options})


def test_work_is_granted_to_a_life_of_a_device() -> None:
    assert session().owner == Owner("kitchen", "kitchen-1")


# -- room --------------------------------------------------------------------------------------------------------------


def test_a_device_has_room_for_its_slots_and_its_backlog() -> None:
    assert [session(slots=2, backlog=3, used=used).room for used in (0, 2, 4, 5, 9)] == [5, 3, 1, 0, 0]
    assert [session(slots=2, backlog=3, used=used).idle for used in (0, 1, 2, 4, 9)] == [2, 1, 0, 0, 0]


@pytest.mark.parametrize("options", [{"draining": True}, {"state": REPLACED}, {"state": ENDED}, {"slots": 0}])
def test_a_device_that_takes_no_work_has_no_room(options: dict[str, Any]) -> None:
    closed = replace(session(slots=2, backlog=3), **options)
    assert (closed.room, closed.idle) == (0, 0)


@unhurried
@given(
    st.integers(0, 9), st.integers(0, 9), st.integers(0, 30), st.booleans(), st.sampled_from([OPEN, REPLACED, ENDED])
)
def test_what_could_begin_at_once_is_part_of_the_room(
    slots: int, backlog: int, used: int, draining: bool, state: str
) -> None:
    device = session(slots=slots, backlog=backlog, used=used, draining=draining, state=state)
    assert 0 <= device.idle <= device.room <= slots + backlog


# -- whether it is there -----------------------------------------------------------------------------------------------


def test_a_device_is_reachable_for_its_timeout_after_a_heartbeat() -> None:
    device = session(beat_at=100.0, timeout=90.0)
    assert device.reachable(190.0)
    assert not device.reachable(190.5)


def test_a_clock_that_jumps_back_makes_nobody_unreachable() -> None:
    assert session(beat_at=100.0).reachable(5.0)


@pytest.mark.parametrize("state", [REPLACED, ENDED])
def test_a_life_that_is_over_is_not_reachable(state: str) -> None:
    assert not session(beat_at=100.0, state=state).reachable(100.0)


def test_every_change_has_a_revision() -> None:
    device = session()
    drained = device.changed(draining=True)
    assert (drained.draining, drained.revision, device.revision, device.draining) == (True, 2, 1, False)


# -- as others see it --------------------------------------------------------------------------------------------------


def test_the_profile_shows_what_the_device_says_and_what_the_store_knows() -> None:
    device = session(
        can=frozenset({"gpu", "disk"}), slots=4, used=1, host="k.lan", profile={"os": "linux", "battery": 0.5}
    )
    assert device.expression_names(0.75) == {
        "name": "kitchen",
        "host": "k.lan",
        "can": ["disk", "gpu"],
        "os": "linux",
        "cpu": 0.0,
        "battery": 0.5,
        "plugged": True,
        "labels": {},
        "slots": 4,
        "used": 1,
        "load": 0.25,
        "quality": 1.0,
        "rank": 0.75,
    }


def test_what_a_device_says_does_not_hide_what_the_store_knows() -> None:
    lies = {"name": "laptop", "host": "x", "can": ["gpu"], "slots": 99, "used": 0, "load": 0.0, "rank": 1.0}
    honest = session(used=1, host="k.lan")
    assert session(used=1, host="k.lan", profile=lies).expression_names(0.5) == honest.expression_names(0.5)


def test_what_else_a_device_says_is_shown_too() -> None:
    assert session(profile={"floor": 2}).expression_names()["floor"] == 2


@pytest.mark.parametrize(("slots", "used", "load"), [(2, 0, 0.0), (2, 1, 0.5), (2, 5, 1.0), (0, 0, 1.0)])
def test_the_load_is_the_share_of_slots_in_use(slots: int, used: int, load: float) -> None:
    assert session(slots=slots, used=used).expression_names()["load"] == load


@pytest.mark.parametrize(
    ("told", "quality"),
    [
        (0.25, 0.25),
        (1, 1.0),
        (0, 0.0),
        (7, 1.0),
        (-3, 0.0),
        (float("nan"), 0.0),
        (10**400, 1.0),
        ("good", 0.0),
        (None, 0.0),
    ],
)
def test_whatever_a_profile_says_the_quality_is_a_share(told: Any, quality: float) -> None:
    device = session(profile={"quality": told})
    assert device.quality == quality
    assert type(device.quality) is float
    assert device.expression_names()["quality"] == candidate_of(device, 0.0, 0.0).connection == quality


def test_a_device_that_has_not_said_how_it_is_connected_is_taken_to_be_well() -> None:
    assert session().quality == 1.0


def test_selection_sees_what_it_needs() -> None:
    device = session(can=frozenset({"gpu"}), slots=4, used=3, beat_at=100.0, profile={"quality": 0.5})
    seen = candidate_of(device, 120.0, 0.75, 9)
    assert (seen.id, seen.can, seen.slots, seen.running) == ("kitchen", frozenset({"gpu"}), 4, 3)
    assert (seen.connection, seen.rank, seen.reachable, seen.last_given) == (0.5, 0.75, True, 9)
    assert not candidate_of(device, 500.0, 0.0).reachable


def test_the_load_of_a_device_without_slots_can_be_asked_for() -> None:
    assert candidate_of(session(slots=0), 0.0, 0.0).load == 0.0


# -- the order of election ---------------------------------------------------------------------------------------------


def join(name: str, at: float, life: int = 1, **options: Any) -> Session:
    return Session(f"{name}-{life}", name, at, **options)


def test_ranks_fall_in_the_order_in_which_devices_joined() -> None:
    there = [join("b", 2.0), join("a", 1.0), join("d", 3.0), join("c", 3.0)]
    assert election_ranks(there, None) == {"a": 1.0, "b": 0.75, "c": 0.5, "d": 0.25}


def test_the_coordinator_has_the_highest_rank_whenever_it_joined() -> None:
    assert election_ranks([join("a", 1.0), join("b", 2.0)], "b") == {"b": 1.0, "a": 0.5}


def test_a_coordinator_that_has_left_changes_nothing() -> None:
    assert election_ranks([join("a", 1.0), join("b", 2.0)], "z") == {"a": 1.0, "b": 0.5}


def test_a_device_in_two_lives_counts_once_by_the_later_one() -> None:
    there = [join("a", 5.0, life=2), join("b", 2.0), join("a", 1.0, state=REPLACED)]
    assert election_ranks(there, None) == {"b": 1.0, "a": 0.5}
    assert election_ranks(there, "a") == {"a": 1.0, "b": 0.5}


def test_nobody_has_no_rank() -> None:
    assert election_ranks([], "a") == {}


@unhurried
@given(
    st.lists(st.builds(join, st.sampled_from("abcde"), st.integers(0, 5).map(float), st.integers(1, 3))),
    st.sampled_from([None, *"abcde"]),
)
def test_every_device_has_a_rank_of_its_own_and_the_first_has_one(
    there: list[Session], coordinator: str | None
) -> None:
    ranks = election_ranks(there, coordinator)
    assert ranks.keys() == {member.device for member in there}
    number = len(ranks)
    assert sorted(ranks.values(), reverse=True) == pytest.approx([1.0 - place / number for place in range(number)])
    assert coordinator not in ranks or ranks[coordinator] == 1.0
    assert election_ranks(there[::-1], coordinator) == ranks


def test_a_device_without_a_battery_counts_as_one_that_is_full() -> None:
    assert Session("s", "kitchen", 0.0, profile={"battery": None, "cpu": 0.5}).expression_names()["battery"] == 1.0


def test_a_device_of_a_peer_may_be_given_work_while_it_is_heard_of() -> None:
    abroad = Session("s", "kitchen", 0.0, slots=2, backlog=1, used=1, state=ABROAD, beat_at=100.0, timeout=90.0)
    assert (abroad.room, abroad.idle) == (2, 1)
    assert abroad.reachable(190.0)
    assert not abroad.reachable(190.1)
    assert replace(abroad, draining=True).room == 0


def test_a_device_of_a_peer_has_no_rank_here_and_counts_for_no_brake() -> None:
    here = Session("l", "laptop", 0.0, beat_at=0.0)
    abroad = [Session(f"a{number}", f"a{number}", 0.0, state=ABROAD, beat_at=0.0) for number in range(5)]
    outlook = Placer([here, *abroad], 10.0, lambda *_: True)
    assert outlook.ranks == {"laptop": 1.0, **dict.fromkeys((f"a{number}" for number in range(5)), 0.0)}
    assert mass_loss_hold_until([replace(here, beat_at=100.0), *abroad], 100.0, 90.0) is None


def test_a_session_abroad_names_the_peer_that_announced_it() -> None:
    assert session(host=f"{VIA}attic", state=ABROAD).peer == "attic"
    assert session(host=f"{VIA}attic", state=ENDED).peer == "attic"
    assert session(host="kitchen.lan").peer is None


def test_the_process_of_a_plan_that_has_left_does_not_come_back() -> None:
    process = Session("s", "nightly@den", 1.0, profile={"plan": "nightly"})
    assert not process.is_past_process
    assert process.changed(state=ENDED).is_past_process
    assert not Session("s", "laptop", 1.0, state=ENDED).is_past_process
    assert "plan" not in process.expression_names()


def test_a_relayed_device_has_a_path_which_no_device_reports() -> None:
    relayed = session(host=f"{VIA}hall", state=ABROAD, profile={PATH: ["garage", "hall"], "os": "linux"})
    assert relayed.path == ("garage", "hall")
    assert PATH not in relayed.expression_names()
    assert session(profile={PATH: ["garage"]}).path == ()


def test_which_timeout_counts_for_its_runs() -> None:
    assert session(timeout=6.0).loses_after(90.0) == 6.0
    assert session(timeout=90.0).loses_after(300.0) == 300.0  # it names none
    process = Session("s", "nightly@den", 1.0, slots=0, timeout=15.0, profile={"plan": "nightly"})
    assert process.loses_after(90.0) == 90.0
    assert process.only_runs_plan
