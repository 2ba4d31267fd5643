"""The world of a stored plan: looks in the store for the events and plans that its tasks wait for.

One job for a plan, whatever it waits for, and none as long as it waits for nothing. It is woken when an event is sent
and looks again from time to time. An event is taken in the commit that ends the task (``fleet/sent_events.py``), so the
journal decides about it: before that commit nothing has happened, and the next owner finds the event again. Plans that
are awaited are followed by their journals (``PlanFollower``).

No event is missed: the number of the last event is read before the events of a name are looked up, and what has a
greater number is looked at afterwards.
"""

from __future__ import annotations

import asyncio
import logging

from asterism.base.clock import first_of
from asterism.base.error_log import RecurringError
from asterism.core.errors import error_text
from asterism.core.plan.awaited import (
    KeptEvent,
    WaitFailed,
    awaited_plan,
    awaited_text,
    deadline,
    event_for,
    timeout_error,
)
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import UnreadableJournal
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, ENDED_STATES
from asterism.durable.journal_store import UnknownConstellation
from asterism.durable.journal_writer import JournalWriter
from asterism.durable.plan_history import PlanFollower
from asterism.fleet.sent_events import (
    EventTaker,
    SentEvent,
    events_of,
    last_number,
    name_of,
    takers_of,
    taking,
)
from asterism.orchestrator.execution import Execution
from asterism.store.protocol import EVENTS_SENT, Store, Watch

log = logging.getLogger("asterism.durable")

EVENT_INTERVAL = 5.0
"""Seconds between two looks for events without being woken."""

PLAN_INTERVAL = 2.0
"""Seconds between two looks at the plans that are awaited."""

PLANS_PER_LOOK = 100
"""How many plans one look reads. The others have their turn in the next looks."""

MOST_BEHIND = 1000
"""If more events were sent since the last look, all names are looked up instead of each of them."""

NODES_PER_TURN = 50
"""How many tasks an event continues before other callbacks of the loop get a turn."""


Awaited = dict[str, dict[Node, None]]
"""The tasks that wait, by what they wait for."""


