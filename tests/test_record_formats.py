"""Records in stores and messages stay as they are, byte for byte: each text is the format of a record from now on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asterism.api.credentials import Credential
from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import CancelTask, EditBatch, RemoveTask, WaitingEdit
from asterism.core.schedule.schedule import Schedule
from asterism.durable.commands import CycleView
from asterism.durable.editor_budget import Account, Budget, Spent
from asterism.durable.journal_store import Head
from asterism.durable.plan_history import PlanVersion, Position
from asterism.durable.rejected_edits import RejectedEdit
from asterism.fleet.role_lease import RoleLease
from asterism.gateway.enrolment import EnrolledDevice
from asterism.models.cassette import Exchange
from asterism.models.model_messages import ModelAnswer, ModelQuestion, ToolCall, ToolSpec
from asterism.peers.registry import Peer
from asterism.store.protocol import Notice

BATCH = EditBatch((CancelTask("a", "late"), RemoveTask("b")), "ann", "why", 3, ("a",))
BATCH_TEXT = (
    '{"edits": [{"op": "cancel_task", "task_id": "a", "reason": "late"}, {"op": "remove_task", "task_id": "b"}], '
    '"author": "ann", "reason": "why", "base_version": 3, "triggers": ["a"]}'
)
ANSWER = ModelAnswer("t", (ToolCall("1", "answer", "{}"),), False, "test:model")
ANSWER_TEXT = '{"text": "t", "calls": [["1", "answer", "{}"]], "refused": false, "model": "test:model"}'

EXAMPLES: list[tuple[Any, str]] = [
    (Budget(), "{}"),
    (
        Budget(2, 10, 5, 1.5, 7, 60.0),
        '{"dollars": 2, "tokens": 10, "calls": 5, "seconds": 1.5, "tasks": 7, "wait": 60.0}',
    ),
    (Spent(calls=1, dollars=0.5), '{"dollars": 0.5, "calls": 1}'),
    (Account(), '{"budget": {}, "spent": {}, "held_for": {}, "given": {}}'),
    (
        Account(
            Budget(calls=5),
            Spent(calls=1),
            {"x": Spent(calls=1)},
            without_editor=True,
            decided_by="ann",
            held_since=5.0,
            held_why="all spent",
            unpriced="m",
            answers={"a b": 3},
            refusals=(1, 2),
            held_for=Spent(tasks=1),
            given=Budget(calls=4),
        ),
        '{"budget": {"calls": 5}, "spent": {"calls": 1}, "open": {"x": {"calls": 1}}, "answers": {"a b": 3}, '
        '"refusals": [1, 2], "held_for": {"tasks": 1}, "given": {"calls": 4}, "without_editor": true, '
        '"decided_by": "ann", "held_since": 5.0, "unpriced": "m", "held_why": "all spent"}',
    ),
    (
        EditorCost(),
        '{"model": "", "calls": 0, "input_tokens": 0, "output_tokens": 0, "dollars": 0.0, "seconds": 0.0}',
    ),
    (
        EditorCost("m", 2, 100, 30, None, 2.5),
        '{"model": "m", "calls": 2, "input_tokens": 100, "output_tokens": 30, "dollars": null, "seconds": 2.5}',
    ),
    (ApprovalRule(), "{}"),
    (
        ApprovalRule(("add_task",), ("deploy-*",), cost=0.0),
        '{"edits": ["add_task"], "tasks": ["deploy-*"], "cost": 0.0}',
    ),
    (EditScope(("m",), adds=0, retries=2), '{"editors": ["m"], "adds": 0, "retries": 2}'),
    (BATCH, BATCH_TEXT),
    (
        EditBatch((), undoes=2, editor="m"),
        '{"edits": [], "author": "", "reason": "", "base_version": null, "triggers": [], "undoes": 2, "editor": "m"}',
    ),
    (
        WaitingEdit(1, BATCH, 1.0, 2.0, ("r",), ("a",)),
        f'{{"id": 1, "batch": {BATCH_TEXT}, "at": 1.0, "expires_at": 2.0, "reasons": ["r"], "tasks": ["a"], '
        '"cycle": null, "state": "waiting", "decided_by": "", "decided_at": null, "why": "", "version": null, '
        '"escalated_at": null}',
    ),
    (
        WaitingEdit(1, BATCH, 1.0, 2.0, (), (), 4, "approved", "bob", 3.0, "fine", 5, 1.5),
        f'{{"id": 1, "batch": {BATCH_TEXT}, "at": 1.0, "expires_at": 2.0, "reasons": [], "tasks": [], "cycle": 4, '
        '"state": "approved", "decided_by": "bob", "decided_at": 3.0, "why": "fine", "version": 5, '
        '"escalated_at": 1.5}',
    ),
    (
        RejectedEdit(1, 2.0, 3, "ann", "why", ["a"], [{"op": "x"}], [{"edit": 0, "rule": "cycle", "message": "m"}]),
        '{"number": 1, "at": 2.0, "version": 3, "author": "ann", "reason": "why", "triggers": ["a"], '
        '"edits": [{"op": "x"}], "violations": [{"edit": 0, "rule": "cycle", "message": "m"}]}',
    ),
    (
        PlanVersion(1, 2.0, Position(7, 3)),
        '{"version": 1, "at": 2.0, "position": "7.3", "author": "", "reason": "", "edits": [], "diff": null, '
        '"triggers": [], "undoes": null}',
    ),
    (
        CycleView(
            1, 2, 3.0, ({"task": "a", "status": "failed", "reason": "r"},), False, 0, "m", refusals=({"by": "b"},)
        ),
        '{"id": 1, "version": 2, "opened_at": 3.0, "ends": [{"task": "a", "status": "failed", "reason": "r"}], '
        '"stuck": false, "rejections": 0, "claimed_by": "m", "claimed_until": null, "expires_at": null, '
        '"refusals": [{"by": "b"}], "on_hold": "", "tasks": ["a"]}',
    ),
    (
        Head("n", "running", 1.0, {"policy": "scoped"}),
        '{"name": "n", "state": "running", "created_at": 1.0, "terms": {"policy": "scoped"}, "owner": null, '
        '"device": null, "epoch": 0, "first": 1, "ended_at": null, "schema": 2, "cancelling": false, '
        '"cancel_reason": null, "paused": null, "began": 1, '
        '"snapshot": null, "parts": 0, "params": {}, "traceparent": null, "file": "", "tags": []}',
    ),
    (
        Head("n", "running", 1.0, {}, params={"day": 1}, traceparent="00-1", file="n.yaml", tags=("a",)),
        '{"name": "n", "state": "running", "created_at": 1.0, "terms": {}, "owner": null, "device": null, "epoch": 0, '
        '"first": 1, "ended_at": null, "schema": 2, "cancelling": false, '
        '"cancel_reason": null, "paused": null, "began": 1, "snapshot": null, "parts": 0, '
        '"params": {"day": 1}, "traceparent": "00-1", "file": "n.yaml", "tags": ["a"]}',
    ),
    (
        Schedule("s", workflow="w", every=60, open=("a",), input={"n": 1}),
        '{"name": "s", "workflow": "w", "input": {"n": 1}, "every": 60, "open": ["a"]}',
    ),
    (ANSWER, ANSWER_TEXT),
    (
        ModelQuestion("i", ({"user": "u"},), (ToolSpec("n", "d", {"type": "object"}, True),)),
        '{"instructions": "i", "messages": [{"user": "u"}], "tools": [["n", "d", {"type": "object"}, true]]}',
    ),
    (
        Exchange(1, "a", "q", ANSWER, EditorCost("m", 1), 2, at=3.0),
        f'{{"number": 1, "about": "a", "question": "q", "answer": {ANSWER_TEXT}, '
        '"cost": {"model": "m", "calls": 1, "input_tokens": 0, "output_tokens": 0, "dollars": 0.0, "seconds": 0.0}, '
        '"entries": 2, "editor": "", "at": 3.0}',
    ),
    (
        Exchange(1, "a", "q", ANSWER, editor="m"),
        f'{{"number": 1, "about": "a", "question": "q", "answer": {ANSWER_TEXT}, "cost": '
        f'{{"model": "", "calls": 0, "input_tokens": 0, "output_tokens": 0, "dollars": 0.0, "seconds": 0.0}}, '
        '"entries": 0, "editor": "m", "at": 0.0}',
    ),
    (Notice(1.5, "late", "m", device="d"), '{"at": 1.5, "kind": "late", "message": "m", "run": null, "device": "d"}'),
    (
        Peer("p", "s", None, "pin", "t", 1.0, "i", 2.0, 0.5),
        '{"name": "p", "store": "s", "url": null, "pin": "pin", "token_sha256": "t", "invited_at": 1.0, '
        '"invitation_sha256": "i", "heard_at": 2.0, "skew": 0.5}',
    ),
    (
        RoleLease("d", "s", 3, 1.5, 15.0),
        '{"device": "d", "session": "s", "epoch": 3, "until": 1.5, "lease": 15.0}',
    ),
    (
        EnrolledDevice("p", "k", frozenset({"gpu", "cpu"}), 1.0),
        '{"name": "p", "key": "k", "can": ["cpu", "gpu"], "enrolled_at": 1.0, "revoked_at": null}',
    ),
    (
        Credential(
            id="i",
            name="n",
            scopes=frozenset({"edit"}),
            sha256="h",
            kind="token",
            created_at=1.0,
            created_by="ann",
            expires_at=2.0,
            revoked_at=1.5,
        ),
        '{"id": "i", "name": "n", "sha256": "h", "kind": "token", "created_at": 1.0, "created_by": "ann", '
        '"expires_at": 2.0, "scopes": ["edit"], "revoked_at": 1.5}',
    ),
]


@pytest.mark.parametrize(("record", "text"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_a_record_is_written_in_its_format(record: Any, text: str) -> None:
    assert json.dumps(record.to_json()) == text


KEYS = {Peer: {"name": "p"}, EnrolledDevice: {"name": "p"}, Credential: {"id": "i"}}
"""What the key of a register says, and its value does not."""

WRITTEN_ONLY = (PlanVersion, ModelQuestion)


@pytest.mark.parametrize(("record", "text"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_a_record_is_read(record: Any, text: str) -> None:
    kind: Any = type(record)
    if kind not in WRITTEN_ONLY:
        assert kind.from_json({**json.loads(text), **KEYS.get(kind, {})}) == record
