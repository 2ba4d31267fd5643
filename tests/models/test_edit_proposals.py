"""Requests in words become edits: several rounds, with the limits of editors, on a store and at a server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from asterism.api.client import AsyncClient
from asterism.api.client_errors import ApiError, NotAllowed
from asterism.api.documents import EditOutcome, EditProposal
from asterism.api.operation import NoProposal
from asterism.api.plan_operations import PROPOSAL_LASTS, ProposeEdit
from asterism.api.system import LocalSystem, System
from asterism.base.http_limits import RequestRefused
from asterism.base.secret_mask import Mask
from asterism.cli.plan.plan_watch import end_cancelled
from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.constellation import Constellation, ConstellationView
from asterism.core.plan.edits import EditWaits
from asterism.core.record import replace
from asterism.core.run.session import Session
from asterism.durable import plan_actor, read_account
from asterism.durable.editor_budget import Account, Spent
from asterism.fleet.fleet import Fleet
from asterism.mcp.mcp_tools import TOOLS, McpHost
from asterism.models import Budget, StoreCassette
from asterism.models.budget import DEFAULT_BUDGET, BudgetSpent
from asterism.models.cassette import opened
from asterism.models.conversation import Conversation
from asterism.models.device_aliases import ALIAS
from asterism.models.edit_proposals import EditProposer
from asterism.models.model_calls import TIMEOUT, ModelFailed
from asterism.models.paid_answers import RESERVED_MARGIN, PaidAnswers
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutSession
from asterism.store.store_errors import StoreUnavailable
from tests.models.editor_scenes import ScriptedCaller
from tests.server.server_scenes import BASE, ServerScene, ended, plan_server, plan_text, server_scene

PLAN = """asterism: 1
id: nightly
tasks:
  build: {shell: make}
  mail: {shell: mail-it, after: build}
