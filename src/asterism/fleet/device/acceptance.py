"""What a device accepts now: whether it rests or is drained, what it refuses, and what it leaves to others.

Rules are expressions over the profile of the device (profile.py), as the last heartbeat measured it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from asterism.base.expressions import holds
from asterism.core.run.placement import mismatch_reason, resting_reason, unmet_reason
from asterism.core.run.run import Run
from asterism.core.run.session import RESTING, Session
from asterism.core.run.workflow import Workflow
from asterism.fleet.coordinator import Coordinator

LOOK_INTERVAL = 5.0
"""How often a device looks for work without being woken, in seconds."""


class Acceptance:
    """``session`` is the device as the store knows it, ``measure`` returns what its machine says of itself. The device
    rests, and hands its work back, while the expression ``hands_back`` holds over its profile. ``draining`` is set when
    it is to take nothing more. A device without the store of its fleet has no ``coordinator``."""

    def __init__(
        self,
        session: Session,
        coordinator: Coordinator | None,
        draining: asyncio.Event,
        *,
        labels: Mapping[str, str],
        hands_back: str | None,
        measure: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.session = session
        self._coordinator, self._draining = coordinator, draining
        self._labels, self.hands_back, self._measure = dict(labels), hands_back, measure
        self.resting: str | None = None
        """Why the device rests, as of the last heartbeat; None if it does not."""
        self._shown: Mapping[str, Any] = {}  # the profile, as expressions see it

    def measure(self, suspended: str | None, held: int) -> dict[str, Any]:
        """Measure the profile and decide whether the device rests. ``suspended`` says why its health keeps it from
        work, ``held`` is how many runs it holds."""
        profile = {**self._measure(), "labels": self._labels}
        if suspended is not None:
            profile["suspended"] = suspended
        self._shown = replace(self.session, profile=profile, used=held).expression_names()
        rests = self.hands_back is not None and holds(self.hands_back, self._shown) is True
        self.resting = f"{self.hands_back!r} holds" if rests else None
        return {**profile, RESTING: self.resting}

    @property
    def takes_offers(self) -> bool:
        """Whether the device takes runs that no device has."""
        return not self._draining.is_set() and self.session.slots > 0 and self.resting is None

    def refusal_reason(self, run: Run, flow: Workflow) -> str | None:
        """Why this device will not take a run; None if it will."""
        if self.resting is not None:
            return resting_reason(self.resting)
        if self._draining.is_set():
            return "it is being drained"
        return mismatch_reason(self.session, run, flow, self._shown, holds)

    def leaves_to_others(self, run: Run, flow: Workflow, now: float) -> bool:
        """Whether the workflow prefers another device. The coordinator assigns the run to it; if it does not in time,
        any device may take the run."""
        if not flow.orchestration and flow.prefers is None:
            return False
        if now - (run.waiting_since or 0.0) > 2 * LOOK_INTERVAL:
            return False
        if flow.orchestration and (self._coordinator is None or not self._coordinator.elected):
            return True
        return flow.prefers is not None and unmet_reason(flow.prefers, self._shown, holds) is not None
