"""A record that came about as records do is well formed; one that says what cannot be is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from asterism.core.history import Entry
from asterism.core.run import transitions
from asterism.core.run.merge import differing_fields, merge_keeping, merge_records, outranks, own_result, own_story
from asterism.core.run.peer_record_validation import problems_in
from asterism.core.run.run import ASSIGNED, FAILED, REASSIGNING, Assignment, Progress, Run
from asterism.core.run.work import Workflow
from tests.core.run.merge_scenes import Peers, histories
from tests.core.run.run_scenes import KITCHEN

FLOW = Workflow("transcode", shell="true", version=1)


def waiting() -> Run:
    return transitions.create("r1", FLOW, {}, by="ann", now=1.0)


def going_on() -> Run:
    return transitions.take(waiting(), KITCHEN, 2.0, starts=True)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_whatever_was_ever_in_a_store_is_well_formed(peers: Peers) -> None:
    for run in peers.seen:
        assert problems_in(run) == []
        assert problems_in(merge_records(run, peers.records[0])) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"session": None}, "it is processing and owned by session None"),
        ({"device": None}, "it is processing, of device None, assigned at 2.0"),
        ({"epoch": 0}, "it is processing in epoch 0"),
        ({"epoch": 3}, "its 2 ended assignments have the epochs []"),
        ({"epoch": 10**9}, "epoch cannot be 1000000000"),
        ({"claimed_at": None}, "it is processing and was never claimed"),
        ({"started_at": None}, "it is being processed and never began"),
        ({"ended_at": 3.0}, "it is processing and ended at 3.0"),
        ({"output": 1}, "it is processing and has a result"),
        ({"files": "a" * 64}, "it is processing and has files"),
        ({"error": "x"}, "it is processing, with error 'x', and was not cancelled"),
        ({"paused": "by ann"}, "it is processing, and is paused"),
        ({"status": FAILED, "session": None, "ended_at": 4.0}, "it is failed, with error None, and was not cancelled"),
        ({"status": REASSIGNING, "session": None}, "it is reassigning and names the device kitchen"),
        ({"assigned_at": float("nan")}, "assigned_at cannot be nan"),
        ({"due_at": float("inf")}, "due_at cannot be inf"),
        ({"stop_request": "burn"}, "stop_request cannot be 'burn'"),
        ({"status": ASSIGNED, "stop_request": "pause"}, "it is assigned, and its owner is asked to pause"),
        ({"error": 5}, "error cannot be 5"),
        ({"declined": []}, "declined cannot be []"),
        ({"superseded": ("x",)}, "superseded cannot be ('x',)"),
        ({"avoid": ["kitchen"]}, "avoid cannot be ['kitchen']"),
        ({"avoid": ("a|b",)}, "avoid cannot be ('a|b',)"),
        ({"keep": "mine"}, "keep cannot be 'mine'"),
        ({"traceparent": "00-x"}, "traceparent cannot be '00-x'"),
        ({"uses": '{"a b":1}'}, "uses cannot be"),
        ({"uses": 7}, "uses cannot be 7"),
        ({"uses": "[" * 100_000}, "uses cannot be"),
        ({"files": "render.png"}, "files cannot be 'render.png'"),
        ({"admitted": True}, "admitted cannot be True"),
        ({"progress": Progress(-1)}, "progress cannot be Progress(step=-1, total=None)"),
        ({"previous": (Assignment("a", 1, 1.0, 2.0, "boredom"),)}, "previous cannot be"),
        ({"previous": (Assignment("a", 1, 1.0, 2.0, "timeout", "", float("inf")),)}, "previous cannot be"),
        ({"previous": (Assignment("a", 1, 1.0, 2.0, "timeout", "", "high"),)}, "previous cannot be"),  # type: ignore[arg-type]
        ({"id": "two words"}, "id cannot be 'two words'"),
        ({"created_by": "\ud800"}, "created_by cannot be"),
        ({"version": True}, "version cannot be True"),
        ({"story": ()}, "its story does not begin with its creation"),
        ({"story": (Entry(1.0, "claimed", None, ""),)}, "its story does not begin with its creation"),
        ({"story": (Entry(1.0, "created", "t1", ""),)}, "story cannot be"),
        ({"scores": {"kitchen": float("inf")}}, "scores cannot be"),
    ],
)
def test_a_record_that_cannot_be_one_says_why(change: dict[str, Any], why: str) -> None:
    problems = problems_in(going_on().changed(**change))
    assert any(problem.startswith(why) for problem in problems), problems


def test_whose_line_is_kept_can_be_asked_and_forced() -> None:
    before, after = going_on(), transitions.complete(going_on(), going_on().grant, 7, 3.0)  # type: ignore[arg-type]
    assert outranks(after, before)
    assert not outranks(before, after)
    forced = merge_keeping(before, after)
    assert (forced.status, forced.superseded) == (before.status, own_result(after))
    assert set(after.story) == set(forced.story)
    assert own_story(forced) == before.story
    assert "status" in differing_fields(before, after)
    assert differing_fields(before, forced) == []
