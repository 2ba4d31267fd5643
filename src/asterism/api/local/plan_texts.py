"""Plan files that are sent as text, with the texts of the files that they include."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from asterism.planfile import loader

SMALL_FILE = 50_000
"""Up to this many characters a plan file is read at once; a larger one takes long."""


async def read_plan_text(
    text: str,
    name: str,
    params: Mapping[str, Any],
    includes: Mapping[str, str],
    only: Sequence[str] = (),
    tick: str | None = None,
    *,
    scheduled: bool = False,
) -> loader.PlanFile:
    """A plan file. ``includes`` are the texts of the files that it includes, by their paths from its folder; with
    ``only`` the plan has these tasks and what they need; ``tick`` and ``scheduled`` are as for ``loader.load``. A large
    one takes seconds, and is read in a thread. Raises BadPlan and InvalidTick."""
    options: dict[str, Any] = {"params": params, "texts": includes, "only": only, "tick": tick, "scheduled": scheduled}
    read = partial(loader.examine, text, name, fleet=True, **options)
    plan_file, mistakes = await asyncio.to_thread(read) if len(text) > SMALL_FILE else read()
    if plan_file is None:
        raise loader.BadPlan("the plan file", mistakes)
    return plan_file