class AwaitedWorld:
    """See the module. ``journal`` writes the plan of ``execution``."""

    def __init__(self, store: Store, journal: JournalWriter, execution: Execution) -> None:
        self._store, self._journal = store, journal
        self._execution, self._plan = execution, execution.plan
        self._by_event: Awaited = {}
        self._by_plan: Awaited = {}
        self._places: dict[Node, tuple[Awaited, str]] = {}
        self._followers: dict[str, PlanFollower] = {}
        self._new: dict[str, None] = {}  # names of events for which a task has begun to wait
        self._late: dict[Node, None] = {}  # tasks whose time is up: one more look, and then they fail
        self._called = asyncio.Event()
        self._taken: set[int] = set()  # events that this owner has taken for its plan
        self._seen: int | None = None  # the last event that was looked at; None if no event is awaited

    # -- what is awaited -----------------------------------------------------------------------------------------------

    def look_for(self, node: Node) -> None:
        wait = node.task.wait_for or {}
        if "event" in wait:
            self._new[wait["event"]] = None
            self._add(self._by_event, wait["event"], node)
            return
        try:
            name = awaited_plan(wait)
            if name == self._plan.id:
                raise WaitFailed(f"{awaited_text(wait)} is in this plan: name it in 'after' instead")
        except WaitFailed as error:
            self._execution.waits.fail(node, error)
        else:
            self._add(self._by_plan, name, node)

    def _add(self, awaited: Awaited, name: str, node: Node) -> None:
        awaited.setdefault(name, {})[node] = None
        self._places[node] = awaited, name
        self._called.set()

    def forget(self, node: Node) -> None:
        if node not in self._places:  # it waits for a time
            return
        self._late.pop(node, None)
        awaited, name = self._places.pop(node)
        del awaited[name][node]
        if not awaited[name]:
            del awaited[name]

    def time_is_up(self, node: Node) -> None:
        self._late[node] = None
        self._called.set()

    # -- looking -------------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Look for what is awaited, until this is cancelled."""
        what = f"plan {self._plan.id} cannot look for what its tasks wait for"
        trouble = RecurringError(log, what, f"plan {self._plan.id} looks again", self._execution.now)
        await self._called.wait()
        watch = self._store.watch(frozenset({EVENTS_SENT}))
        try:
            while True:
                self._called.clear()
                try:
                    await self._look()
                    trouble.recovered()
                except Exception as error:  # nobody else looks for this plan
                    trouble.occurred(error)
                await self._until_called(watch)
        finally:
            watch.close()

    async def _look(self) -> None:
        late = tuple(self._late)
        await self._look_for_events()
        await self._look_at_plans()
        for node in late:
            if node in self._late:
                self._execution.waits.fail(node, timeout_error(node.task.wait_for or {}))

    async def _until_called(self, watch: Watch) -> None:
        """Wait until an event was sent, a task begins to wait, or it is time to look again."""
        await first_of(watch.wait(PLAN_INTERVAL if self._by_plan else EVENT_INTERVAL), self._called.wait())

    async def _look_for_events(self) -> None:
        names, self._new = self._new, {}
        if not self._by_event:
            self._seen = None
            return
        try:
            last = await last_number(self._store)
            if self._seen is None or last - self._seen > MOST_BEHIND:
                names = dict.fromkeys(self._by_event)
            else:
                sent = [await name_of(self._store, number) for number in range(self._seen + 1, last + 1)]
                names |= {name: None for name in sent if name is not None}
            for name in names if last else ():
                await self._continue(name)
        except BaseException:
            self._new = names | self._new
            raise
        self._seen = last

    async def _continue(self, name: str) -> None:
        """Continue the tasks that wait for events of this name, if there is one for this plan."""
        if name not in self._by_event:
            return
        sent = {event.number: event for event in await events_of(self._store, name)}
        file, began_at = self._plan.source or self._plan.id, self._journal.head.created_at
        taken = await takers_of(self._store, name, file)
        takers = {number: {taker.plan for taker in plans} for number, plans in taken.items()}
        kept = event_for(
            [KeptEvent(number, event.at) for number, event in sent.items()], takers, self._plan.id, began_at
        )
        if kept is None:
            return
        if self._plan.id in takers.get(kept.number, ()):
            self._taken.add(kept.number)
        for index, node in enumerate(list(self._by_event.get(name, ()))):
            if index % NODES_PER_TURN == NODES_PER_TURN - 1:
                await asyncio.sleep(0)
            if node in self._by_event.get(name, ()) and self._in_time(node, kept.at):
                self._take(node, sent[kept.number], file, later=kept.at < began_at)

    def _in_time(self, node: Node, at: float) -> bool:
        """Whether what came at a time came before the timeout of a task. Nobody may have looked for a while."""
        limit = deadline(node.task.wait_for or {}, node.awaited_since or at)
        return limit is None or at <= limit

    def _take(self, node: Node, event: SentEvent, file: str, *, later: bool) -> None:
        if event.number not in self._taken:
            self._taken.add(event.number)
            taker = EventTaker(self._plan.id, self._execution.now(), node.id)
            self._journal.stage(taking(event, file, taker, later=later))
        self._execution.waits.complete(node, event.data)

    # -- other plans ---------------------------------------------------------------------------------------------------

    async def _look_at_plans(self) -> None:
        urgent = {name for awaited, name in map(self._places.__getitem__, self._late) if awaited is self._by_plan}
        for name in [*urgent, *list(self._by_plan)[:PLANS_PER_LOOK]]:
            if name in self._by_plan:
                self._by_plan[name] = self._by_plan.pop(name)  # behind the others
            plan = await self._read(name)
            if plan is not None:
                for node in list(self._by_plan.get(name, ())):
                    self._judge(node, plan)
        for name in self._followers.keys() - self._by_plan.keys():
            del self._followers[name]

    async def _read(self, name: str) -> Constellation | None:
        """A plan as it is now; None if there is none, or if it cannot be read."""
        try:
            if name not in self._followers:
                self._followers[name] = await PlanFollower.open(self._store, name)
            follower = self._followers[name]
            while events := await follower.read():
                if events[-1].kind == "gone":
                    raise UnknownConstellation(f"plan {name!r} was removed")
        except (UnknownConstellation, UnreadableJournal) as error:
            log.debug("plan %s waits for plan %s: %s", self._plan.id, name, error)
            self._followers.pop(name, None)
            return None
        return follower.plan

    def _judge(self, node: Node, plan: Constellation) -> None:
        """End the wait for a task of another plan, if that has completed or never will."""
        wait = node.task.wait_for or {}
        other = plan.nodes.get(wait["task"])
        completed = other is not None and other.status is COMPLETED and self._in_time(node, other.ended_at or 0.0)
        if plan.tainted and (completed or plan.state in ENDED_STATES):  # an error may have data of strangers, too
            self._plan.add_taint(node, self._execution.now(), f"of plan {plan.id!r}, which has taint")
        if other is not None and completed:
            self._execution.waits.complete(node, other.value)
        elif other is not None and other.status is COMPLETED:
            self._execution.waits.fail(node, timeout_error(wait))
        elif plan.state in ENDED_STATES:
            state = str(plan.state).replace("_", " ")
            if other is None:
                why = "it has no such task"
            else:
                reason = error_text(other.error) or other.reason
                why = f"the task is {other.status}" + (f" ({reason})" if reason else "")
            error = WaitFailed(f"{awaited_text(wait)} did not complete: plan {plan.id!r} is {state}, and {why}")
            self._execution.waits.fail(node, error)
