"""How a run waits for whoever may change its plan after a task has ended: the documented synchronizer, or one of the
user's own that has only the documented methods."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from asterism.compat.checked_changes import ModificationRejected
from asterism.compat.copy_merge import merge_copy
from asterism.compat.documented_events import untouched
from asterism.compat.event_outlet import Outlet
from asterism.compat.living_plan import LivingPlan
from asterism.compat.synchronizer import PlanSynchronizer

logger = logging.getLogger("asterism.compat.synchronizer")


class Review:
    """One synchronizer in one run. The plan is held from an end until ``over`` returns."""

    def __init__(self, synchronizer: Any, live: LivingPlan, outlet: Outlet) -> None:
        self._synchronizer, self._live, self._outlet = synchronizer, live, outlet
        self._ours = synchronizer if issubclass(type(synchronizer), PlanSynchronizer) else None
        self._documented = self._ours is not None and untouched(synchronizer, "wait_for_pending_modifications")

    def begin(self) -> None:
        if self._ours is not None:
            self._ours.watch(self._live)

    def end(self) -> None:
        if self._ours is not None:
            self._ours.forget(self._live.plan_id)

    async def over(self, tasks: tuple[str, ...]) -> None:
        """Wait until these ends are answered, then bring the answers into the plan."""
        timeout = 600.0 if self._ours is None else self._ours.pending.timeout
        await self._outlet.delivered(self._synchronizer, timeout)
        if self._documented:
            assert self._ours is not None
            await self._ours.pending.answered(self._live.plan_id, tasks)
        else:
            waiting = self._synchronizer.wait_for_pending_modifications()
            if inspect.isawaitable(waiting):
                await waiting
        self._merge(tasks)

    def _merge(self, tasks: tuple[str, ...]) -> None:
        """The answers were merged as they came, or are handed over now as another plan."""
        noun = self._live.naming.noun
        merge = getattr(self._synchronizer, f"merge_and_sync_{noun}_states", None)
        merged = self._live if merge is None else merge(**{f"orchestrator_{noun}": self._live})
        if merged is None or merged is self._live:
            return
        if not isinstance(merged, LivingPlan):
            logger.warning("merge_and_sync_%s_states must return a %s, not %r", noun, noun, merged)
            return
        try:
            merge_copy(self._live, merged, None, tasks, logger)
        except ModificationRejected as rejected:
            logger.warning("the answer to %s was not applied to %s: %s", list(tasks), self._live.plan_id, rejected)
