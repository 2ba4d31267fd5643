"""How an execution ended, as the step of its run that the store is to be told. ``clock`` is the store's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asterism.core import assigning
from asterism.core.run import Run
from asterism.runtime.fleet.holding import Holding
from asterism.runtime.fleet.ledger import Step

Clock = Callable[[], float]


def completed(holding: Holding, output: Any, clock: Clock) -> Step:
    return lambda run, _: assigning.complete(_so_far(run, holding), holding.grant, output, clock())


def failed(holding: Holding, words: str, clock: Clock, *, final: bool = False) -> Step:
    return lambda run, flow: assigning.fail(_so_far(run, holding), holding.grant, words, flow, clock(), final=final)


def declined(holding: Holding, words: str, clock: Clock) -> Step:
    """Nothing has happened."""
    return lambda run, _: assigning.decline(run, holding.grant, words, clock())


def released(holding: Holding, reason: str, words: str, clock: Clock) -> Step:
    return lambda run, _: assigning.release(run, holding.grant, reason, words, clock(), holding.progress)


def _so_far(run: Run, holding: Holding) -> Run:
    """With the progress that was made, for the next attempt."""
    if holding.progress is None or run.progress == holding.progress:
        return run
    return run.changed(progress=holding.progress)
