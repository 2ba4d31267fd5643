"""Which of several devices gets a task."""

from __future__ import annotations

import pytest

from asterism.core.plan.task import ANY_DEVICE, Lane
from asterism.core.run.placement import STRATEGIES, Candidate, Weights, capable, score

GPU: Lane = (None, frozenset({"gpu"}))


def test_load_is_the_share_of_the_slots_in_use() -> None:
    assert Candidate("a", slots=4, running=1).load == 0.25
    assert Candidate("a", slots=4, running=4).load == 1.0


def test_a_device_without_a_limit_grows_busier_for_ever_and_is_never_full() -> None:
    loads = [Candidate("a", running=running).load for running in (0, 1, 9)]
    assert loads == [0.0, 0.5, 0.9]
    assert Candidate("a", running=1000).free


def test_a_device_without_slots_is_full() -> None:
    assert not Candidate("a", slots=0).free


def test_a_device_is_free_when_it_is_reachable_and_has_a_slot() -> None:
    assert Candidate("a", slots=1).free
    assert not Candidate("a", slots=1, running=1).free
    assert not Candidate("a", reachable=False).free


@pytest.mark.parametrize(
    ("lane", "fits"),
    [
        (ANY_DEVICE, True),
        (("laptop", frozenset()), True),
        (("desktop", frozenset()), False),
        ((None, frozenset({"gpu"})), True),
        ((None, frozenset({"gpu", "disk"})), True),
        ((None, frozenset({"gpu", "camera"})), False),
        (("laptop", frozenset({"camera"})), False),
    ],
)
def test_a_device_is_capable_when_it_is_the_one_asked_for_and_can_do_all_that_is_needed(lane: Lane, fits: bool) -> None:
    assert capable(Candidate("laptop", can=frozenset({"gpu", "disk"})), lane) is fits


def test_the_score_weighs_load_connection_rank_and_capability() -> None:
    device = Candidate("a", can=frozenset({"gpu"}), slots=4, running=1, connection=0.5, rank=0.25)
    assert score(device, ANY_DEVICE) == 40 * 0.75 + 30 * 0.5 + 20 * 0.25
    assert score(device, GPU) == score(device, ANY_DEVICE) + 10
    assert score(device, GPU, Weights(load=0, connection=0, rank=0, capability=1)) == 1.0


def test_score_prefers_the_best_and_the_first_of_equals() -> None:
    busy, idle, twin = Candidate("busy", slots=2, running=1), Candidate("idle", slots=2), Candidate("twin", slots=2)
    assert STRATEGIES["score"]([busy, idle, twin], ANY_DEVICE) is idle


def test_round_robin_gives_to_who_was_given_work_longest_ago() -> None:
    devices = [Candidate("a", last_given=3), Candidate("b", last_given=1), Candidate("c", last_given=2)]
    assert STRATEGIES["round_robin"](devices, ANY_DEVICE).id == "b"


def test_capability_match_spares_the_device_that_can_do_more() -> None:
    allround = Candidate("allround", can=frozenset({"gpu", "camera"}))
    special = Candidate("special", can=frozenset({"gpu"}), slots=2, running=1)
    assert STRATEGIES["capability_match"]([allround, special], GPU) is special


def test_capability_match_takes_the_less_loaded_of_equals() -> None:
    busy, idle = Candidate("busy", slots=2, running=1), Candidate("idle", slots=2)
    assert STRATEGIES["capability_match"]([busy, idle], ANY_DEVICE) is idle


def test_load_balance_takes_the_least_loaded_and_of_equals_the_one_with_less_to_do() -> None:
    half, third = Candidate("half", slots=2, running=1), Candidate("third", slots=3, running=1)
    assert STRATEGIES["load_balance"]([half, third], ANY_DEVICE) is third
    small, large = Candidate("small", slots=2, running=1), Candidate("large", slots=4, running=2)
    assert STRATEGIES["load_balance"]([large, small], ANY_DEVICE) is small


def test_the_strategies_have_the_names_of_the_documentation() -> None:
    assert set(STRATEGIES) == {"score", "round_robin", "capability_match", "load_balance"}
