"""Ports of an execution: the scheduler that gives it devices, and the journal of a stored plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from asterism.orchestrator.events import Event
from asterism.orchestrator.roster import Member, Roster

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution


class Scheduler(Protocol):
    """What an execution needs from its orchestrator: the devices, the time, and its turn."""

    roster: Roster
    now: Callable[[], float]
    """The clock: seconds since 1970."""

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once; None for no limit."""

    def wake(self, execution: Execution) -> None:
        """Take a step for this execution as soon as the loop is free."""

    def task_ended(self, execution: Execution) -> None:
        """A task ended without a review: start the next tasks now."""

    def rest(self, member: Member) -> None:
        """Give a device no task for a while."""


class PlanJournal(Protocol):
    """The journal of a stored plan: observers and editors learn of a change only when it is durable."""

    def publish(self, event: Event) -> None:
        """Publish an event once everything recorded up to now is durable."""

    async def settled(self) -> bool:
        """Wait until everything recorded up to now is durable; False if it never will be."""
