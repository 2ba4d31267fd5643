"""Extension points of a fleet: passes of the monitor, explanations, and plans of schedules from other packages.

A package that builds on fleets, such as the one for peers, offers a module with the functions of ``Extension``. The
package door (``asterism/__init__.py``) registers it by name, so this package imports none of them, and every fleet has
them, however it was opened. An extension is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from asterism.core.json_values import JsonObject

if TYPE_CHECKING:
    from asterism.core.history import Reason
    from asterism.core.plan.constellation import Constellation
    from asterism.core.run.run import Run
    from asterism.core.run.session import Session
    from asterism.core.schedule.tick_values import TickValues
    from asterism.fleet.fleet import Fleet
    from asterism.store.protocol import Store, Write


class MonitorPass(Protocol):
    """Something that the coordinator does in each pass in which leases may expire. ``sessions`` are the sessions of
    the store that have not ended."""

    async def __call__(self, sessions: Sequence[Session], /) -> None: ...


class Extension(Protocol):
    """The functions that the module of an extension has."""

    def monitor_pass(self, fleet: Fleet, /) -> MonitorPass:
        """A new pass for one monitor; it may keep state between calls."""

    async def explain(self, fleet: Fleet, run: Run, /) -> Reason | None:
        """The reason why this store does not decide about a run that has not ended; None if it does."""


class PlanPort(Protocol):
    """The functions of the module that stores plans, such as those of schedules."""

    def plan_document(self, plan: Constellation, policy: str, by: str, /) -> JsonObject:
        """A plan as a schedule keeps it. ``by`` is its author. Raises NotJson if another process could not execute a
        task of it."""

    def plan_writes(
        self, store: Store, name: str, document: Mapping[str, Any], tick: TickValues, awaited: str | None, /
    ) -> Sequence[Write]:
        """The writes that store the plan of a document under a name, with the values of a tick; the first is the head
        of the plan. If it is to wait for the success of another plan, that is ``awaited``."""

    async def plan_turn(
        self, store: Store, name: str, document: Mapping[str, Any], tick: TickValues, /
    ) -> Sequence[Write]:
        """The write with which the plan of a document waits for its turn among the plans of its file or key. Raises
        PlanOverlaps if the file says that no further plan is started."""

    async def submission(self, fleet: Fleet, name: str, /) -> Write:
        """The write that lets a plan runner run a plan."""

    async def run_again(self, fleet: Fleet, name: str, reason: str, /) -> None:
        """Run again what failed in a plan that has ended. Raises PlanError if that cannot be."""

    async def plan_succeeded(self, store: Store, name: str, /) -> bool:
        """Whether a stored plan has completed."""

    async def plan_ended(self, store: Store, name: str, /) -> bool:
        """Whether a stored plan has ended, or was removed."""

    async def plan_cancelling(self, store: Store, name: str, /) -> bool:
        """Whether a stored plan is being cancelled, or is to be: a request for that is stored."""

    async def cancel_plan(self, fleet: Fleet, name: str, reason: str, /) -> None:
        """Ask the owner of a plan to cancel it. Does nothing if it has ended."""


_MODULES: dict[str, None] = {}
"""The names of the registered modules, in order."""


def register(module: str) -> None:
    """Add an extension to all fleets of this process, by the name of its module."""
    _MODULES[module] = None


_PLAN_MODULES: dict[str, None] = {}
"""The name of the module with the functions of ``PlanPort``."""


def register_plans(module: str) -> None:
    """Let the schedules of this process create plans, by the name of the module that stores them."""
    _PLAN_MODULES[module] = None


def plan_port() -> PlanPort:
    """The registered functions for plans."""
    return cast("PlanPort", import_module(next(iter(_PLAN_MODULES))))


def extensions() -> list[Extension]:
    """The registered extensions."""
    return [cast("Extension", import_module(name)) for name in _MODULES]
