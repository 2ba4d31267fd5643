"""A system: where operations happen. A store opened here, or a server.

``LocalSystem`` has a fleet and calls the functions in ``api/local``; ``AsyncClient`` (``client.py``) sends requests to
a server, which has a ``LocalSystem`` for each caller. Both have every operation as a method, so a command is the same
on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from asterism.api.operation import Operation
from asterism.api.operations import Operations

if TYPE_CHECKING:
    from asterism.api.client import AsyncClient
    from asterism.api.local.edit_handlers import EditedPlans
    from asterism.fleet.fleet import Fleet

Request = TypeVar("Request")
Answer = TypeVar("Answer")


System: TypeAlias = "LocalSystem | AsyncClient"


@dataclass
class LocalSystem(Operations):
    """A store that is open in this process. ``fleet`` acts in the name of the caller. ``editor`` is the name of a
    caller whose edits are those of an editor, which has a scope; None for a person."""

    fleet: Fleet
    editor: str | None = None
    submitted: Callable[[], None] = lambda: None
    """Called when there may be a plan to run."""

    spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]] = asyncio.create_task
    """Begins work that goes on when an operation is answered."""

    own: bool = True
    """Whether the caller is this process, and not somebody at a server: it may sign with any name, and the limits that
    protect a server do not apply."""

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return self.fleet.store.url

    @cached_property
    def edited_plans(self) -> EditedPlans:
        """The plans that are edited: their sizes and their order."""
        from asterism.api.local.edit_handlers import EditedPlans

        return EditedPlans()

    async def __aenter__(self) -> LocalSystem:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fleet.close()

    async def leave_reason(self, action: str, reason: str, device: str | None = None) -> None:
        """If a reason is given, leave a notice of who did something that no story tells, and why. ``action`` continues
        the name of the caller: ``removed workflow 'x'``."""
        from asterism.core.errors import truncate
        from asterism.store.protocol import Notice

        if reason:
            fleet = self.fleet
            message = truncate(f"{fleet.by} {action}: {reason}")
            await fleet.store.commit([Notice(fleet.store.clock(), "changed", message, None, device)])

    async def call(self, operation: Operation[Any, Request, Answer], request: Request, /) -> Answer:
        """Do an operation here. Raises what its function raises."""
        return await operation.function(self, request)
