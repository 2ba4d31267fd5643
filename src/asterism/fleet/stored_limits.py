"""Limits as a store keeps them: what is set, the accounts, and who holds and waits.

A limit is a register, and its account another one. Every grant writes the account in place of the revision that was
read (limited_queue.py), and so does every change of the limit: a grant that was judged by the limit before it meets a
conflict. The account stays when the limit is removed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from asterism.core.errors import AsterismError, PlanError
from asterism.core.limits import (
    Account,
    InvalidLimit,
    Limit,
    LimitBook,
    LimitedRuns,
    UnknownLimit,
    check_uses,
    uses_of,
)
from asterism.core.plan.constellation import Constellation
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import LIMIT_ACCOUNTS, LIMITS, PutRegister, Store, Write

log = logging.getLogger("asterism.device")


class LimitNotSet(AsterismError):
    """A limit that is to be shown or removed is not set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no limit {name!r} is set; 'asterism limit list' shows those that are")


class StoredLimits(NamedTuple):
    """The limits of a store at one moment, and the runs that use them. ``revisions`` are those of the accounts."""

    limits: dict[str, Limit]
    accounts: dict[str, Account]
    revisions: dict[str, int]
    groups: list[LimitedRuns]

    def book(self, now: float) -> LimitBook:
        held: Counter[str] = Counter()
        for group in self.groups:
            if not group.waiting:
                held.update({name: amount * group.number for name, amount in uses_of(group.uses).items()})
        return LimitBook(self.limits, self.accounts, held, now)

    def account_writes(self, book: LimitBook) -> list[Write]:
        """The accounts that a book has changed, in place of those that were read."""
        return [self._account_write(name, book.account(name)) for name in sorted(book.changed)]

    def rewound(self, now: float) -> list[Write]:
        """The accounts that count what began in the future: until they are written, their rates have no room."""
        rates = {name: limit.rate for name, limit in self.limits.items() if limit.rate is not None}
        return [
            self._account_write(name, account)
            for name, account in self.accounts.items()
            if name in rates and account.rewind(rates[name], now)
        ]

    def _account_write(self, name: str, account: Account) -> Write:
        return PutRegister(f"{LIMIT_ACCOUNTS}{name}", account.to_json(), self.revisions.get(name))


async def read_limits(store: Store) -> dict[str, Limit]:
    """The limits that are set, by name."""
    names = {register.key.removeprefix(LIMITS): register.value for register in await store.registers(LIMITS)}
    return {name: Limit.from_json(name, value) for name, value in names.items()}


async def check_plan_limits(store: Store, plan: Constellation) -> None:
    """Raise PlanError for a task that uses a limit which is not set, or more of one than it allows. What the elements
    of a ``foreach`` use is known when they begin."""
    uses = {node.id: node.task.uses for node in plan.nodes.values() if node.task.uses}
    limits = await read_limits(store) if uses else {}
    for task_id, used in uses.items():
        try:
            check_uses(limits, {name: amount for name, amount in used.items() if "{" not in name})
        except (UnknownLimit, InvalidLimit) as error:
            raise PlanError(f"task {task_id!r}: {error}") from None


async def read_stored_limits(store: Store) -> StoredLimits:
    """What a grant is judged by. The accounts are read first: a grant after that changes one of them."""
    registers = await store.registers(LIMIT_ACCOUNTS)
    accounts = {register.key.removeprefix(LIMIT_ACCOUNTS): register for register in registers}
    return StoredLimits(
        await read_limits(store),
        {name: Account.from_json(register.value) for name, register in accounts.items()},
        {name: register.revision for name, register in accounts.items()},
        _readable(await store.limited()),
    )


def _readable(groups: Sequence[LimitedRuns]) -> list[LimitedRuns]:
    readable = []
    for group in groups:
        try:
            uses_of(group.uses)
        except ValueError as error:
            log.error("passed over runs of %s that wait for limits: %s", group.workflow, error)
        else:
            readable.append(group)
    return readable


async def set_limit(store: Store, limit: Limit) -> Limit | None:
    """Set a limit, or change it: at once for what waits, and what runs goes on. Returns what it was before."""

    async def attempt() -> Limit | None:
        before, revisions, account = await _read(store, limit.name)
        old, new = None if before is None else before.rate, limit.rate
        account.recount(old, new, store.clock())
        definition = PutRegister(f"{LIMITS}{limit.name}", limit.to_json(), revisions.definition)
        await store.commit(
            [definition, PutRegister(f"{LIMIT_ACCOUNTS}{limit.name}", account.to_json(), revisions.account)]
        )
        return before

    return await retry_on_conflict(attempt)


async def remove_limit(store: Store, name: str) -> Limit:
    """Remove a limit, and return it. What waits for it waits until it is set again. Raises LimitNotSet."""

    async def attempt() -> Limit:
        before, revisions, account = await _read(store, name)
        if before is None:
            raise LimitNotSet(name)
        definition = PutRegister(f"{LIMITS}{name}", None, revisions.definition)
        await store.commit([definition, PutRegister(f"{LIMIT_ACCOUNTS}{name}", account.to_json(), revisions.account)])
        return before

    return await retry_on_conflict(attempt)


class _Revisions(NamedTuple):
    definition: int | None
    account: int | None


async def _read(store: Store, name: str) -> tuple[Limit | None, _Revisions, Account]:
    account = await store.register(f"{LIMIT_ACCOUNTS}{name}")
    definition = await store.register(f"{LIMITS}{name}")
    return (
        None if definition is None else Limit.from_json(name, definition.value),
        _Revisions(definition and definition.revision, account and account.revision),
        Account() if account is None else Account.from_json(account.value),
    )
