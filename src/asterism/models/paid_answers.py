"""Answers of models that are paid for: one conversation at a time asks until there is a batch of edits.

Before each request the account of the plan has to pay for the dearest answer to it; afterwards it is settled with what
it has cost, in one commit with the exchange (``cassette.py``). ``ModelEditor`` asks about ends of tasks, and
``EditProposer`` about requests of people.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import secrets
from collections.abc import AsyncIterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import EditBatch
from asterism.core.record import replace
from asterism.durable.editor_budget import Account, Budget, InvalidBudget, Spent
from asterism.models.budget import (
    LEAST_OUTPUT,
    BudgetSpent,
    Reserved,
    dearest,
    estimated_tokens,
    room_for_output,
    room_for_time,
)
from asterism.models.cassette import Cassette, Exchange
from asterism.models.conversation import Conversation, no_answer, read_answer
from asterism.models.model_calls import MAX_OUTPUT, Bill, ModelCaller, ModelFailed
from asterism.models.model_messages import ModelAnswer, ModelQuestion, call_attributes

MAX_STEPS = 8
"""How many requests one answer may take, with calls of tools and unreadable answers."""

RESERVED_WAIT = 60.0
"""Seconds between two looks at a budget that other calls have reserved, without being woken."""

RESERVED_MARGIN = 60.0
"""Seconds after the timeout of a call after which what is reserved for it counts as spent: its process has died."""

LOST_TIMEOUT = 5.0
"""Seconds in which a call that is cancelled tries to count what it has reserved as spent."""


def check_prices(caller: ModelCaller, budget: Budget) -> None:
    """Raise InvalidBudget if a budget limits dollars, and the price of a model is unknown."""
    unknown = [] if budget.dollars is None else [name for name in caller.names if caller.price(name) is None]
    if unknown:
        raise InvalidBudget(_price_unknown(", ".join(unknown)))


def _price_unknown(models: str) -> str:
    return (
        f"the budget limits dollars, and the price of {models} is unknown: give it with prices= "
        "(--price IN/OUT, dollars for a million tokens), or limit tokens or calls instead"
    )


class PaidAnswers:
    """``max_steps`` is how many requests one answer may take, ``patience`` how many seconds a request waits for what
    other calls have reserved. ``budget`` is a limit beside that of the account."""

    def __init__(
        self,
        caller: ModelCaller,
        cassette: Cassette,
        max_steps: int = MAX_STEPS,
        patience: float = math.inf,
        budget: Budget | None = None,
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps must be 1 or more, not {max_steps}")
        self.caller, self.cassette, self._max_steps = caller, cassette, max_steps
        self._patience, self.budget, self._calls = patience, budget, count(1)
        self._process = secrets.token_hex(4)  # an owner that was cut off may still settle its own calls
        self._lost: set[str] = set()  # calls that were cancelled

    @property
    def name(self) -> str:
        """The name of the first model."""
        return self.caller.names[0]

    @property
    def trace_attributes(self) -> Mapping[str, Any]:
        """Attributes of the last call in this task, named by the conventions of OpenTelemetry."""
        return _trace_attributes.get({})

    async def next(self, conversation: Conversation) -> EditBatch:
        """Ask until there is a batch. Raises ModelFailed, and BudgetSpent: the conversation can then be continued."""
        while conversation.steps < self._max_steps:
            answer = await self._ask(conversation)
            conversation.steps += 1
            batch = read_answer(conversation, answer)
            if batch is not None:
                return batch
        raise no_answer(conversation, self.name, self._max_steps)

    async def _ask(self, conversation: Conversation) -> ModelAnswer:
        """One answer: from the cassette if an earlier process has paid for it, else from a model."""
        question = conversation.question
        if conversation.known and conversation.known[0].question == question.text:
            known = conversation.known.pop(0)
            conversation.cost += known.cost  # its process died before its cycle closed, so no cycle has counted it
            return known.answer
        conversation.known.clear()
        paid: list[tuple[str, EditorCost]] = []
        answer = await self.caller.ask(question, partial(self._paid, conversation, paid))
        cost = sum((call_cost for _, call_cost in paid), EditorCost())
        exchange = Exchange(
            number=0,  # the cassette counts
            about=conversation.about,
            question=question.text,
            answer=answer,
            cost=cost,
            entries=conversation.entries,
            editor=self.name,
        )
        await self._settle(conversation, *paid[-1], exchange)
        _trace_attributes.set(call_attributes(answer, cost))
        return answer

    @contextlib.asynccontextmanager
    async def _paid(
        self, conversation: Conversation, paid: list[tuple[str, EditorCost]], question: ModelQuestion, model: str
    ) -> AsyncIterator[Bill]:
        """Reserve what a request may cost at most, and add to ``paid`` what it has cost. One that fails is settled at
        once: the next attempt must not wait for it. The one that is answered is settled with its exchange. Raises
        BudgetSpent."""
        call = f"{model} {self._process} {next(self._calls)}"
        bill = await self._reserve(conversation.plan, call, estimated_tokens(question.text), model)
        try:
            yield bill
        except BaseException:
            if bill.cost is None:  # it was cancelled, and its cost is unknown
                await self._lose(conversation.plan, call)
            else:
                paid.append((call, bill.cost))
                await self._settle(conversation, call, bill.cost)
            raise
        paid.append((call, bill.cost or EditorCost()))

    async def _reserve(self, name: str, call: str, reads: int, model: str) -> Bill:
        """Reserve the price of the dearest answer. The bill says how long that may be, and take. Raises BudgetSpent,
        and ModelFailed if the budget limits dollars, and the price is unknown."""
        bill, cassette, price = Bill(), self.cassette, self.caller.price(model)
        until = cassette.clock() + self._patience

        def reserve(account: Account) -> Account:
            account = account.expired(cassette.clock()).lost(self._lost)
            limited = account if self.budget is None else account.bounded(self.budget)
            if price is None and limited.budget.dollars is not None:
                raise ModelFailed(_price_unknown(model))
            bill.max_output = room_for_output(limited, reads, price, MAX_OUTPUT)
            bill.seconds = room_for_time(limited, self.caller.timeout)
            needed = dearest(reads, max(bill.max_output, LEAST_OUTPUT), price, bill.seconds)
            obstacle = limited.obstacle(needed)
            waits = cassette.clock() < until and replace(limited, open={}).obstacle(needed) is None
            if obstacle is not None and waits:
                raise Reserved(min(account.ends.values(), default=math.inf))
            if obstacle is not None:
                raise BudgetSpent(obstacle, limited, needed)
            account = account if price is not None else account.with_unpriced(model)
            seconds = self.caller.timeout if bill.seconds is None else bill.seconds
            return account.reserve(call, needed, cassette.clock() + seconds + RESERVED_MARGIN)

        while True:
            try:
                await cassette.change(name, reserve)
                return bill
            except Reserved as reserved:  # other calls may cost less than what is reserved for them
                left = min(reserved.end, until) - cassette.clock()
                await cassette.changed(name, min(RESERVED_WAIT, max(left, 0.0)))
            except asyncio.CancelledError:  # it may have been written
                await self._lose(name, call)
                raise

    async def _settle(
        self, conversation: Conversation, call: str, cost: EditorCost, exchange: Exchange | None = None
    ) -> None:
        conversation.cost += cost
        spent = Spent.of(cost)

        def settle(account: Account) -> Account:  # what has counted as spent is not counted again
            return account.settle(call, spent) if call in account.open else account

        try:
            await self.cassette.change(conversation.plan, settle, exchange)
        except asyncio.CancelledError:
            await self._lose(conversation.plan, call)
            raise
        except BaseException:  # if it was not settled, what is reserved counts as spent
            self._lost.add(call)
            raise

    async def _lose(self, plan: str, call: str) -> None:
        """The cost of a call is unknown: what is reserved for it counts as spent, at once if the store can be reached.
        Otherwise this process tells it with its next call, or another one when the time of the call is over."""
        self._lost.add(call)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LOST_TIMEOUT):
                await asyncio.shield(self.cassette.change(plan, lambda account: account.lost([call])))


_trace_attributes: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("trace_attributes")
