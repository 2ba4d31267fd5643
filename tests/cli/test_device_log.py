"""The log of a device: what it says about a run and its attempts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asterism.cli.fleet.device_process import LoggingExecutor
from asterism.cli.run.run_views import note_on
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.transitions import attempts_of
from asterism.core.run.work import Workflow
from asterism.fleet.device.executor import RunWork
from tests.cli.command_scenes import document_of

FLOW = Workflow("nap", argv=("true",), version=1, retries=5, backoff=0.0)
ME = Owner("laptop", "laptop-1")


def taken(run: Run) -> Run:
    return transitions.take(run, ME, 1.0)


def begun(run: Run) -> Run:
    run = taken(run)
    assert run.grant is not None
    return transitions.start(run, run.grant, 1.0)


def declined(run: Run) -> Run:
    run = taken(run)
    assert run.grant is not None
    return transitions.decline(run, run.grant, "it is raining", 1.0)


def failed(run: Run) -> Run:
    run = begun(run)
    assert run.grant is not None
    return transitions.fail(run, run.grant, "no luck", 1.0)


def new() -> Run:
    return transitions.create("run-00000001", FLOW, {}, by="ann", now=0.0)


class Nothing:
    async def execute(self, work: RunWork) -> Any:
        return None


def said_of(run: Run, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    narrated = LoggingExecutor(Nothing(), lambda run_id: None)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, "asterism.device"):
        asyncio.run(narrated.execute(RunWork(run, {}, lambda *_: None, lambda *_: None, 60.0)))
    return caplog.messages[0]


def test_a_decline_is_not_an_attempt(caplog: pytest.LogCaptureFixture) -> None:
    run = begun(declined(new()))
    assert run.epoch == 2
    assert said_of(run, caplog) == "started run 00000001 (nap)"
    run = begun(failed(declined(new())))
    assert run.epoch == 3
    assert said_of(run, caplog) == "started run 00000001 (nap), attempt 2"


def test_a_table_counts_attempts_and_not_declines() -> None:
    assert [attempts_of(step(new())) for step in (lambda run: run, taken, begun, declined, failed)] == [0, 1, 1, 0, 1]
    assert note_on(document_of(begun(declined(new()))), 1.0) == ""
    assert note_on(document_of(begun(failed(declined(new())))), 1.0) == "attempt 2"
    assert note_on(document_of(taken(failed(failed(new())))), 1.0) == "attempt 3"
