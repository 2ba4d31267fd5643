"""Edits that wait for a person, in the store: the rules and scopes of a plan, and one register for each waiting edit.

The rules and the scopes of editors are terms of the head, so every owner of the plan obeys them. A waiting edit is a
register beside the journal (``approval/NAME/000003``). It is written, and decided, in one commit with the entry of the
story and with the edit itself, by the process that has the plan open. So an edit is approved once, and applied with its
approval or not at all, whatever crashes. A plan without rules costs nothing: if an edit of it waits all the same,
because its editor may have read untrusted data, the head gets the term in that commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.edits import WAITING, WaitingEdit
from asterism.core.plan.plan_options import APPROVAL_TIMEOUT
from asterism.durable.commands import Journal
from asterism.durable.journal_store import Head, read_head
from asterism.orchestrator.waiting_edits import WaitingEdits
from asterism.store.protocol import Notice, PutRegister, Register, Store

TERM = "approvals"
SCOPES = "scopes"

MOST_DECIDED = 50
"""How many decided edits of a plan are kept."""


def approval_prefix(name: str) -> str:
    return f"approval/{name}/"


def approval_key(name: str, number: int) -> str:
    return f"{approval_prefix(name)}{number:06d}"


def approval_terms(
    rules: Sequence[ApprovalRule],
    timeout: float = APPROVAL_TIMEOUT,
    scopes: Sequence[EditScope] = (),
    escalation: float | None = None,
) -> dict[str, Any]:
    """The terms of a new plan: its rules and the scopes of its editors, if it has any."""
    plan_terms: dict[str, Any] = {SCOPES: [scope.to_json() for scope in scopes]} if scopes else {}
    if rules or timeout != APPROVAL_TIMEOUT or escalation is not None:
        plan_terms[TERM] = {"rules": [rule.to_json() for rule in rules], "timeout": timeout}
        if escalation is not None:
            plan_terms[TERM]["escalation"] = escalation
    return plan_terms


def rules_of(head: Head) -> tuple[tuple[ApprovalRule, ...], float]:
    """The rules of a plan, and how long an edit waits."""
    term = head.terms.get(TERM)
    if term is None:
        return (), APPROVAL_TIMEOUT
    return tuple(map(ApprovalRule.from_json, term["rules"])), term["timeout"]


def escalation_of(head: Head) -> float | None:
    """After how long an edit that waits is announced again."""
    return head.terms.get(TERM, {}).get("escalation")  # type: ignore[no-any-return]


def scopes_of(head: Head) -> tuple[EditScope, ...]:
    """The scopes of the editors of a plan."""
    return tuple(map(EditScope.from_json, head.terms.get(SCOPES, ())))


async def list_approvals(store: Store, name: str) -> list[WaitingEdit]:
    """The edits of a plan that wait for a person, and the newest ones that were decided, oldest first. Raises
    UnknownConstellation."""
    head, _ = await read_head(store, name)
    return [edit for edit, _ in await _read(store, head)]


async def waiting_approvals(store: Store, head: Head) -> list[WaitingEdit]:
    """The edits of a plan that wait for a person, oldest first."""
    return [edit for edit, _ in await _read(store, head) if edit.state == WAITING]


async def _read(store: Store, head: Head) -> list[tuple[WaitingEdit, Register]]:
    if TERM not in head.terms:
        return []
    registers = await store.registers(approval_prefix(head.name))
    records = [(register.read(WaitingEdit.from_json), register) for register in registers]
    # those of an earlier plan of that name are not its own
    return [(edit, register) for edit, register in records if edit.at >= head.created_at]


class ApprovalRecords:
    """The registers of the waiting edits of a plan, as the process that has the plan open knows them."""

    def __init__(self, journal: Journal, records: Sequence[tuple[WaitingEdit, Register]]) -> None:
        self._journal, self._edits = journal, [edit for edit, _ in records]
        self._revisions = {edit.id: register.revision for edit, register in records}
        self._decided = [edit.id for edit, _ in records if edit.state != WAITING]

    @classmethod
    async def read(cls, store: Store, journal: Journal) -> ApprovalRecords:
        return cls(journal, await _read(store, journal.head))

    def attach(self, waiting: WaitingEdits) -> None:
        """Let edits wait by the terms that are stored with their plan, beside those that wait already."""
        head = self._journal.head
        waiting.rules, waiting.timeout = rules_of(head)
        waiting.scopes, waiting.escalation = scopes_of(head), escalation_of(head)
        waiting.save = self._save
        waiting.restore(self._edits)

    def _save(self, edit: WaitingEdit) -> None:
        journal, head = self._journal, self._journal.head
        if TERM not in head.terms:  # the first waiting edit: every later owner looks for it
            journal.stage_head(terms={TERM: {"rules": [], "timeout": APPROVAL_TIMEOUT}, **head.terms})
        if edit.state == WAITING:
            journal.stage(_notice(head.name, edit))
        revision = self._revisions.get(edit.id)
        if not journal.stage(PutRegister(approval_key(head.name, edit.id), edit.to_json(), revision)):
            self._revisions[edit.id] = (revision or 0) + 1
        if edit.state != WAITING:
            self._decided.append(edit.id)
            if len(self._decided) > MOST_DECIDED:
                old = self._decided.pop(0)
                journal.stage(PutRegister(approval_key(head.name, old), None, self._revisions.pop(old)))


def _notice(name: str, edit: WaitingEdit) -> Notice:
    """Tells people that an edit waits, or still waits. What a model wrote in it is not part of the message."""
    at, still = (edit.at, "") if edit.escalated_at is None else (edit.escalated_at, "still ")
    by = f" by {' or '.join(edit.by)}" if edit.by else ""
    message = f"plan {name}: {edit.subject} {still}waits for approval {edit.id}{by} (asterism plan approvals {name})"
    return Notice(at, "approval", message)
