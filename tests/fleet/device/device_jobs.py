"""Functions that a device may be asked to call, and some that it should not be."""

from __future__ import annotations

import os  # noqa: F401 - a policy must not let it through
from functools import partial
from os import system  # noqa: F401 - nor this

from asterism.fleet.device.functions import CurrentRun

LIMIT = 5


def double(n: int) -> int:
    return 2 * n


async def triple(n: int) -> int:
    return 3 * n


def reports(run: CurrentRun) -> dict[str, object]:
    run.report(1, 2)
    run.report(2, 2)
    return {"id": run.id, "epoch": run.epoch, "attempt": run.attempt, "progress": run.progress and list(run.progress)}


class Jobs:
    @staticmethod
    def inner(n: int) -> int:
        return n


half = partial(double, 1)
