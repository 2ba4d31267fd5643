"""Extension points of a fleet: passes of the monitor and explanations from other packages.

A package that builds on fleets, such as the one for peers, offers a module with the functions of ``Extension``. The
package door (``asterism/__init__.py``) registers it by name, so this package imports none of them, and every fleet has
them, however it was opened. An extension is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from asterism.core.run.run import Run
    from asterism.core.run.session import Session
    from asterism.fleet.fleet import Fleet
    from asterism.fleet.run_explanation import Reason


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


_MODULES: dict[str, None] = {}
"""The names of the registered modules, in order."""


def register(module: str) -> None:
    """Add an extension to all fleets of this process, by the name of its module."""
    _MODULES[module] = None


def extensions() -> list[Extension]:
    """The registered extensions."""
    return [cast("Extension", import_module(name)) for name in _MODULES]
