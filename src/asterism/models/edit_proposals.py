"""Edits for a request in words: ``EditProposer`` shows a plan and the request to a model, and returns what it proposes.

A person asks, looks at the proposal, and asks for something else or applies it. Each round is one call of ``propose``
with all requests and all answers so far, so nothing is remembered between rounds. The model reads the plan as it is at
each round, through operations of a system: a store that is opened here, or a server. Its edits are checked as a dry run
of the edit that would apply them, in the name of the model: scopes of editors, taint and rules for approvals hold, and
violations go back to the model. Nothing here changes a plan.

Where the store is open, the model is paid from the account of the plan, and the exchanges are kept with it. At a
server the caller pays: the account is that of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import Mapping
from typing import Any

from asterism.api import documents
from asterism.api.client_errors import NotAllowed, NotFound
from asterism.api.local.plan_documents import change_lines
from asterism.api.operation import NoProposal
from asterism.api.operations import OPERATIONS
from asterism.api.plan_operations import MOST_REQUEST, ProposeEdit
from asterism.api.system import LocalSystem, System
from asterism.base.http_limits import RequestRefused
from asterism.base.secret_mask import HIDDEN, Mask
from asterism.base.text import plural, shorten
from asterism.core.errors import EditRejected, Violation
from asterism.core.plan.constellation import Constellation, ConstellationView
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.group_elements import tasks_added
from asterism.core.plan.status import CANCELLED, FAILED, TERMINAL
from asterism.core.plan.task import needs_of
from asterism.core.record import replace
from asterism.durable.editor_budget import Account, Budget, Spent, count_refusals
from asterism.models.budget import DEFAULT_BUDGET, BudgetSpent
from asterism.models.cassette import Cassette, MemoryCassette, StoreCassette, joined
from asterism.models.conversation import Conversation, masked_events, return_answer
from asterism.models.device_aliases import DeviceAliases, known_capabilities
from asterism.models.model_calls import ModelCaller, ModelFailed, ModelMissing
from asterism.models.model_messages import ToolCall
from asterism.models.paid_answers import MAX_STEPS, RESERVED_MARGIN, PaidAnswers, check_prices
from asterism.models.plan_prompt import MOST_ENDS, Surroundings, output_end, request_prompt, violation_lines
from asterism.orchestrator.events import TaskEvent, end_event
from asterism.orchestrator.plan_mask import PlanMask

MOST_ANSWER = 100_000
"""How many characters the JSON of an earlier answer may have: the model reads each again, and is paid for it."""

MAX_REJECTIONS = 3
"""How many answers of one round the plan may reject."""

MOST_OUTPUTS = 4
"""Of how many failed tasks a prompt shows the end of the output."""

MOST_DEVICES = 1000
"""How many devices are read."""


class EditProposer:
    """``budget`` is what the model may spend on each plan; 200 calls and 500 tasks unless it names other limits. If a
    plan has an account with other limits, those hold, too.
    ``max_steps`` is how many requests one answer may take, ``max_rejections`` how many answers of one round the plan
    may reject."""

    def __init__(
        self,
        caller: ModelCaller,
        budget: Budget | None = None,
        *,
        max_steps: int = MAX_STEPS,
        max_rejections: int = MAX_REJECTIONS,
    ) -> None:
        self._caller, self._given = caller, budget or Budget()
        self._max_steps, self._max_rejections = max_steps, max_rejections
        check_prices(caller, self._given)
        self._own = MemoryCassette()

    @property
    def name(self) -> str:
        """The editor that the edits come from."""
        return self._caller.names[0]

    async def propose(self, system: System, request: ProposeEdit) -> documents.EditProposal:
        """See ``Proposer`` of ``api/system.py``."""
        request = _checked(request)
        cassette: Cassette = StoreCassette(system.fleet.store) if isinstance(system, LocalSystem) else self._own
        patience = self._caller.timeout + RESERVED_MARGIN
        answers = PaidAnswers(self._caller, cassette, self._max_steps, patience, self._given)
        round_ = _Round(system, request, answers, self._max_rejections)
        await _check_possible(system, request, self.name)
        try:
            conversation = await round_.conversation()
            await cassette.change(request.plan, joined(self._given, DEFAULT_BUDGET))
            if isinstance(system, LocalSystem):
                await count_refusals(system.fleet.store, request.plan)
            return await round_.answer(conversation)
        except BudgetSpent as spent:
            account = await cassette.account(request.plan) or Account()
            raise NoProposal(_spent_text(request.plan, system, spent, account)) from None
        except (ModelFailed, ModelMissing) as error:
            raise NoProposal(
                f"{shorten(str(error), 1000).rstrip('.')}. Plan {request.plan!r} has not changed"
            ) from None


def _checked(request: ProposeEdit) -> ProposeEdit:
    """The request without the space around its texts. Raises RequestRefused, before anything is paid for."""
    requests = [text.strip() for text in request.requests]
    if not all(requests):
        raise RequestRefused(422, "requests: one is blank; say what to change")
    if len(request.answers) != len(requests) - 1:
        raise RequestRefused(422, "answers: there is one for each request but the last")
    for texts, field, most in ((requests, "requests", MOST_REQUEST), (request.answers, "answers", MOST_ANSWER)):
        longest = max((len(text if isinstance(text, str) else json.dumps(text)) for text in texts), default=0)
        if longest > most:
            raise RequestRefused(422, f"{field}: one has {longest:,} characters; the limit is {most:,}")
    return replace(request, requests=requests)


async def _check_possible(system: System, request: ProposeEdit, editor: str) -> None:
    """Raise what every edit for a request would meet, before the model is paid: a plan that is being cancelled, or a
    server that does not know editors of edits."""
    try:
        await system.edit_plan(request.plan, [], request.requests[-1], dry_run=True, editor=editor)
    except EditRejected:
        if (await system.show_plan(request.plan, tasks=False)).state == CANCELLED:
            raise
        # a new task reopens any other plan that has ended


def _spent_text(plan: str, system: System, spent: BudgetSpent, account: Account) -> str:
    limits = spent.account.higher_limits(spent.needed)
    how = f"--budget '{limits}'"
    if isinstance(system, LocalSystem) and account.obstacle(spent.needed) is not None:
        how = f"asterism plan budget {shlex.quote(plan)} --raise '{limits}'"
    return f"the budget of the model is spent: {spent}. Raise it: {how}"


class _Round:
    """One round: the request that is answered, and those before it."""

    def __init__(self, system: System, request: ProposeEdit, answers: PaidAnswers, max_rejections: int) -> None:
        self._system, self._request, self._answers = system, request, answers
        self._max_rejections = max_rejections
        self._plan: Constellation | None = None

    async def conversation(self) -> Conversation:
        """The question to the model: the plan as it is, the first request, and the rounds since."""
        request = self._request
        copy = await self._system.copy_plan(request.plan, True)
        plan, mask = await asyncio.to_thread(_read, copy.plan)  # a large plan takes its time
        self._plan = plan
        view, ends = ConstellationView(plan), _ends(plan, copy.now)
        around = await self._surroundings(plan, ends, mask)
        shown = [event for event in masked_events(ends, mask) if isinstance(event, TaskEvent)]
        first, *later = request.requests
        prompt = request_prompt(view, first, shown, around, later)
        messages: list[Mapping[str, Any]] = [{"user": mask.text(prompt)}]
        for number, (answer, text) in enumerate(zip(request.answers, request.requests[1:], strict=True), 1):
            messages += _earlier_round(number, mask.data(answer), mask.text(text), around.aliases)
        about = json.dumps(["request", len(request.requests), mask.text(request.requests[-1])], ensure_ascii=False)
        return Conversation(about, view, mask, 0, messages, aliases=around.aliases)

    async def _surroundings(self, plan: Constellation, ends: list[TaskEvent], mask: Mask) -> Surroundings:
        devices: list[documents.Device] = []
        caller = self._system.caller if isinstance(self._system, LocalSystem) else None
        hidden = caller is not None and not caller.allows(OPERATIONS["list_devices"].needs)
        with contextlib.suppress(NotAllowed):  # who may edit one plan need not see the fleet
            devices = [] if hidden else (await self._system.list_devices()).items[:MOST_DEVICES]
        nodes = plan.nodes.values()
        kept = {node.task.device for node in nodes if node.task.device is not None}
        used = {node.device for node in nodes if node.device is not None}
        aliases = DeviceAliases({device.name for device in devices} | used, kept)
        needed = frozenset[str]().union(*(needs_of(node.task) for node in nodes))
        known = await known_capabilities(self._system.fleet) if isinstance(self._system, LocalSystem) else frozenset()
        there = [(aliases.shown(device.name), device.can, device.slots) for device in devices if not device.draining]
        outputs = await self._outputs(ends, mask)
        return Surroundings(there, outputs, mask=mask, aliases=aliases, capabilities=known | needed)

    async def _outputs(self, ends: list[TaskEvent], mask: Mask) -> dict[str, str]:
        outputs = {}
        assert self._plan is not None
        nodes = self._plan.nodes
        failed = [end for end in ends if end.status == FAILED and nodes[end.task_id].task.foreach is None]
        for end in failed[:MOST_OUTPUTS]:
            with contextlib.suppress(NotAllowed, NotFound):
                log = await self._system.read_task_logs(self._request.plan, end.task_id)
                text = "\n".join(entry.text for entry in log.items)
                outputs[end.task_id] = output_end(text, mask)
        return outputs

    async def answer(self, conversation: Conversation) -> documents.EditProposal:
        """Ask until the plan would accept an answer. Raises EditRejected with the violations of the last one."""
        for rejections in range(self._max_rejections + 1):
            batch = await self._answers.next(conversation)
            try:
                outcome = await self._tried(conversation, batch)
            except EditRejected as rejected:
                if rejections == self._max_rejections:
                    raise
                lines = violation_lines(rejected.violations, conversation.mask, conversation.aliases)
                return_answer(conversation, f"The plan rejected this answer:\n{lines}")
                conversation.steps = 0
                continue
            changes = list(change_lines(batch.edits, self._plan))  # a person sees all that would be executed
            return documents.EditProposal(
                outcome=replace(outcome, changes=changes),
                reason=batch.reason,
                base_version=conversation.view.base_version,
                editor=self._answers.name,
                cost=conversation.cost,
            )
        raise AssertionError

    async def _tried(self, conversation: Conversation, batch: EditBatch) -> documents.EditOutcome:
        """What a batch would do. Raises EditRejected, and BudgetSpent if it adds more tasks than the budget allows."""
        account = await self._answers.cassette.account(self._request.plan) or Account()
        account = account.bounded(self._answers.budget or Budget())
        needed = Spent(tasks=tasks_added(batch))
        obstacle = account.obstacle(needed)
        if obstacle is not None:
            words = f"{obstacle}, and the answer adds {plural(needed.tasks, 'task')}"
            raise BudgetSpent(words, account, needed)
        edits = [edit.to_json() for edit in batch.edits]
        _check_secrets(edits)
        return await self._system.edit_plan(
            self._request.plan,
            edits,
            self._request.requests[-1],
            conversation.view.base_version,
            dry_run=True,
            editor=self._answers.name,
        )


def _read(data: Mapping[str, Any]) -> tuple[Constellation, Mask]:
    """A plan, and the mask of its secrets."""
    plan = Constellation.from_json(data)
    return plan, PlanMask(plan)()


def _ends(plan: Constellation, now: float) -> list[TaskEvent]:
    """The ends that a prompt shows: those of failed tasks before others, the newest first."""
    nodes = [node for node in plan.nodes.values() if node.status in TERMINAL]
    nodes.sort(key=lambda node: (node.status == FAILED, node.ended_at or 0.0), reverse=True)
    return [end_event(plan.id, node, now) for node in nodes[:MOST_ENDS]]


def _earlier_round(
    number: int, answer: Mapping[str, Any], text: str, aliases: DeviceAliases
) -> list[Mapping[str, Any]]:
    """What was proposed before, and what the person says to it."""
    edits = answer.get("edits")
    said = {"edits": aliases.shown_in_edits(edits if isinstance(edits, list) else []), "reason": answer.get("reason")}
    call = ToolCall(f"round-{number}", "answer", json.dumps(said, ensure_ascii=False))
    told = f"These edits were not applied. The person asks for something else:\n{text}\n\nAnswer with all edits again."
    return [{"assistant": "", "calls": [list(call)]}, call.reply(told)]


def _check_secrets(edits: list[dict[str, Any]]) -> None:
    """Raise EditRejected if an edit has the mark of a secret, which the model has read in place of its value."""
    found = [number for number, edit in enumerate(edits) if HIDDEN in json.dumps(edit, ensure_ascii=False)]
    if found:
        words = f'{HIDDEN} stands for a value that is not shown; refer to a secret by its name: {{"secret": "NAME"}}'
        raise EditRejected([Violation(number, "secret", words) for number in found])
