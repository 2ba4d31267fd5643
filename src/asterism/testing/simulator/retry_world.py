"""Retry worlds: a plan ends, people retry it from machines that crash, and orchestrators that crash continue it.

Everything of a plan world happens. Each time the plan has ended, a person retries it: what failed, or a task and
everything below it. The person's machine may die just before the commit that reopens the plan, or just after it. With
``dies_at``, the first orchestrator after each retry dies at that commit.

A retry must happen exactly as it was answered: once if it was accepted, never if it was refused, and at most once if
the person never learned the answer. No task may complete more often than it was run again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asterism.base import expressions
from asterism.core.errors import PlanError
from asterism.durable.journal_store import load
from asterism.durable.plan_retry import reopen_plan
from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import StoreUnavailable
from asterism.testing.simulator.machines import Machine
from asterism.testing.simulator.plan_world import PLAN, DoomedWire, PlanWorld

MOST_RETRIES = 4
PATIENCE = 60.0
"""How long a person waits for the answer to a retry, in simulated seconds."""


class RetryWorld(PlanWorld):
    """A plan world whose plan is retried each time it has ended."""

    def __init__(self, seed: int, **terms: Any) -> None:
        super().__init__(seed, **terms)
        self.retries: dict[str, str] = {}  # the answer to each retry, by its author

    async def reopened(self) -> bool:
        if len(self.retries) == MOST_RETRIES:
            return False
        author = f"retrier-{len(self.retries)}"
        self.retries[author] = "unknown"
        self.retries[author] = await self._retry(author)
        self.checker.note(f"the retry of {author} was {self.retries[author]}")
        self._orchestrators_started = 0  # the next one may die at a commit, too
        return True

    async def _retry(self, author: str) -> str:
        machine = Machine(author, self.chance.uniform(0.97, 1.03), 0.0)
        dies_at, after = self.chance.choice([None, None, 1]), self.chance.random() < 0.5
        wire = DoomedWire(self.store, machine, self.chance, self._gives_up, dies_at=dies_at, after=after)
        fleet = Fleet(wire, by=author, clock=machine, chance=self.chance)
        tasks = list((await load(self.store, PLAN, expressions)).plan.nodes)
        first = [self.chance.choice(tasks)] if self.chance.random() < 0.3 else []
        retry = asyncio.create_task(reopen_plan(fleet, PLAN, from_tasks=first))
        await asyncio.wait([retry], timeout=PATIENCE)
        if not retry.done():  # the machine is dead
            retry.cancel()
            return "unknown"
        error = retry.exception()
        if error is None:
            return "accepted"
        if isinstance(error, StoreUnavailable):
            return "unknown"
        if isinstance(error, PlanError):
            return "refused"
        raise error

    async def _check(self) -> None:
        await super()._check()
        story = (await load(self.store, PLAN, expressions)).plan.story()
        allowed = {"accepted": (1,), "refused": (0,), "unknown": (0, 1)}
        for author, answer in self.retries.items():
            times = sum(entry.what == "reopened" and entry.why == f"by {author}" for entry in story)
            if times not in allowed[answer]:
                self.checker.broken(f"the retry of {author} was {answer}, and happened {times} times")
