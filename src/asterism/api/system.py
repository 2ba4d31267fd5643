"""A system: where operations happen. A store opened here, or a server.

``LocalSystem`` has a fleet and calls the functions in ``api/local``; ``AsyncClient`` (``client.py``) sends requests to
a server, which has a ``LocalSystem`` for each caller. Both have every operation as a method, so a command is the same
on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from asterism.api.operation import Operation
from asterism.api.operations import Operations
from asterism.core.record import Record

if TYPE_CHECKING:
    from asterism.api.client import AsyncClient
    from asterism.api.credentials import Credential
    from asterism.api.documents import EditProposal
    from asterism.api.local.edit_handlers import EditedPlans
    from asterism.api.plan_operations import ProposeEdit
    from asterism.fleet.audit_log import AuditLog, PendingEntry
    from asterism.fleet.fleet import Fleet

Request = TypeVar("Request")
Answer = TypeVar("Answer")

ENTRY: ContextVar[PendingEntry | None] = ContextVar("entry", default=None)
"""The entry in the audit log of the operation under way."""


System: TypeAlias = "LocalSystem | AsyncClient"


class Actor(Record):
    """Who asks for an operation, for the audit log (``fleet/audit_log.py`` has its fields)."""

    by: str
    kind: str = "local"
    credential: str = ""
    address: str = ""
    key: str = ""


class Proposer(Protocol):
    """A model that writes edits for a request in words (``models/edit_proposals.py``)."""

    async def propose(self, system: System, request: ProposeEdit, /) -> EditProposal:
        """Edits that the plan would accept from the caller of ``system``. Raises NoProposal, EditRejected if the plan
        rejects every answer, and what reading the plan raises."""


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

    caller: Credential | None = None
    """Whose scopes limit what is done; None if nothing does."""

    client: Actor | None = None
    """Who asks, if it is not this process."""

    proposer: Proposer | None = None
    """The model that answers requests in words; None if there is none."""

    @property
    def entry(self) -> PendingEntry | None:
        """The entry in the audit log of the operation under way; None if it changes nothing."""
        return ENTRY.get()

    @property
    def groups(self) -> frozenset[str]:
        """The groups that a proxy names for the caller."""
        return frozenset() if self.caller is None else self.caller.groups

    @property
    def actor(self) -> Actor:
        """Who asks."""
        return Actor(self.fleet.by) if self.client is None else self.client

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return self.fleet.store.url

    @cached_property
    def edited_plans(self) -> EditedPlans:
        """The plans that are edited: their sizes and their order."""
        from asterism.api.local.edit_handlers import EditedPlans

        return EditedPlans()

    @cached_property
    def audit_log(self) -> AuditLog:
        """Who changed what."""
        from asterism.fleet.audit_log import AuditLog

        return AuditLog(self.fleet.store)

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

    async def call(
        self,
        operation: Operation[Any, Request, Answer],
        request: Request,
        /,
        function: Callable[[Any, Request], Awaitable[Answer]] | None = None,
    ) -> Answer:
        """Do an operation here, with its own function or with another one, which may answer in another form. One that
        changes something is recorded. Raises what its function raises."""
        function = function or operation.function
        if not operation.changes or getattr(request, "dry_run", False):
            return await function(self, request)
        from asterism.api.local.audited import do_and_record

        return await do_and_record(self, operation, request, function)
