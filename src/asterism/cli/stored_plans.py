"""Find and read stored plans, with owner, progress and requests.

A plan that cannot be read is listed with the reason, and does not hide the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from asterism.base.text import join_names
from asterism.core.errors import AsterismError
from asterism.core.plan.status import TERMINAL
from asterism.core.run.session import Session
from asterism.durable.admin import cancel_reason, live_owner, pause_reason
from asterism.durable.journal_store import (
    ENDED,
    Head,
    StoredConstellation,
    UnknownConstellation,
    decode_head,
    head_key,
    load,
    read_head,
)
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Register
from asterism.store.store_errors import StoreUnavailable

MOST_NAMES = 10
"""How many plans a message names."""

PREFIX = head_key("")


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """``owner`` is the live session that runs the plan. ``paused`` and ``cancel_request`` say who asked and why."""

    kept: StoredConstellation
    owner: Session | None
    paused: str | None = None
    cancel_request: str | None = None

    @property
    def state(self) -> str:
        """The state of the plan, or ``at rest`` if it has started and no process runs it, or ``cancelling``."""
        if self.cancelling:
            return "cancelling"
        at_rest = self.owner is None and str(self.kept.plan.state) == "executing"
        return "at rest" if at_rest else str(self.kept.plan.state).replace("_", " ")

    @property
    def cancelling(self) -> bool:
        """Whether the plan has not ended and its owner, or its next owner, cancels it."""
        return self.kept.plan.state not in ENDED and (self.kept.head.cancelling or self.cancel_request is not None)

    @property
    def done(self) -> int:
        """How many tasks have ended."""
        return sum(self.kept.plan.counts[status] for status in TERMINAL)


@dataclass(frozen=True, slots=True)
class UnreadablePlan:
    name: str
    why: str


async def find_plan(fleet: Fleet, name: str) -> Head:
    """The head of a plan. If there is no such plan, the error names those that exist."""
    try:
        return (await read_head(fleet.store, name))[0]
    except UnknownConstellation as error:
        names = [_name(register) for register in await fleet.store.registers(PREFIX)]
        if not names:
            raise click.ClickException(
                f"{error}. The store has no plans; start one with: asterism run PLAN.YAML --store URL"
            ) from None
        raise click.ClickException(f"{error}. The plans are: {join_names(names, MOST_NAMES)}") from None


async def read_plan(fleet: Fleet, name: str) -> StoredPlan:
    """A plan as it is now. Raises ClickException like ``find_plan``."""
    await find_plan(fleet, name)
    return await _read(fleet, name)


async def list_plans(fleet: Fleet) -> list[StoredPlan | UnreadablePlan]:
    """All plans in the order of their creation, unreadable ones last. Raises StoreUnavailable."""
    found: list[StoredPlan] = []
    unreadable: list[UnreadablePlan] = []
    for register in await fleet.store.registers(PREFIX):
        name = _name(register)
        try:
            decode_head(register)
            found.append(await _read(fleet, name))
        except UnknownConstellation:
            continue  # it was pruned since the registers were read
        except StoreUnavailable:
            raise
        except AsterismError as error:
            unreadable.append(UnreadablePlan(name, str(error)))
    return [*sorted(found, key=lambda plan: (plan.kept.head.created_at, plan.kept.head.name)), *unreadable]


async def _read(fleet: Fleet, name: str) -> StoredPlan:
    kept = await load(fleet.store, name)
    cancel_request = await cancel_reason(fleet.store, name)
    if kept.head.ended:
        return StoredPlan(kept, None, cancel_request=cancel_request)
    owner = await live_owner(fleet.store, kept.head)
    return StoredPlan(kept, owner, await pause_reason(fleet.store, name), cancel_request)


def _name(register: Register) -> str:
    return register.key.removeprefix(PREFIX)
