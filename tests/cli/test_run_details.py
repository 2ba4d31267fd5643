"""Times and notes of runs: waiting and work are shown apart, and a note adds to the status."""

from __future__ import annotations

import re
from typing import Any

import pytest

from asterism.api.documents import RunDetails
from asterism.cli.run.run_views import RUN_TABLE, describe_end, details_lines, note_on
from asterism.core.record import asdict, replace
from asterism.core.run import transitions
from asterism.core.run.run import FAILED, REASSIGNING, Owner, Run
from asterism.core.run.work import Work, Workflow
from tests.cli.command_scenes import document_of

FLOW = Workflow("work", shell="true", version=1, retries=1)
LAPTOP = Owner("laptop", "session-laptop")


def begun(at: float, created: float = 1000.0) -> Run:
    run = transitions.create("r" * 20, FLOW, {}, by="ann", now=created)
    return transitions.take(run, LAPTOP, at, starts=True)


def end(run: Run, at: float) -> Run:
    assert run.grant is not None
    return transitions.complete(run, run.grant, 1, at)


def again(run: Run, failed_at: float, at: float) -> Run:
    assert run.grant is not None
    return transitions.take(transitions.fail(run, run.grant, "no luck", failed_at), LAPTOP, at, starts=True)


def cancelled(run: Run, at: float) -> Run:
    return transitions.cancel(run, at, "ann")


def test_a_cancelled_run_is_described_with_the_whole_reason() -> None:
    run = transitions.cancel(begun(1040.0), 1050.0, "ann")
    assert run.grant is not None
    failed = transitions.fail(run, run.grant, "CommandFailed: exit code 1", 1060.0)
    assert describe_end(document_of(failed)) == "rrrrrrrr cancelled by ann (CommandFailed: exit code 1)"
    stopped = transitions.release(run, run.grant, "released", "cancel", 1060.0)
    assert describe_end(document_of(stopped)) == "rrrrrrrr cancelled by ann"


@pytest.mark.parametrize(
    ("run", "waited", "took"),
    [
        (end(begun(1040.0), 1045.0), "40 s", "5.0 s"),
        (end(begun(0.0, created=0.0), 5.0), "0 s", "5.0 s"),
        (end(again(begun(1040.0), 1060.0, 1070.0), 1077.0), "50 s", "7.0 s"),
        (cancelled(transitions.create("r" * 20, FLOW, {}, by="ann", now=1000.0), 1020.0), "20 s", None),
        (end(begun(900.0), 905.0), "0 s", "0 s"),
    ],
    ids=["once", "at the beginning of time", "twice", "never", "the clock was set back"],
)
def test_the_time_of_the_work_and_the_waiting_time_are_shown_apart(run: Run, waited: str, took: str | None) -> None:
    document = document_of(run)
    details = RunDetails(**asdict(document), now=2000.0, tail="", more_output=False, notices=[], why=[], advice=[])
    text = "\n".join(line.plain for line in details_lines(details, None))
    facts = dict(re.findall(r"^  (waited|took) +(.*)$", text, re.M))
    assert (facts.get("waited"), facts.get("took")) == (waited, took)
    row = RUN_TABLE.lines([document], 2000.0, None)[1].plain
    assert re.findall(r"[0-9.]+ (?:s|min)\b", row) == ([took] if took else []), "nothing but the work is in the table"
    assert describe_end(document).endswith(f"completed on laptop after {took}" if took else "cancelled by ann")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": FAILED, "error": "CommandFailed: the command exited with 3"}, "the command exited with 3"),
        ({"status": FAILED, "error": "ValueError: no such month"}, "ValueError: no such month"),
        ({"status": FAILED, "cancelled": True, "error": "cancelled by ann (cancel)"}, "by ann"),
        ({"status": REASSIGNING, "declined": {"attic": "there is no oven"}}, "attic declined: there is no oven"),
    ],
)
def test_a_note_in_the_list_says_what_the_status_does_not(fields: dict[str, Any], words: str) -> None:
    assert note_on(document_of(replace(Run("r1", "work", 1, 0.0, "ann", Work(shell="true")), **fields)), 5.0) == words