"""
CHAT = [
    {"op": "remove_task", "task_id": "mail"},
    {"op": "add_task", "task": {"id": "chat", "shell": "chat-it"}},
    {"op": "add_dependency", "source": "build", "target": "chat", "on": "success"},
]
RENAMED = [{"op": "update_task", "task_id": "mail", "changes": {"shell": "chat-it"}}]
REQUEST = "skip the mail and send a chat message instead"


@asynccontextmanager
async def stored(text: str = PLAN, **options: Any) -> AsyncIterator[LocalSystem]:
    """A plan in a store that is open here, which nobody runs."""
    async with Fleet(MemoryStore(), by="ann") as fleet:
        system = LocalSystem(fleet)
        await system.submit_plan(text, **options)
        yield system


def model(*replies: Any, budget: str | None = None) -> tuple[EditProposer, ScriptedCaller]:
    caller = ScriptedCaller(*replies)
    return EditProposer(caller, None if budget is None else Budget.parse(budget)), caller


async def ask(proposer: EditProposer, system: System, *requests: str, answers: Any = ()) -> EditProposal:
    return await proposer.propose(system, ProposeEdit("nightly", list(requests or [REQUEST]), list(answers)))


async def apply(system: System, proposal: EditProposal, base_version: int | None = None) -> EditOutcome:
    """Apply a proposal as the commands and the page do."""
    version = proposal.base_version if base_version is None else base_version
    edits = proposal.outcome.edits
    return await system.edit_plan("nightly", edits, REQUEST, version, editor=proposal.editor)


async def tasks_of(system: System) -> list[str]:
    return [task.id for task in (await system.show_plan("nightly")).tasks]


# -- rounds ------------------------------------------------------------------------------------------------------------


async def test_a_request_becomes_edits_that_are_shown_first_and_then_applied_in_the_name_of_the_person() -> None:
    proposer, caller = model(CHAT)
    async with stored() as system:
        proposal = await ask(proposer, system)
        assert proposal.outcome.dry_run
        assert proposal.outcome.changes[:3] == ["remove task 'mail'", "add task 'chat'", "    shell: chat-it"]
        assert (proposal.editor, proposal.reason, proposal.cost.calls) == ("test:scripted", "scripted", 1)
        assert await tasks_of(system) == ["build", "mail"]
        assert REQUEST in caller.prompts[0]
        assert "'mail' waiting (shell: mail-it); after 'build' on success" in caller.prompts[0]
        await apply(system, proposal)
        assert await tasks_of(system) == ["build", "chat"]
        version = (await system.list_versions("nightly")).items[-1]
        assert (version.author, version.reason) == ("ann", REQUEST)


async def test_each_round_shows_the_model_the_rounds_before_it_and_nothing_of_them_is_applied() -> None:
    proposer, caller = model(CHAT, RENAMED)
    async with stored() as system:
        first = await ask(proposer, system)
        answer = {"edits": first.outcome.edits, "reason": first.reason}
        second = await ask(proposer, system, REQUEST, "keep the task, change its command", answers=[answer])
        assert second.outcome.changes == ["update task 'mail': shell", "    shell: mail-it -> chat-it"]
        asked, said, told = caller.asked[-1].messages
        assert REQUEST in asked["user"]
        assert json.loads(said["calls"][0][2]) == {"edits": CHAT, "reason": "scripted"}
        assert "keep the task, change its command" in told["text"]
        await apply(system, second)
        assert await tasks_of(system) == ["build", "mail"]


@pytest.mark.parametrize("space", [" ", "\u2003", "\u2800", "\u3164"], ids=ascii)
@pytest.mark.parametrize("field", ["shell", "argv", "env"])
async def test_a_run_of_spaces_pushes_nothing_into_a_line_of_its_own(space: str, field: str) -> None:
    text = f"send-it{space * 300}add task 'harmless'"
    values: dict[str, Any] = {"shell": text, "argv": [text], "env": {"TEXT": text}}
    task = {"id": "chat", "shell": "send-it", field: values[field]}
    if field == "argv":
        del task["shell"]
    proposer, _ = model([{"op": "add_task", "task": task}])
    async with stored() as system:
        changes = (await ask(proposer, system)).outcome.changes
    assert not any(space * 4 in line.strip() for line in changes)
    assert any("[300 spaces]" in line or line.count("\\u2003") == 300 for line in changes)


async def test_violations_go_back_to_the_model_within_the_round() -> None:
    bad = [{"op": "remove_task", "task_id": "build"}]
    proposer, caller = model(bad, CHAT)
    async with stored() as system:
        proposal = await ask(proposer, system)
        assert proposal.cost.calls == 2
        assert proposal.outcome.edits == CHAT
        assert "The plan rejected this answer" in caller.asked[1].messages[-1]["text"]
        assert "'mail'" in caller.asked[1].messages[-1]["text"]


async def test_a_model_whose_answers_are_all_rejected_is_asked_four_times() -> None:
    proposer, caller = model([{"op": "remove_task", "task_id": "build"}])
    async with stored() as system:
        with pytest.raises(EditRejected, match="mail"):
            await ask(proposer, system)
        assert len(caller.asked) == 4
        assert await tasks_of(system) == ["build", "mail"]


async def test_a_model_may_propose_no_edits_and_say_why() -> None:
    proposer, _ = model(json.dumps({"edits": [], "reason": "there is no chat"}))
    async with stored() as system:
        proposal = await ask(proposer, system)
        assert (proposal.outcome.edits, proposal.reason) == ([], "there is no chat")


@pytest.mark.parametrize(
    ("reply", "words"),
    [("{}", "did not answer within 8 requests; the last answer is wrong"), (ModelFailed("no key"), "no key")],
)
async def test_a_model_that_gives_no_answer_is_one_sentence(reply: Any, words: str) -> None:
    proposer, _ = model(reply)
    async with stored() as system:
        with pytest.raises(NoProposal, match=words) as raised:
            await ask(proposer, system)
        assert str(raised.value).endswith("Plan 'nightly' has not changed")


async def test_a_request_has_an_answer_for_each_round_before_it() -> None:
    proposer, _ = model(CHAT)
    async with stored() as system:
        system.proposer = proposer
        with pytest.raises(RequestRefused, match="one for each request but the last"):
            await system.propose_edit("nightly", [REQUEST, "no"])
        system.proposer = None
        with pytest.raises(RequestRefused, match="asterism plan ask nightly"):
            await system.propose_edit("nightly", [REQUEST])


async def test_a_diff_names_the_tasks_that_are_removed_with_another_and_the_reason_of_a_cancellation() -> None:
    more = PLAN + "  x: {shell: x, after: mail}\n  y: {shell: y, after: x}\n"
    removal = {"op": "remove_task", "task_id": "mail", "dependents": "remove"}
    cancellation = {"op": "cancel_task", "task_id": "build", "reason": "it is too old"}
    lines = [
        "remove task 'mail' and what depends on it",
        "    also removes task 'x'",
        "    also removes task 'y'",
        "cancel task 'build': it is too old",
    ]
    proposer, _ = model([removal, cancellation])
    async with stored(more) as system:
        proposal = await ask(proposer, system)
        assert proposal.outcome.changes == lines
        assert (await system.edit_plan("nightly", [removal, cancellation], dry_run=True)).changes == lines
        assert await tasks_of(system) == ["build", "mail", "x", "y"]


@pytest.mark.parametrize(
    ("requests", "answers", "words"),
    [
        (["  \n"], [], "requests: one is blank"),
        ([REQUEST, " "], [{}], "requests: one is blank"),
        (["x" * 10_001], [], "requests: one has 10,001 characters; the limit is 10,000"),
        ([REQUEST, "no"], [{"edits": [], "reason": "x" * 100_000}], "answers: one has 100,027 characters"),
    ],
)
async def test_nothing_is_paid_for_a_request_that_is_blank_or_too_long(
    requests: list[str], answers: list[Any], words: str
) -> None:
    proposer, caller = model(CHAT)
    async with stored() as system:
        with pytest.raises(RequestRefused, match=words):
            await ask(proposer, system, *requests, answers=answers)
        await ask(proposer, system, f"  {REQUEST}\n")
        assert len(caller.asked) == 1
        assert f"# What a person asks for\n{REQUEST}\n\n" in caller.prompts[0]


async def test_a_request_that_cannot_succeed_is_not_paid_for() -> None:
    proposer, caller = model(CHAT)
    async with stored() as system:
        await plan_actor.cancel_plan(system.fleet, "nightly")
        with pytest.raises(PlanError, match="is being cancelled"):
            await ask(proposer, system)
    async with stored() as system:
        await system.cancel_plan("nightly")
        await end_cancelled(system.fleet, "nightly")
        with pytest.raises(EditRejected, match="was cancelled, for good"):
            await ask(proposer, system)
    assert not caller.asked


class OlderServer(httpx.AsyncBaseTransport):
    """A server of the same version that does not know the field ``editor`` yet."""

    def __init__(self, scene: ServerScene) -> None:
        self._server = httpx.ASGITransport(scene.app)  # type: ignore[arg-type]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if b'"editor":' in request.content:
            fields = {**json.loads(request.content)}
            fields["unknown"] = fields.pop("editor")
            headers = {**request.headers}
            del headers["content-length"]
            request = httpx.Request(request.method, request.url, headers=headers, json=fields)
        return await self._server.handle_async_request(request)


async def test_an_older_server_is_named_before_the_model_is_paid() -> None:
    proposer, caller = model(CHAT)
    async with (
        server_scene() as scene,
        AsyncClient(BASE, await scene.token(), transport=OlderServer(scene)) as client,
    ):
        await client.submit_plan(PLAN)
        with pytest.raises(ApiError, match=r"edit_plan: unknown key .*; it is older than this"):
            await ask(proposer, client)
    assert not caller.asked


# -- a plan that moves -------------------------------------------------------------------------------------------------


async def moved(system: LocalSystem, base_version: int | None) -> EditOutcome:
    """Apply a proposal to a plan in which somebody has changed the same task meanwhile."""
    proposer, _ = model(CHAT)
    proposal = await ask(proposer, system)
    await system.edit_plan("nightly", [{"op": "update_task", "task_id": "mail", "changes": {"shell": "mail-both"}}])
    return await apply(system, proposal, base_version)


async def test_edits_of_a_plan_that_has_moved_since_the_diff_are_checked_again() -> None:
    async with stored() as system:
        with pytest.raises(EditRejected) as raised:
            await moved(system, None)
        assert [violation.rule for violation in raised.value.violations] == ["stale"]
        assert await tasks_of(system) == ["build", "mail"]


async def test_without_the_version_of_the_diff_they_would_overwrite_what_changed() -> None:
    """The ablation."""
    async with stored() as system:
        await moved(system, 1)
        assert await tasks_of(system) == ["build", "chat"]


async def test_a_round_after_that_reads_the_plan_as_it_is() -> None:
    proposer, caller = model(CHAT)
    async with stored() as system:
        await ask(proposer, system)
        await system.edit_plan("nightly", [{"op": "add_task", "task": {"id": "lint", "shell": "lint"}}])
        assert (await ask(proposer, system)).base_version == 1
        assert "'lint'" in caller.prompts[1]
        assert "'lint'" not in caller.prompts[0]


# -- the limits of editors ---------------------------------------------------------------------------------------------


async def test_the_scopes_of_editors_limit_a_request_and_a_person_without_a_model_is_not_limited() -> None:
    proposer, caller = model(CHAT, json.dumps({"edits": [], "reason": "I may only cancel"}))
    async with stored(scopes=["editors=test:* edits=cancel_task tasks=*"]) as system:
        proposal = await ask(proposer, system)
        assert proposal.outcome.edits == []
        assert "outside the scope of the editor 'test:scripted'" in caller.asked[1].messages[-1]["text"]
        with pytest.raises(EditRejected, match="outside the scope"):
            await system.edit_plan("nightly", CHAT, editor="test:scripted")
        await system.edit_plan("nightly", CHAT)


async def test_an_edit_that_a_rule_lets_wait_says_so_in_its_proposal_and_waits() -> None:
    proposer, _ = model(CHAT)
    async with stored(approvals=["destructive"]) as system:
        proposal = await ask(proposer, system)
        assert proposal.outcome.waits == ["remove task 'mail' (edits=remove_task,cancel_task,remove_dependency)"]
        with pytest.raises(EditWaits):
            await apply(system, proposal)
        assert await tasks_of(system) == ["build", "mail"]
        [waiting] = (await system.list_approvals("nightly")).items
        assert waiting.batch["author"] == "test:scripted"  # the limits of editors sign with the name of the editor
        assert waiting.batch["reason"] == REQUEST


async def test_in_a_tainted_plan_the_edits_of_a_model_wait_and_those_of_a_person_do_not() -> None:
    proposer, _ = model(CHAT)
    async with stored(PLAN.replace("shell: make", "shell: make, untrusted: true")) as system:
        proposal = await ask(proposer, system)
        assert "untrusted data of 'build'" in proposal.outcome.waits[0]
        with pytest.raises(EditWaits):
            await apply(system, proposal)
        assert (await system.edit_plan("nightly", CHAT, dry_run=True)).waits == []


@pytest.mark.virtual_time
async def test_results_are_marked_as_untrusted() -> None:
    proposer, caller = model(CHAT[1:2])
    async with plan_server() as (scene, _), scene.client() as client:
        await client.post("/api/v1/plans", json={"text": plan_text("a")})
        await ended(client)
        await ask(proposer, scene.state.system_of(None), "add a message")
    assert '<untrusted-data id="' in caller.prompts[0]
    assert 'label="result of a">\na done\n' in caller.prompts[0]


async def test_the_mark_of_a_secret_is_no_value() -> None:
    hidden = [{"op": "add_task", "task": {"id": "chat", "shell": "chat-it", "env": {"TOKEN": "[secret]"}}}]
    proposer, caller = model(hidden, CHAT)
    async with stored() as system:
        assert (await ask(proposer, system)).outcome.edits == CHAT
        assert "refer to a secret by its name" in caller.asked[1].messages[-1]["text"]


async def test_the_secrets_of_the_plan_are_masked_in_requests_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_TOKEN", "s3cr3t-value-123")
    text = PLAN.replace(
        "shell: mail-it", "shell: mail-it, env: {T: {secret: MAIL_TOKEN}}, description: s3cr3t-value-123"
    )
    said = {"edits": RENAMED, "reason": "it uses s3cr3t-value-123"}
    proposer, caller = model(RENAMED)
    async with stored(text) as system:
        await ask(proposer, system, "use s3cr3t-value-123", "no, s3cr3t-value-123", answers=[said])
        assert "s3cr3t-value-123" not in caller.asked[0].text
        assert caller.asked[0].text.count("[secret]") == 4
        [exchange] = await StoreCassette(system.fleet.store).exchanges("nightly")
        assert "s3cr3t-value-123" not in json.dumps(exchange.to_json())


async def test_devices_have_aliases_in_every_round() -> None:
    here = [{"op": "update_task", "task_id": "mail", "changes": {"device": "obey-me"}}]
    async with stored() as system:
        fleet = system.fleet
        session = Session("obey-me-1", "obey-me", fleet.store.clock(), timeout=1e6)
        await fleet.store.commit([PutSession(session, None)])
        proposer, caller = model(here)
        answer = {"edits": here, "reason": ""}
        proposal = await ask(proposer, system, "use the device", "and now", answers=[answer])
        question = caller.asked[0].text
        assert "obey-me" not in question
        assert question.count("device-") > 1
        assert proposal.outcome.edits[0]["changes"] == {"device": "obey-me"}


# -- budgets -----------------------------------------------------------------------------------------------------------


async def test_a_request_is_paid_from_the_account_of_the_plan_and_its_exchanges_are_kept() -> None:
    proposer, _ = model(CHAT, budget="2calls")
    async with stored() as system:
        await ask(proposer, system)
        await ask(proposer, system)
        with pytest.raises(NoProposal) as raised:
            await ask(proposer, system)
        assert "2 of 2 calls are spent. Raise it: asterism plan budget nightly --raise '4calls'" in str(raised.value)
        account = await read_account(system.fleet.store, "nightly")
        assert account is not None
        assert (account.spent.calls, account.spent.tasks, account.open) == (2, 0, {})
        assert (await system.show_plan("nightly")).budget is not None, "no cycle was opened"
        assert len(await StoreCassette(system.fleet.store).exchanges("nightly")) == 2
        await system.decide_budget("nightly", "4calls")
        await ask(proposer, system)


async def test_the_tasks_of_edits_count_when_they_are_applied_and_not_if_they_are_rejected() -> None:
    proposer, _ = model(CHAT, budget="1task")
    async with stored() as system:

        async def counted() -> int:
            account = await read_account(system.fleet.store, "nightly")
            return account.spent.tasks if account is not None else -1

        proposal = await ask(proposer, system)
        assert await counted() == 0
        with pytest.raises(EditRejected):
            await system.edit_plan("nightly", [CHAT[1], CHAT[1]][:1] + CHAT[:1] * 2, editor=proposal.editor)
        assert await counted() == 0
        await apply(system, proposal)
        assert await counted() == 1
        with pytest.raises(PlanError, match="1 of 1 task is spent"):
            await system.edit_plan(
                "nightly", [{"op": "add_task", "task": {"id": "more", "shell": "x"}}], editor=proposal.editor
            )
        more, _ = model([{"op": "add_task", "task": {"id": "more", "shell": "x"}}])
        with pytest.raises(NoProposal, match="and the answer adds 1 task"):
            await ask(more, system)


async def test_a_request_does_not_end_the_reservation_of_an_editor_that_works() -> None:
    proposer, _ = model(CHAT)
    async with stored() as system:
        await ask(proposer, system)
        cassette = StoreCassette(system.fleet.store)
        await cassette.change("nightly", lambda account: account.reserve("editor", account.spent))
        await ask(proposer, system)
        account = await cassette.account("nightly")
        assert account is not None
        assert list(account.open) == ["editor"]


async def broken_off(system: LocalSystem, how: str) -> None:
    """A request that is broken off while its model thinks."""
    proposer, caller = model(CHAT, budget="1call")
    caller.gate, reached = asyncio.Event(), asyncio.Event()
    caller.replies = (lambda question: reached.set() or CHAT,)
    asked = asyncio.ensure_future(ask(proposer, system))
    await reached.wait()
    if how == "killed":  # nothing of it reaches the store any more
        system.fleet.store.commit, commit = _never, system.fleet.store.commit  # type: ignore[method-assign]
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    if how == "killed":
        system.fleet.store.commit = commit  # type: ignore[method-assign]


async def asked_again(system: LocalSystem, **options: Any) -> None:
    """Another process asks about the same plan."""
    answers = PaidAnswers(ScriptedCaller(CHAT), StoreCassette(system.fleet.store), **options)
    view = ConstellationView(Constellation("nightly"))
    async with asyncio.timeout(1000.0):
        await answers.next(Conversation("ends", view, Mask(), 0, [{"user": "go on"}]))


async def _never(*_: Any) -> None:
    raise StoreUnavailable("killed")


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_a_request_that_is_broken_off_leaves_no_reservation(how: str) -> None:
    """The plan's own editor and the next request would wait for it without end."""
    async with stored() as system:
        loop = asyncio.get_running_loop()
        system.fleet.store.clock = loop.time  # type: ignore[method-assign]
        await broken_off(system, how)
        account = await read_account(system.fleet.store, "nightly")
        assert account is not None
        assert (len(account.open), account.spent.calls) == ((1, 0) if how == "killed" else (0, 1))
        began = loop.time()
        with pytest.raises(BudgetSpent, match="1 of 1 call is spent"):
            await asked_again(system)
        assert loop.time() - began < (TIMEOUT + RESERVED_MARGIN + 2.0 if how == "killed" else 1.0)


