"""``ModelEditor``: a language model that edits plans while they run.

Each edit cycle is a conversation: a compact view of the change (``plan_prompt.py``), calls of the tool ``show_tasks``,
and an answer, which is a batch of edits. A batch that the plan rejects goes back with every violation. Every question
and answer goes into a cassette, in one commit with its price (``cassette.py``). The model decides nothing by itself:
its answers are checked like any other edit, by the plan, its rules for approvals and its scope.

Before each request the budget of the plan has to pay for the dearest answer to it. If it cannot, the editor waits for a
person (``EditorHeld``): the tasks below the ends under review are held, with the reason, and the rest of the plan goes
on. The budget is raised, or the plan goes on without its editor.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asterism.base.secret_mask import Mask
from asterism.base.text import plural
from asterism.core.plan.constellation import ConstellationView, TaskView
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.group_elements import tasks_added
from asterism.core.plan.task import needs_of
from asterism.durable.editor_budget import Account, Budget, Spent, edits_key
from asterism.models.answer_form import Form
from asterism.models.budget import (
    DEFAULT_BUDGET,
    BudgetSpent,
    Price,
)
from asterism.models.cassette import (
    Cassette,
    Exchange,
    MemoryCassette,
    StoreCassette,
    opened,
    read_answers,
)
from asterism.models.conversation import (
    Conversation,
    answer_key,
    costed,
    masked_events,
    return_answer,
    subject_of,
)
from asterism.models.device_aliases import ALIAS, DeviceAliases, alias_of
from asterism.models.edit_filter import EditFilter
from asterism.models.model_calls import ModelCaller, ModelFailed, require_extra
from asterism.models.paid_answers import MAX_STEPS, PaidAnswers, check_prices
from asterism.models.plan_prompt import PromptMemory, Surroundings, output_end, plan_prompt, violation_lines
from asterism.orchestrator.edit_cycles import CostedAnswer, Editor, EditorContext, EditorHeld
from asterism.orchestrator.events import EditEvent, Event, TaskEvent

MOST_CONVERSATIONS = 64
"""How many conversations of a plan are remembered, open ones and others."""


@dataclass(slots=True)
class _PlanState:
    """What the editor knows of one plan."""

    context: EditorContext | None = None
    memory: PromptMemory = field(default_factory=PromptMemory)
    conversations: dict[str, Conversation] = field(default_factory=dict)
    known: dict[str, list[Exchange]] | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    """How many calls wait for a person."""
    refusals: int = 0
    """How many refused answers that add tasks the account knows of."""
    aliased: frozenset[str] = frozenset()
    """The aliases of devices that earlier processes have shown."""
    device_names: frozenset[str] | None = None
    """The devices that the plan named before its editor did: names of its author."""


class ModelEditor(Editor):
    """A language model as the editor of plans: ``Orchestrator(devices, editor=ModelEditor("openai:gpt-5"))``.

    ``model``      its name, such as ``anthropic:claude-sonnet-5-5``, ``openai:gpt-5`` or ``openai-chat:NAME`` for any
                   endpoint that is compatible with OpenAI (``$OPENAI_BASE_URL``); or a model of pydantic-ai
    ``fallback``   models that are asked if it does not answer
    ``budget``     what may be spent on each plan; 200 calls and 500 tasks unless it names other limits of these
    ``ask``        which ends it is asked about: ``failure`` (default), ``all``, ``tasks=…``, ``when=…``, or several of
                   these; an EditFilter; or a function of the task
    ``goal``       what the plan is for; an empty plan is planned from it
    ``fleet``      the fleet of a plan in a store: the cassette and the budget are then kept in that store
    ``cassette``   where exchanges are kept; by default in memory, or in the store of ``fleet``
    ``prices``     prices of models that the public list does not have, by name
    ``answers``    ``tools`` or ``schema``: the form of its answers; None: it is found out with the first question
    ``max_steps``  how many requests one answer may take
    ``caller``     how models are called: timeouts, attempts
    """

    def __init__(
        self,
        model: Any,
        *,
        fallback: Sequence[Any] = (),
        budget: Budget | str | None = None,
        ask: str | Iterable[str] | EditFilter | Callable[[TaskView], bool] = "failure",
        goal: str = "",
        fleet: Any = None,
        cassette: Cassette | None = None,
        prices: Mapping[str, Price] | None = None,
        answers: Form | None = None,
        max_steps: int = MAX_STEPS,
        caller: ModelCaller | None = None,
    ) -> None:
        self._given = Budget.parse(budget) if isinstance(budget, str) else budget or Budget()
        self.budget = DEFAULT_BUDGET.raised(self._given)
        self.goal = goal
        self.starts_plans = bool(goal)
        self.edit_on = ask if callable(ask) else EditFilter.parse_all(ask)
        if caller is None:
            require_extra()
        self.caller = caller or ModelCaller([model, *fallback], prices=prices, answers=answers)
        check_prices(self.caller, self.budget)
        self.cassette: Cassette = cassette or (MemoryCassette() if fleet is None else StoreCassette(fleet.store))
        self._answers = PaidAnswers(self.caller, self.cassette, max_steps)
        self._fleet = fleet
        self._plans: dict[str, _PlanState] = {}
        self._jobs: set[asyncio.Task[None]] = set()

    # -- the editor of a plan ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of its model."""
        return self.caller.names[0]

    def attach_plan(self, plan_id: str, context: EditorContext) -> None:
        """A plan begins, maybe under the id of an earlier one; or it is continued, and what was answered is known."""
        before = self._plans.get(plan_id) if context.continued else None
        self._plans[plan_id] = _PlanState(context, PromptMemory() if before is None else before.memory)
        if not context.continued and isinstance(self.cassette, MemoryCassette):
            self.cassette.close_account(plan_id)

    async def edit(self, view: ConstellationView, events: Sequence[Event]) -> CostedAnswer:
        """The answer of the model to some ends. Raises ModelFailed, and EditorHeld if the budget is spent."""
        plan = self._plans.setdefault(view.id, _PlanState())
        account = await self._open_account(view.id, plan)
        await self._count_refusals(view.id, plan)
        about = subject_of(events)
        conversation = plan.conversations.get(about)
        if account.without_editor:
            return CostedAnswer(None, EditorCost())
        if conversation is None:
            conversation = plan.conversations[about] = await self._begin(plan, about, view, events)
        else:
            await self._rejected(conversation, events)
        return await self._answer(plan, conversation)

    async def _open_account(self, name: str, plan: _PlanState) -> Account:
        async with plan.opening:
            if plan.known is None:
                account = await self.cassette.change(
                    name, opened(self._given, DEFAULT_BUDGET, await self.caller.unpriced())
                )
                new = plan.context is not None and not plan.context.continued
                known = {} if new else await read_answers(self.cassette, name)
                recorded = [exchange for exchanges in known.values() for exchange in exchanges]
                plan.memory.entries = max([plan.memory.entries, *(exchange.entries for exchange in recorded)])
                plan.memory.names |= {self.name, *(exchange.editor for exchange in recorded if exchange.editor)}
                plan.aliased = frozenset(alias for exchange in recorded for alias in ALIAS.findall(exchange.question))
                plan.known = known
                return account
        return await self.cassette.account(name) or Account(self.budget)

    async def _begin(
        self, plan: _PlanState, about: str, view: ConstellationView, events: Sequence[Event]
    ) -> Conversation:
        known = (plan.known or {}).pop(about, [])
        mask = plan.context.mask() if plan.context is not None else Mask()
        aliases = await self._aliases(plan, view, events)
        if known:  # the question of an earlier process, as it was asked; the next one shows what happened since
            prompt, entries = json.loads(known[0].question)["messages"][0]["user"], known[0].entries
        else:
            around = replace(await self._surroundings(plan, view.id, events), aliases=aliases)
            if around.capabilities is not None:
                needed = frozenset[str]().union(*(needs_of(task.task) for task in view))
                around = replace(around, capabilities=around.capabilities | needed)
            prompt = mask.text(plan_prompt(view, masked_events(events, mask), plan.memory, around))
            entries = plan.memory.entries
        while len(plan.conversations) >= MOST_CONVERSATIONS:
            del plan.conversations[next(iter(plan.conversations))]
        return Conversation(about, view, mask, entries, [{"user": prompt}], known=known, aliases=aliases)

    async def _aliases(self, plan: _PlanState, view: ConstellationView, events: Sequence[Event]) -> DeviceAliases:
        """Aliases for the devices of a fleet, which have chosen their names. Devices of a plan in memory are those of
        its author."""
        if self._fleet is None:
            return DeviceAliases()
        if plan.device_names is None:
            named = {task.task.device for task in view if task.task.device is not None}
            plan.device_names = frozenset(name for name in named if alias_of(name) not in plan.aliased)
        joined = {session.device for session in await self._fleet.store.sessions(ended=True)}
        used = {event.device for event in events if isinstance(event, TaskEvent) and event.device}
        return DeviceAliases(joined | used, plan.device_names)

    async def _surroundings(self, plan: _PlanState, name: str, events: Sequence[Event]) -> Surroundings:
        failed = [event for event in events if isinstance(event, TaskEvent) and event.status == "failed"]
        if self._fleet is not None:
            from asterism.models.device_aliases import fleet_devices, known_capabilities, task_output

            devices, known = await fleet_devices(self._fleet), await known_capabilities(self._fleet)
            outputs = {
                failure.task_id: await task_output(self._fleet, name, failure.task_id, failure.epoch)
                for failure in failed
            }
        elif plan.context is not None:
            devices, known = list(plan.context.devices()), None
            logs = {failure.task_id: plan.context.logs(failure.task_id) for failure in failed}
            outputs = {task: attempts[-1].text for task, attempts in logs.items() if attempts}
        else:
            return Surroundings(goal=self.goal)
        mask = plan.context.mask() if plan.context is not None else Mask()
        shown = {task: output_end(text, mask) for task, text in outputs.items()}
        return Surroundings(devices, shown, self.goal, mask, capabilities=known)

    async def _rejected(self, conversation: Conversation, events: Sequence[Event]) -> None:
        """The plan has rejected the last answer: it goes back with every violation, and its tasks are not counted."""
        event = next(
            (candidate for candidate in reversed(events) if isinstance(candidate, EditEvent) and candidate.violations),
            None,
        )
        words = "the answer was rejected"
        if event is not None:
            lines = violation_lines(event.violations, conversation.mask, conversation.aliases)
            words = f"The plan rejected this answer:\n{lines}"
        return_answer(conversation, words)
        conversation.steps = 0
        if conversation.charged:
            rejected, conversation.charged = conversation.charged, ""
            await self.cassette.change(conversation.plan, lambda account: account.added(rejected, 0))

    def edit_refused(self, plan_id: str) -> None:
        """A person refused an answer, or nobody approved it in time."""
        job = asyncio.get_running_loop().create_task(self._count_refusals(plan_id, self._plans[plan_id]))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _count_refusals(self, name: str, plan: _PlanState) -> None:
        """Do not count the tasks of answers that were refused, here or while no process ran the plan."""
        refused_answers = (
            [] if plan.context is None else [answer for answer in plan.context.refused if tasks_added(answer.batch)]
        )
        if len(refused_answers) == plan.refusals:
            return

        def step(account: Account) -> Account:
            for answer in refused_answers:
                account = account.refused(answer.id, edits_key(answer.batch.edits))
            return account

        await self.cassette.change(name, step)
        plan.refusals = len(refused_answers)

    # -- one answer ----------------------------------------------------------------------------------------------------

    async def _answer(self, plan: _PlanState, conversation: Conversation) -> CostedAnswer:
        """Ask until there is an answer. If the budget is spent, raises EditorHeld, which continues here."""
        try:
            return await self._submit(plan, conversation, await self._answers.next(conversation))
        except BudgetSpent as spent:
            raise self._hold(plan, conversation, spent) from None
        except ModelFailed as failed:
            failed.cost, conversation.cost = conversation.cost, EditorCost()
            raise

    async def _resume(self, plan: _PlanState, conversation: Conversation, batch: EditBatch | None) -> CostedAnswer:
        """Go on when a person has decided: with the answer that waited for it, or with the next question."""
        account = await self.cassette.account(conversation.plan)
        if account is not None and account.without_editor:
            return costed(conversation, None)
        if batch is not None:
            return await self._submit(plan, conversation, batch)
        return await self._answer(plan, conversation)

    async def _submit(self, plan: _PlanState, conversation: Conversation, batch: EditBatch) -> CostedAnswer:
        """Count the tasks that an answer adds. They too have a budget."""
        added = tasks_added(batch)
        if added:
            answer = answer_key(conversation.about, batch.edits)
            try:
                await self._count_tasks(conversation.plan, answer, added)
            except BudgetSpent as spent:
                raise self._hold(plan, conversation, spent, batch) from None
            conversation.charged = answer
        return costed(conversation, batch)

    # -- the budget ----------------------------------------------------------------------------------------------------

    async def _count_tasks(self, name: str, answer: str, added: int) -> None:
        """Raises BudgetSpent."""

        def spend(account: Account) -> Account:
            counted = account.added(answer, added)
            needed = Spent(tasks=counted.spent.tasks - account.spent.tasks)
            obstacle = account.obstacle(needed)
            if obstacle is not None:
                words = f"{obstacle}, and the answer adds {plural(added, 'task')}"
                raise BudgetSpent(words, account, needed)
            return counted

        await self.cassette.change(name, spend)

    def _hold(
        self, plan: _PlanState, conversation: Conversation, spent: BudgetSpent, batch: EditBatch | None = None
    ) -> EditorHeld:
        """The editor has to wait for a person, and with it an answer, if there is one."""
        reason = f"the budget of its editor is spent: {spent}. {self._advice(conversation.plan, spent)}"
        cost, conversation.cost = conversation.cost, EditorCost()
        released = partial(self._released, conversation.plan, plan, spent, reason)
        return EditorHeld(reason, released, partial(self._resume, plan, conversation, batch), cost)

    def _advice(self, name: str, spent: BudgetSpent) -> str:
        limits = spent.account.higher_limits(spent.needed)
        if self._fleet is None:
            words = f"Raise it with raise_budget({name!r}, {limits!r})"
            return f"{words}, or let the plan go on with go_on_without_editor()"
        command = f"asterism plan budget {shlex.quote(name)} --store {shlex.quote(self._fleet.store.url)}"
        return f"Raise it: {command} --raise '{limits}'; or go on without an editor: {command} --without-editor"

    async def _released(self, name: str, plan: _PlanState, spent: BudgetSpent, reason: str) -> str:
        """Tell once that the editor waits, and wait until a person has decided, or the wait is over: then the plan goes
        on without its editor. Returns what was decided, for the story."""
        began, before = self._clock(), spent.account
        notice = f"plan {name!r} waits: {reason}" if not plan.waiting else ""
        plan.waiting += 1

        def hold(account: Account) -> Account:
            decided = account.without_editor or account.budget != before.budget
            return account if decided else account.held(began, str(spent), spent.needed)

        try:
            await self.cassette.change(name, hold, notice=notice)
            while True:
                account = await self.cassette.account(name) or before
                by = f" by {account.decided_by}" if account.decided_by else ""
                if account.without_editor:
                    return f"the plan goes on without its editor, decided{by}"
                if account.budget != before.budget:
                    return f"the budget is now {account.budget}, changed{by}"
                if account.spent.tasks < before.spent.tasks:
                    return "an edit was refused, and the tasks that it would have added are not counted"
                if account.held_until is None:
                    return f"the budget stays {account.budget}, decided{by}"
                left = account.held_until - self._clock()
                if left <= 0:
                    await self.cassette.change(name, lambda current: current.ended_editing("the end of its time"))
                    continue
                await self.cassette.changed(name, left)
        finally:
            plan.waiting -= 1

    def _clock(self) -> float:
        return asyncio.get_running_loop().time() if self._fleet is None else self._fleet.store.clock()

    def raise_budget(self, plan: str, budget: Budget | str, by: str = "") -> Account:
        """Raise the budget of a plan in memory; its editor continues."""
        wider = Budget.parse(budget) if isinstance(budget, str) else budget
        return self._memory().change_now(plan, lambda account: account.raised(wider, by))

    def go_on_without_editor(self, plan: str, by: str = "") -> Account:
        """Let a plan in memory go on without its editor."""
        return self._memory().change_now(plan, lambda account: account.ended_editing(by))

    def _memory(self) -> MemoryCassette:
        if not isinstance(self.cassette, MemoryCassette):
            raise TypeError("the budget of this plan is in a store: use asterism.durable.raise_budget")
        return self.cassette

    def trace_attributes(self) -> Mapping[str, Any]:
        """Attributes of the last call in this task, named by the conventions of OpenTelemetry."""
        return self._answers.trace_attributes
