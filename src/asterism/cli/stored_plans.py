"""Constellations of a store as people look at them: each with who runs it, whether it is paused or being
cancelled, and what it has done.

What cannot be read is named with the reason, and does not hide the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from asterism.base.text import some
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
PREFIX = head_key("")


@dataclass(frozen=True, slots=True)
class Seen:
    """``owner`` is the living session that runs it, ``paused`` by whom and why, and ``unwanted`` likewise: somebody
    with the store has asked for its end."""

    kept: StoredConstellation
    owner: Session | None
    paused: str | None = None
    unwanted: str | None = None

    @property
    def state(self) -> str:
        """The state, or what says more: one that has begun, and that nobody runs now, is at rest."""
        if self.cancelling:
            return "cancelling"
        resting = self.owner is None and str(self.kept.plan.state) == "executing"
        return "at rest" if resting else str(self.kept.plan.state).replace("_", " ")

    @property
    def cancelling(self) -> bool:
        """Whether it is being cancelled, or will be by whoever takes it up."""
        return self.kept.plan.state not in ENDED and (self.kept.head.cancelling or self.unwanted is not None)

    @property
    def done(self) -> int:
        return sum(self.kept.plan.counts[status] for status in TERMINAL)


@dataclass(frozen=True, slots=True)
class Unreadable:
    name: str
    why: str


def _name(register: Register) -> str:
    return register.key.removeprefix(PREFIX)


async def known(fleet: Fleet, name: str) -> Head:
    """The head of a constellation. One that is not there is told with the names of those that are."""
    try:
        return (await read_head(fleet.store, name))[0]
    except UnknownConstellation as error:
        there = [_name(one) for one in await fleet.store.registers(PREFIX)]
        if not there:
            raise click.ClickException(
                f"{error}, nor any other: `asterism run PLAN.YAML --store …` begins one"
            ) from None
        are = "is" if len(there) == 1 else "are"
        raise click.ClickException(f"{error}; there {are} {some(there, MOST_NAMES)}") from None


async def see(fleet: Fleet, name: str) -> Seen:
    await known(fleet, name)
    return await _seen(fleet, name)


async def _seen(fleet: Fleet, name: str) -> Seen:
    kept = await load(fleet.store, name)
    unwanted = await cancel_reason(fleet.store, name)
    if kept.head.ended:
        return Seen(kept, None, unwanted=unwanted)
    return Seen(kept, await live_owner(fleet.store, kept.head), await pause_reason(fleet.store, name), unwanted)


async def see_all(fleet: Fleet) -> list[Seen | Unreadable]:
    """In the order in which they were made; what cannot be read comes last. Raises StoreUnavailable: that says nothing
    about any of them."""
    found: list[Seen] = []
    unreadable: list[Unreadable] = []
    for register in await fleet.store.registers(PREFIX):
        name = _name(register)
        try:
            decode_head(register)
            found.append(await _seen(fleet, name))
        except UnknownConstellation:
            continue  # it was forgotten a moment ago
        except StoreUnavailable:
            raise
        except AsterismError as error:
            unreadable.append(Unreadable(name, str(error)))
    return [*sorted(found, key=lambda one: (one.kept.head.created_at, one.kept.head.name)), *unreadable]