@pytest.mark.virtual_time
async def test_a_request_waits_for_other_calls_at_most_as_long_as_a_call_may_take() -> None:
    """A reservation of an earlier version has no end."""
    async with stored() as system:
        cassette = StoreCassette(system.fleet.store)
        system.fleet.store.clock = asyncio.get_running_loop().time  # type: ignore[method-assign]
        await cassette.change("nightly", lambda account: Account(Budget(calls=1)).reserve("old", Spent(calls=1)))
        with pytest.raises(BudgetSpent, match="1 of 1 call is spent"):
            await asked_again(system, patience=400.0)


async def spent_tasks(system: LocalSystem) -> int:
    account = await read_account(system.fleet.store, "nightly")
    return -1 if account is None else account.spent.tasks


async def test_the_tasks_of_an_edit_that_waited_are_not_counted_if_it_is_refused() -> None:
    proposer, _ = model(CHAT, budget="1task")
    async with stored(approvals=["destructive"]) as system:
        for number in (1, 2):
            proposal = await ask(proposer, system)
            with pytest.raises(EditWaits):
                await apply(system, proposal)
            assert await spent_tasks(system) == 1
            await system.refuse_edit("nightly", number, "no")
            assert await spent_tasks(system) == 0


async def test_the_tasks_of_an_edit_that_nobody_approved_in_time_are_not_counted_in_the_next_request() -> None:
    proposer, _ = model(CHAT, budget="1task")
    async with stored(approvals=["destructive"]) as system:
        with pytest.raises(EditWaits):
            await apply(system, await ask(proposer, system))
        with pytest.raises(NoProposal, match="1 of 1 task is spent"):
            await ask(proposer, system)
        await plan_actor.refuse_edit(system.fleet, "nightly", 1)  # in another process, or at its end
        await ask(proposer, system)
        assert await spent_tasks(system) == 0


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (plan_actor.AnswerLost("lost"), 1),
        (asyncio.CancelledError(), 1),
        (StoreUnavailable("gone"), 1),
        (plan_actor.NotAnswered("withdrawn"), 0),
    ],
)
async def test_tasks_are_not_counted_only_if_it_is_certain_that_they_were_not_added(
    error: BaseException, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer, _ = model(CHAT, budget="5tasks")
    async with stored() as system:
        proposal = await ask(proposer, system)

        async def broken(*_: Any, **__: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(plan_actor, "edit_plan", broken)
            with pytest.raises(type(error)):
                await apply(system, proposal)
        assert await spent_tasks(system) == counted


async def account_of(system: LocalSystem, budget: Budget, **fields: Any) -> StoreCassette:
    """The editor of the plan has an account with 2 calls spent."""
    cassette = StoreCassette(system.fleet.store)
    await cassette.change("nightly", opened(budget, DEFAULT_BUDGET))
    await cassette.change("nightly", lambda account: replace(account, spent=Spent(calls=2), **fields))
    return cassette


async def test_a_request_changes_neither_the_limits_nor_the_hold_of_an_account() -> None:
    """Who may edit a plan may not decide about its budget."""
    proposer, caller = model(CHAT, budget="1000calls")
    async with stored() as system:
        cassette = await account_of(system, Budget(calls=2), held_since=1.0, held_for=Spent(calls=1))
        before = await cassette.account("nightly")
        with pytest.raises(NoProposal, match="asterism plan budget nightly --raise '4calls'"):
            await ask(proposer, system)
        assert (await cassette.account("nightly"), caller.asked) == (before, [])


async def test_the_budget_of_a_request_is_a_further_limit() -> None:
    proposer, caller = model(CHAT, budget="3calls")
    async with stored() as system:
        cassette = await account_of(system, Budget(calls=50))
        await ask(proposer, system)
        with pytest.raises(NoProposal, match=r"3 of 3 calls are spent\. Raise it: --budget '6calls'"):
            await ask(proposer, system)
        account = await cassette.account("nightly")
        assert account is not None
        assert (account.budget.calls, len(caller.asked)) == (50, 1)


async def test_a_model_without_a_price_spends_nothing_of_an_account_that_limits_dollars() -> None:
    proposer, caller = model(CHAT)
    caller._known_prices["test:scripted"] = None
    async with stored() as system:
        await account_of(system, Budget(dollars=0.01))
        with pytest.raises(NoProposal, match="the price of test:scripted is unknown"):
            await ask(proposer, system)
        assert caller.asked == []


async def test_the_account_names_each_model_without_a_price_that_was_paid_from_it() -> None:
    proposer, caller = model(CHAT)
    caller._known_prices["test:scripted"] = None
    async with stored() as system:
        cassette = await account_of(system, Budget(calls=50), unpriced="test:other")
        await ask(proposer, system)
        await cassette.change("nightly", opened(Budget(calls=50), DEFAULT_BUDGET))  # an editor with a price
        account = await cassette.account("nightly")
        assert account is not None
        assert account.unpriced == "test:other, test:scripted"
        with pytest.raises(PlanError, match="the price of test:other, test:scripted is unknown"):
            await system.decide_budget("nightly", "$2")


async def test_a_call_that_has_counted_as_spent_is_not_counted_again_when_it_ends() -> None:
    proposer, caller = model(CHAT)
    async with stored() as system:
        caller.gate, reached = asyncio.Event(), asyncio.Event()
        caller.replies = (lambda question: reached.set() or CHAT,)
        asked = asyncio.ensure_future(ask(proposer, system))
        await reached.wait()
        cassette = StoreCassette(system.fleet.store)
        await cassette.change("nightly", lambda account: account.expired(math.inf))
        caller.gate.set()
        await asked
        account = await cassette.account("nightly")
        assert account is not None
        assert (account.spent.calls, account.open, account.ends) == (1, {}, {})


def test_dollars_of_a_model_without_a_price_cannot_be_limited() -> None:
    caller = ScriptedCaller([])
    caller._known_prices["test:scripted"] = None
    with pytest.raises(PlanError, match="the price of test:scripted is unknown"):
        EditProposer(caller, Budget(dollars=1))
    EditProposer(ScriptedCaller([]), Budget(dollars=1))


# -- at a server -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def remote(scene: ServerScene, *scopes: str) -> AsyncIterator[AsyncClient]:
    transport: Any = httpx.ASGITransport(scene.app)
    async with AsyncClient(BASE, await scene.token(*scopes), transport=transport) as client:
        yield client


class CutAnswers(httpx.AsyncBaseTransport):
    """A server, with something between that answers the first request for a proposal in its place, or cuts it."""

    def __init__(self, scene: ServerScene, answer: httpx.Response | None) -> None:
        self._server, self._answer = httpx.ASGITransport(scene.app), answer  # type: ignore[arg-type]
        self.sent: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._server.handle_async_request(request)
        if request.url.path.endswith("/proposals"):
            self.sent.append(request)
            if len(self.sent) == 1 and self._answer is None:
                raise httpx.ReadError("cut")
            return answer if len(self.sent) > 1 or self._answer is None else self._answer
        return answer


@pytest.mark.parametrize("answer", [None, httpx.Response(504, text="too slow")], ids=["cut", "a proxy"])
async def test_a_client_waits_for_a_model_and_gets_what_was_paid_for(answer: httpx.Response | None) -> None:
    proposer, caller = model(CHAT)
    async with server_scene() as scene:
        scene.state.proposer = proposer
        way = CutAnswers(scene, answer)
        async with AsyncClient(BASE, await scene.token(), timeout=3.0, transport=way) as client:
            await client.submit_plan(PLAN)
            proposal = await client.propose_edit("nightly", [REQUEST])
    assert proposal.outcome.edits == CHAT
    assert len(caller.asked) == 1
    assert len({request.headers["idempotency-key"] for request in way.sent}) == 1
    assert [request.extensions["timeout"]["read"] for request in way.sent] == [PROPOSAL_LASTS] * 2
    assert way.sent[0].extensions["timeout"]["connect"] == 3.0


async def test_the_caller_of_a_server_pays_with_a_model_of_its_own() -> None:
    proposer, caller = model(CHAT, budget="1call")
    async with server_scene() as scene, remote(scene) as client:
        await client.submit_plan(PLAN)
        proposal = await ask(proposer, client)
        assert await read_account(scene.fleet.store, "nightly") is None
        assert (await apply(client, proposal)).version == 1
        [_, version] = (await client.list_versions("nightly")).items
        assert (version.author, version.reason) == ("ann", REQUEST)
        with pytest.raises(NoProposal, match="Raise it: --budget '2calls'"):
            await ask(proposer, client)
        assert len(caller.asked) == 1


async def test_scopes_and_approvals_hold_at_a_server_too() -> None:
    proposer, _ = model(CHAT)
    async with server_scene() as scene, remote(scene) as client:
        await client.submit_plan(PLAN, approvals=["authors=test:*"])
        proposal = await ask(proposer, client)
        assert proposal.outcome.waits
        with pytest.raises(ApiError) as raised:
            await apply(client, proposal)
        assert raised.value.approval == 1


async def test_who_may_edit_one_plan_may_ask_and_who_may_read_it_may_not() -> None:
    proposer, _ = model(CHAT)
    async with server_scene() as scene, remote(scene) as admin:
        scene.state.proposer = proposer
        await admin.submit_plan(PLAN)
        async with remote(scene, "edit:nightly") as client:
            assert (await client.propose_edit("nightly", [REQUEST])).outcome.edits == CHAT
            assert (await ask(proposer, client)).outcome.edits == CHAT
            assert "propose_edit" in (await client.list_permissions("nightly")).operations
        async with remote(scene, "observe") as client:
            with pytest.raises(NotAllowed):
                await client.propose_edit("nightly", [REQUEST])
            assert "propose_edit" not in (await client.list_permissions("nightly")).operations


@pytest.mark.parametrize(("scope", "shown"), [("edit:nightly", 0), ("operate", 1)])
async def test_a_model_shows_the_devices_only_to_those_who_may_list_them(scope: str, shown: int) -> None:
    proposer, caller = model(CHAT)
    async with server_scene() as scene, remote(scene) as admin, remote(scene, scope) as client:
        scene.state.proposer = proposer
        await admin.submit_plan(PLAN)
        session = Session("lab-1", "lab", scene.fleet.store.clock(), timeout=1e6)
        await scene.fleet.store.commit([PutSession(session, None)])
        await client.propose_edit("nightly", [REQUEST])
    assert len(set(ALIAS.findall(caller.asked[0].text))) == shown


async def test_an_editor_with_a_credential_keeps_its_own_scope_whatever_model_it_names() -> None:
    async with server_scene() as scene, remote(scene) as admin, remote(scene, "edit:nightly") as client:
        await admin.submit_plan(PLAN, scopes=["editors=other", "editors=ann edits=cancel_task tasks=*"])
        with pytest.raises(EditRejected, match="editor 'ann'"):
            await client.edit_plan("nightly", CHAT, editor="other")


async def test_the_model_of_a_server_is_judged_by_its_own_name_and_by_that_of_the_credential() -> None:
    proposer, _ = model(CHAT)
    async with server_scene() as scene, remote(scene) as admin, remote(scene, "edit:nightly") as client:
        scene.state.proposer = proposer
        await admin.submit_plan(PLAN, approvals=["authors=test:*"], scopes=["any"])
        proposal = await client.propose_edit("nightly", [REQUEST])
        assert proposal.outcome.waits
        with pytest.raises(ApiError) as raised:
            await apply(client, proposal)
        assert raised.value.approval == 1
        assert await tasks_of(admin) == ["build", "mail"]
        [waiting] = (await admin.list_approvals("nightly")).items
        assert (waiting.batch["author"], waiting.batch["editor"]) == ("ann", "ann")


async def test_the_scopes_of_a_credential_and_of_the_model_have_to_allow_an_edit() -> None:
    async with server_scene() as scene, remote(scene) as admin, remote(scene, "edit:nightly") as client:
        await admin.submit_plan(
            PLAN, scopes=["editors=ann edits=* tasks=* executors=*", "editors=test:* edits=cancel_task tasks=*"]
        )
        with pytest.raises(EditRejected, match="editor 'test:scripted'"):
            await client.edit_plan("nightly", CHAT, editor="test:scripted")
        await client.edit_plan("nightly", RENAMED)


async def test_the_model_of_a_server_is_offered_only_if_there_is_one() -> None:
    proposer, _ = model(CHAT)
    async with server_scene() as scene, remote(scene) as client:
        await client.submit_plan(PLAN)
        with pytest.raises(ApiError, match="Start the server with --model NAME"):
            await client.propose_edit("nightly", [REQUEST])
        assert "propose_edit" not in (await client.list_permissions("nightly")).operations
        assert not McpHost(scene.fleet, scene.state.system_of).offers(TOOLS["propose_edit"])
        scene.state.proposer = proposer
        assert "propose_edit" in (await client.list_permissions("nightly")).operations
        assert McpHost(scene.fleet, scene.state.system_of, has_model=True).offers(TOOLS["propose_edit"])
        proposal = await client.propose_edit("nightly", [REQUEST])
        assert proposal.outcome.edits == CHAT
        assert (await client.show_budget("nightly")).spent["calls"] == 1


async def test_a_model_that_fails_is_a_problem_of_the_request() -> None:
    proposer, _ = model(ModelFailed("no model has answered: the key is wrong"))
    async with server_scene() as scene, remote(scene) as client:
        scene.state.proposer = proposer
        await client.submit_plan(PLAN)
        with pytest.raises(ApiError, match="the key is wrong") as raised:
            await client.propose_edit("nightly", [REQUEST])
        assert (raised.value.status, raised.value.problem) == (422, "no-proposal")
