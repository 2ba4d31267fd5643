"""Which device gets a run: the filter, the score, and what narrows the choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.run import transitions
from asterism.core.run.placement import MAX_SCORES, Choice, Placer, Weights, unmet_reason
from asterism.core.run.run import Run
from asterism.core.run.session import ABROAD, OPEN, Session
from asterism.core.run.work import Workflow


def evaluate(text: str, names: Mapping[str, Any]) -> bool | str:
    """Enough of a language for these tests: a name that is true, ``broken``, or ``name=value``."""
    if text == "broken":
        return "'broken' could not be evaluated"
    name, _, value = text.partition("=")
    named: Any = names
    for part in name.split("."):
        named = named[part]
    return str(named) == value


def session(name: str, **options: Any) -> Session:
    joined = options.pop("joined_at", 0.0)
    return Session(f"s-{name}", name, joined, **{"slots": 2, "beat_at": 100.0, **options})


def outlook(*sessions: Session, **options: Any) -> Placer:
    return Placer(sessions, 100.0, evaluate, **options)


def flow(**options: Any) -> Workflow:
    return Workflow("work", shell="true", **options)


def run_of(workflow: Workflow, **options: Any) -> Run:
    return transitions.create("r", workflow, {}, by="me", now=1.0).changed(**options)


def chosen(view: Placer, workflow: Workflow, **options: Any) -> str | None:
    choice = view.choose(run_of(workflow, **options))
    return choice.owner.device if choice.owner is not None else None


def test_the_score_is_that_of_the_seed() -> None:
    view = outlook(
        session("a", used=1, can=frozenset({"gpu"}), profile={"quality": 0.5}), session("b"), coordinator="b"
    )
    choice = view.choose(run_of(flow(needs=frozenset({"gpu"}))))
    assert choice.scores == {"a": 40 * 0.5 + 30 * 0.5 + 20 * 0.5 + 10}
    assert choice.refused == {"b": "it lacks gpu"}
    assert view.choose(run_of(flow())).scores == {"a": 20 + 15 + 10, "b": 40 + 30 + 20}


def test_the_weights_can_be_chosen() -> None:
    sessions = [session("busy", used=1, profile={"quality": 1.0}), session("far", profile={"quality": 0.1})]
    assert chosen(outlook(*sessions), flow()) == "busy"
    assert chosen(outlook(*sessions, weights=Weights(load=100.0, connection=1.0)), flow()) == "far"


@pytest.mark.parametrize(
    ("strategy", "winner"),
    [("score", "near"), ("load_balance", "idle"), ("capability_match", "plain"), ("round_robin", "idle")],
)
def test_each_strategy_chooses_its_own_way(strategy: str, winner: str) -> None:
    sessions = [
        session("near", slots=4, used=1, can=frozenset({"gpu"}), joined_at=-1.0),
        session("idle", slots=4, can=frozenset({"gpu", "tape"}), profile={"quality": 0.0}),
        session("plain", slots=4, used=2, profile={"quality": 0.0}),
    ]
    view = outlook(*sessions, coordinator="near", last_assigned={"near": 2, "plain": 1})
    assert chosen(view, flow(strategy=strategy)) == winner


def test_round_robin_remembers_whom_it_gave_to() -> None:
    view = outlook(session("a"), session("b"))
    turns = []
    for _ in range(4):
        name = chosen(view, flow(strategy="round_robin"))
        assert name is not None
        view.record_assignment(name)
        turns.append(name)
    assert turns == ["a", "b", "a", "b"]
    assert chosen(view, flow()) is None, "all their slots are given out"
    view.record_assignment("a stranger")  # it has left meanwhile
    view.release("b")
    assert chosen(view, flow()) == "b", "its assignment was not written"


def test_a_refusal_by_the_rule_of_a_device_is_told_from_other_reasons() -> None:
    no = session("a", accepts="run.priority=7")
    view = outlook(no, session("b"), session("c", accepts="run.priority=7", profile={"resting": "it sleeps"}))
    why = "its own rule: 'run.priority=7' does not hold"
    assert view.rule_refusal(no, run_of(flow())) == why
    assert view.rule_refusal(no, run_of(flow(), priority=7)) is None
    assert view.rule_refusal(no, run_of(flow(needs=frozenset({"gpu"})))) is None, "it could not anyway"
    assert view.rule_refusal(view.sessions["b"], run_of(flow())) is None, "it has no rule"
    assert view.rule_refusal(view.sessions["c"], run_of(flow())) is None, "it is asked when it is awake"


@pytest.mark.parametrize(
    ("options", "run", "workflow", "why"),
    [
        ({}, {"pinned": "attic"}, {}, "the run is pinned to attic"),
        ({}, {}, {"needs": frozenset({"gpu"})}, "it lacks gpu"),
        ({"draining": True}, {}, {}, "it is draining"),
        ({"slots": 0}, {}, {}, "it has no slots"),
        ({}, {"avoid": ("kitchen",)}, {}, "it was already tried in this round"),
        ({}, {"avoid": ("kitchen",), "declined": {"kitchen": "on battery"}}, {}, "on battery"),
        ({}, {}, {"requires": "os=mac"}, "'os=mac' does not hold"),
        ({}, {}, {"requires": "broken"}, "'broken' could not be evaluated"),
        ({"accepts": "run.priority=7"}, {}, {}, "its own rule: 'run.priority=7' does not hold"),
        ({"accepts": "broken"}, {}, {}, "its own rule: 'broken' could not be evaluated"),
        ({"profile": {"resting": "'x' holds"}}, {}, {}, "resting: it would hand this back because 'x' holds"),
        ({"profile": {"resting": "'x' holds"}}, {}, {"needs": frozenset({"gpu"})}, "it lacks gpu"),
    ],
)
def test_a_device_that_is_no_candidate_is_told_why(
    options: dict[str, Any], run: dict[str, Any], workflow: dict[str, Any], why: str
) -> None:
    work = flow(**workflow)
    choice = outlook(session("kitchen", **options)).choose(run_of(work, **run))
    assert (choice.owner, choice.refused, choice.scores) == (None, {"kitchen": why}, {})


def test_both_sides_must_agree() -> None:
    willing = session("kitchen", accepts="run.workflow=work", profile={"os": "linux"})
    assert chosen(outlook(willing), flow(requires="os=linux")) == "kitchen"
    assert unmet_reason("os=linux", willing.expression_names(), evaluate) is None


def test_who_is_silent_or_has_left_is_not_looked_at() -> None:
    gone = [session("silent", beat_at=0.0, timeout=90.0), session("ended", state="ended")]
    assert outlook(*gone).choose(run_of(flow())) == Choice(None, {}, {}, ())


@pytest.mark.parametrize(("state", "within"), [(ABROAD, 3600.0), (OPEN, None)])
def test_a_device_of_a_peer_has_until_the_stores_meet(state: str, within: float | None) -> None:
    placer = outlook(session("there", state=state), peer_timeout=3600.0)
    assert placer.choose(run_of(flow())).within == within


def test_the_busy_are_candidates_without_room() -> None:
    choice = outlook(session("busy", used=2)).choose(run_of(flow()))
    assert (choice.owner, choice.busy) == (None, ("busy",))
    assert choice.scores == {"busy": 50.0}


def test_a_preference_narrows_the_choice_if_it_leaves_anyone() -> None:
    sessions = [session("good", used=1, profile={"os": "mac"}), session("better", profile={"os": "linux"})]
    assert chosen(outlook(*sessions), flow()) == "better"
    assert chosen(outlook(*sessions), flow(prefers="os=mac")) == "good"
    assert chosen(outlook(*sessions), flow(prefers="os=plan9")) == "better"


def test_orchestration_goes_to_the_coordinator_if_it_is_able() -> None:
    sessions = [session("quick"), session("elected", used=1, profile={"quality": 0.0})]
    assert chosen(outlook(*sessions, coordinator="elected"), flow(orchestration=True)) == "elected"
    assert chosen(outlook(*sessions, coordinator="elected"), flow()) == "quick"
    assert chosen(outlook(*sessions, coordinator="elsewhere"), flow(orchestration=True)) == "quick"


CAPABILITIES = st.frozensets(st.sampled_from(["gpu", "tape"]))
SESSIONS = st.lists(
    st.tuples(CAPABILITIES, st.integers(1, 3), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    max_size=5,
)
FLOWS = st.builds(
    flow,
    needs=CAPABILITIES,
    wants=CAPABILITIES,
    strategy=st.sampled_from(["score", "round_robin", "capability_match", "load_balance"]),
    requires=st.sampled_from([None, "quality=1.0"]),
    prefers=st.sampled_from([None, "slots=2"]),
)


@given(SESSIONS, st.lists(FLOWS, max_size=8))
def test_what_was_found_out_for_one_run_is_never_wrong_for_the_next(made: list[Any], flows: list[Workflow]) -> None:
    """Compared with one who looks at everything anew."""
    sessions = [
        session(f"d{number}", can=can, slots=slots, used=used, profile={"quality": quality})
        for number, (can, slots, used, quality) in enumerate(made)
    ]
    view = outlook(*sessions, coordinator="d0")
    given_out: Counter[str] = Counter()
    for workflow in flows:
        anew = outlook(*sessions, coordinator="d0", last_assigned=view.last_assigned)
        anew._used = {device.device: device.used + given_out[device.device] for device in sessions}
        choice = view.choose(run_of(workflow))
        assert choice == anew.choose(run_of(workflow))
        if choice.owner is not None:
            view.record_assignment(choice.owner.device)
            given_out[choice.owner.device] += 1


def test_a_run_waits_for_a_device_that_only_rest_keeps_from_it() -> None:
    asleep, other = session("asleep", profile={"resting": "'x' holds"}), session("other", can=frozenset({"gpu"}))
    view = outlook(asleep, other)
    choice = view.choose(run_of(flow()))
    assert (choice.owner, choice.resting, set(choice.scores)) == (other.owner, ("asleep",), {"other"})
    assert (asleep.idle, asleep.room, other.idle) == (0, 0, 2)
    assert view.waits_for(asleep, run_of(flow()))
    assert not view.waits_for(other, run_of(flow()))
    picky = flow(needs={"gpu"})
    assert view.choose(run_of(picky)).resting == ()
    assert not view.waits_for(asleep, run_of(picky))


@pytest.mark.parametrize("told", [None, "", 7, True, {"x": 1}])
def test_a_device_that_says_nothing_sensible_about_rest_is_taken_to_be_awake(told: object) -> None:
    device = session("a", profile={"resting": told})
    assert device.resting is None
    assert "resting" not in device.expression_names()


ANY_CAPABILITIES = st.frozensets(st.sampled_from(["gpu", "tape", "camera", "disk"]))


@given(st.lists(ANY_CAPABILITIES, min_size=2, max_size=5), ANY_CAPABILITIES, ANY_CAPABILITIES)
def test_what_is_wanted_tells_candidates_apart_by_the_share_they_have(
    devices: list[frozenset[str]], needs: frozenset[str], wants: frozenset[str]
) -> None:
    """All else equal, ten times that share lies between them, and the greatest share wins. It excludes no device."""
    sessions = [session(f"d{number}", can=can) for number, can in enumerate(devices)]
    work = flow(needs=needs, wants=wants)
    choice = outlook(*sessions, weights=Weights(rank=0.0)).choose(run_of(work))
    able = {device.device: device.can for device in sessions if needs <= device.can}
    assert choice.scores.keys() == able.keys()
    if wants:
        shares = {name: len(wants & can) / len(wants) for name, can in able.items()}
        assert choice.scores == {name: pytest.approx(70 + 10 * share, abs=0.01) for name, share in shares.items()}
        assert choice.owner is None or shares[choice.owner.device] == max(shares.values())
    else:
        assert len(set(choice.scores.values())) <= 1, "a requirement gives no device a higher score"


@given(SESSIONS, FLOWS, st.frozensets(st.sampled_from(["d0", "d1", "d2", "d9"])))
def test_devices_near_the_creator_go_first_and_nothing_else_changes(
    made: list[Any], workflow: Workflow, near: frozenset[str]
) -> None:
    """No filter, objection or preference of the workflow is overridden, and scores are what they are."""
    sessions = [
        session(f"d{number}", can=can, slots=slots, used=used, profile={"quality": quality})
        for number, (can, slots, used, quality) in enumerate(made)
    ]
    view, run = outlook(*sessions), run_of(workflow)
    anyway, choice = view.choose(run), view.choose(run, near=near)
    assert choice[1:] == anyway[1:]
    assert (choice.owner is None) == (anyway.owner is None)
    free = [device for device in sessions if device.device in anyway.scores and device.used < device.slots]
    liked = [device for device in free if workflow.prefers is None or device.slots == 2] or free
    local = [device for device in liked if device.device in near]
    if choice.owner is not None:
        assert choice.owner.device in {device.device for device in local or liked}
        assert local or choice.owner == anyway.owner


def test_the_most_specialised_device_may_have_what_is_wanted() -> None:
    sessions = [session("plain"), session("wanted", can=frozenset({"gpu"})), session("more", can=frozenset("gx"))]
    assert chosen(outlook(*sessions), flow(strategy="capability_match", wants={"gpu"})) == "wanted"
    assert chosen(outlook(*sessions), flow(strategy="capability_match")) == "plain"


def test_the_best_scores_are_kept_with_the_assignment() -> None:
    few = outlook(session("a"), session("b", used=1)).choose(run_of(flow()))
    assert set(few.scores) == {"a", "b"}
    many = [session(f"d{number}", profile={"quality": number / 200}) for number in range(MAX_SCORES + 20)]
    scores = outlook(*many).choose(run_of(flow())).scores
    assert len(scores) == MAX_SCORES
    assert min(scores.values()) >= 40.0


def test_the_choice_can_be_among_devices_of_peers_alone() -> None:
    here, there = session("here", used=0), session("there", used=1, state=ABROAD)
    choice = outlook(here, there).choose(run_of(flow()), state=ABROAD)
    assert choice.owner == there.owner
    assert set(choice.scores) == {"here", "there"}
    assert outlook(here).choose(run_of(flow()), state=ABROAD).owner is None


def test_a_workflows_rule_is_evaluated_once_for_each_device_and_a_devices_own_for_each_run() -> None:
    """A costly rule of one workflow is not paid for with each run that waits."""
    asked: Counter[str] = Counter()

    def counting(text: str, names: Mapping[str, Any]) -> bool | str:
        asked[text] += 1
        return evaluate(text, names)

    view = Placer([session("a", accepts="run.priority=0"), session("b")], 100.0, counting)
    work = flow(requires="slots=2", prefers="name=b")
    for _ in range(5):
        assert chosen(view, work) == "b"
    assert asked == {"slots=2": 2, "run.priority=0": 5, "name=b": 2}


def test_a_device_that_rests_or_has_stopped_taking_work_is_no_candidate_and_is_waited_for() -> None:
    work = flow()
    well, resting, stopped = (
        session("well"),
        session("low", profile={"resting": "'battery < 0.2' holds"}),
        session("sick", profile={"suspended": "its disk is full", "os": "linux"}),
    )
    view, run = outlook(well, resting, stopped), run_of(work)
    assert view.refusal_reason(well, run) is None
    assert view.refusal_reason(resting, run) == "resting: it would hand this back because 'battery < 0.2' holds"
    assert view.refusal_reason(stopped, run) == "it has stopped taking work: its disk is full"
    assert [view.waits_for(device, run) for device in (well, resting, stopped)] == [False, True, True]
    assert not view.waits_for(stopped, run_of(work, pinned="well")), "it will never take this one"
    assert stopped.resumed().profile == {"os": "linux"}
    assert well.resumed() is well
