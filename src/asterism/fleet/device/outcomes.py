"""How an execution began and ended, as the steps of its run that the store is told. ``clock`` is the store's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import PROCESSING, Owner, Progress, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.held_run import Holding
from asterism.fleet.ledger import Step

Clock = Callable[[], float]


def started(holding: Holding, clock: Clock) -> Step:
    def step(run: Run, _: Workflow) -> Run:
        if run.status is PROCESSING and run.grant == holding.grant:
            return run  # by ourselves, and we were not told
        return transitions.start(run, holding.grant, clock())

    return step


def completed(holding: Holding, output: Any, clock: Clock) -> Step:
    return lambda run, _: transitions.complete(_so_far(run, holding), holding.grant, output, clock())


def failed(holding: Holding, words: str, clock: Clock, *, final: bool = False) -> Step:
    return lambda run, flow: transitions.fail(_so_far(run, holding), holding.grant, words, flow, clock(), final=final)


def declined(holding: Holding, words: str, clock: Clock) -> Step:
    """Nothing has happened."""
    return lambda run, _: transitions.decline(run, holding.grant, words, clock())


def broken_off(holding: Holding, words: str, clock: Clock) -> Step:
    """The device could not go on, through no fault of the work."""
    return lambda run, flow: transitions.abandon(_so_far(run, holding), holding.grant, words, flow, clock())


def disowned(owner: Owner, epoch: int, progress: Progress | None, clock: Clock) -> Step:
    """What the store thinks the owner holds, and it does not any more."""

    def step(run: Run, flow: Workflow) -> Run:
        if run.session != owner.session or run.epoch != epoch:
            return run
        assert run.grant is not None
        kept = run if progress is None else run.changed(progress=progress)
        return transitions.abandon(kept, run.grant, f"{owner.device} had to stop it", flow, clock())

    return step


def released(holding: Holding, reason: str, words: str, clock: Clock) -> Step:
    return lambda run, _: transitions.release(run, holding.grant, reason, words, clock(), holding.progress)


def _so_far(run: Run, holding: Holding) -> Run:
    """With the progress that was made, for the next attempt."""
    if holding.progress is None or run.progress == holding.progress:
        return run
    return run.changed(progress=holding.progress)
