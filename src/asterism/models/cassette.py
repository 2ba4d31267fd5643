"""Cassettes: the exchanges with a model and the account of its budget, in memory or in a store.

An exchange is written in one commit with what it has cost. In a store the account of a plan is the register
``budget/NAME`` and its exchanges are ``exchange/NAME/000001`` and so on. Both last as long as the plan. A question that
was answered is not paid for again: after a crash, the editor of the next owner finds the answer here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from asterism.core.plan.editor_cost import EditorCost
from asterism.core.record import Record, field, replace
from asterism.durable.editor_budget import Account, Budget, account_key, exchange_prefix, read_account
from asterism.models.model_messages import ModelAnswer
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import Notice, PutRegister, Store, Write, for_plan

Step = Callable[[Account], Account]
"""A change of an account. It may raise, and then nothing changes."""


class Exchange(Record, forbid_unknown_fields=True):
    """``about`` names the ends that the question is about, ``question`` is its text (``ModelQuestion.text``).
    ``entries`` is how much of the story had been shown with it, ``editor`` the name of the editor that asked."""

    number: int
    about: str
    question: str
    answer: ModelAnswer
    cost: EditorCost = field(default_factory=EditorCost)
    entries: int = 0
    editor: str = ""
    at: float = 0.0


class Cassette(Protocol):
    """Where the exchanges and the accounts of plans are kept."""

    def clock(self) -> float:
        """Seconds, the same for all processes that use the cassette."""

    async def account(self, plan: str) -> Account | None:
        """The account of a plan; None if it has none."""

    async def change(self, plan: str, step: Step, exchange: Exchange | None = None, notice: str = "") -> Account:
        """Change an account, and record an exchange and a notice with it: all or nothing. ``exchange`` gets the next
        number. Raises what ``step`` raises."""

    async def exchanges(self, plan: str) -> list[Exchange]:
        """The exchanges of a plan, oldest first."""

    async def changed(self, plan: str, timeout: float) -> None:
        """Return when the account of a plan may have changed, or after ``timeout`` seconds."""


class MemoryCassette:
    """A cassette for plans in memory."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._exchanges: defaultdict[str, list[Exchange]] = defaultdict(list)
        self._changed = asyncio.Event()

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    async def account(self, plan: str) -> Account | None:
        return self._accounts.get(plan)

    def close_account(self, plan: str) -> None:
        """Forget what was spent on a plan: another one begins under its id. The exchanges stay."""
        self._accounts.pop(plan, None)

    def change_now(self, plan: str, step: Step) -> Account:
        account = self._accounts[plan] = step(self._accounts.get(plan, Account()))
        self._changed.set()
        self._changed = asyncio.Event()
        return account

    async def change(self, plan: str, step: Step, exchange: Exchange | None = None, notice: str = "") -> Account:
        account = self.change_now(plan, step)
        if exchange is not None:
            self._exchanges[plan].append(_numbered(exchange, len(self._exchanges[plan]) + 1))
        return account

    async def exchanges(self, plan: str) -> list[Exchange]:
        return list(self._exchanges[plan])

    async def changed(self, plan: str, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            pass


LOOK_INTERVAL = 1.0
"""Seconds between two looks at an account without being woken."""


class StoreCassette:
    """The cassette of the plans of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()  # of this process; others are told apart by revisions

    def clock(self) -> float:
        return self._store.clock()

    async def account(self, plan: str) -> Account | None:
        return await read_account(self._store, plan)

    async def change(self, plan: str, step: Step, exchange: Exchange | None = None, notice: str = "") -> Account:
        async def attempt() -> Account:
            register = await self._store.register(account_key(plan))
            account, exchanges = (Account(), 0) if register is None else register.read(_account_and_exchanges)
            account = step(account)
            writes: list[Write] = []
            if exchange is not None:
                exchanges += 1
                kept = _numbered(exchange, exchanges, self._store.clock())
                writes.append(PutRegister(f"{exchange_prefix(plan)}{kept.number:06d}", kept.to_json(), None))
            if notice:
                writes.append(Notice(self._store.clock(), "budget", notice))
            old, revision = ({}, None) if register is None else (register.value, register.revision)
            value = {**old, "account": account.to_json(), "exchanges": exchanges}
            await self._store.commit([PutRegister(account_key(plan), value, revision), *writes])
            return account

        async with self._lock:
            return await retry_on_conflict(attempt)

    async def exchanges(self, plan: str) -> list[Exchange]:
        registers = await self._store.registers(exchange_prefix(plan))
        return [register.read(Exchange.from_json) for register in registers]

    async def changed(self, plan: str, timeout: float) -> None:
        watch = self._store.watch(frozenset({for_plan(plan)}))
        try:
            await watch.wait(min(timeout, LOOK_INTERVAL))
        finally:
            watch.close()


def _account_and_exchanges(value: Any) -> tuple[Account, int]:
    return Account.from_json(value["account"]), int(value["exchanges"])


def _numbered(exchange: Exchange, number: int, at: float = 0.0) -> Exchange:
    return replace(exchange, number=number, at=at)


def joined(budget: Budget, defaults: Budget) -> Step:
    """The account of a plan whose edits this process proposes: with its budget if it is new, else as it is."""
    return lambda account: Account(defaults.raised(budget), given=budget) if account == Account() else account


def opened(budget: Budget, defaults: Budget | None = None, unpriced: str = "") -> Step:
    """The account of a plan that this process begins to edit: with its budget if it is new. What a person has raised or
    lowered stays, unless ``budget`` is another one than that of earlier processes. ``defaults`` are the limits that
    hold if neither names others, ``unpriced`` the models whose price is unknown. This process runs the plan:
    reservations of earlier processes count as spent."""
    lowest = defaults or Budget()

    def step(account: Account) -> Account:
        if account == Account():
            return Account(lowest.raised(budget), unpriced=unpriced, given=budget)
        account = account.abandoned().with_unpriced(unpriced)
        wider = lowest.raised(account.budget.raised(budget.changed_since(account.given)))
        kept = account if wider == account.budget else account.released()
        return replace(kept, budget=wider, given=account.given.raised(budget))

    return step


async def read_answers(cassette: Cassette, plan: str) -> dict[str, list[Exchange]]:
    """The exchanges of a plan by what they are about."""
    exchanges: dict[str, list[Exchange]] = {}
    for exchange in await cassette.exchanges(plan):
        exchanges.setdefault(exchange.about, []).append(exchange)
    return exchanges
