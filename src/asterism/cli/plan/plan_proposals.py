"""``asterism plan ask``: a model proposes edits for a request in words; a person applies them or says what to change.

The model is called by this process, with the key in its environment, whether the plan is in a store that is opened here
or at a server. Between two rounds nothing is open: a person may think as long as they like.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from asterism.api.operation import NoProposal
from asterism.api.plan_operations import MOST_ROUNDS, ProposeEdit
from asterism.base.operating_system import discard_typed
from asterism.cli.cli_context import note, print_json, with_system
from asterism.cli.plan.plan_commands import REJECTED, WAITS, attempt_edit
from asterism.core.errors import AsterismError

if TYPE_CHECKING:
    from asterism.api.documents import EditOutcome, EditProposal
    from asterism.api.system import System
    from asterism.models.edit_proposals import EditProposer

NOT_APPLIED = 1
"""The exit code if there are no edits to apply, or the person does not want them."""

LONGEST_REASON = 10_000
"""The longest reason of an edit, in characters."""

APPLY = "Apply? [y/N or say what to change] "
AGAIN = "Ask the model again? [y/N or say what to change] "
CHANGE = "Say what to change, or press Enter to stop: "
YES, NO = ("y", "yes"), ("", "n", "no", "q", "quit")
REJECTED_SINCE = "The plan has rejected these edits. Propose others for the plan as it is now."


@dataclass
class EditConversation:
    """What a person and a model say about the edits of one plan. ``store`` is where the plan is."""

    name: str
    requests: list[str]
    proposer: EditProposer
    store: str | None
    yes: bool = False
    dry_run: bool = False
    as_json: bool = False
    answers: list[dict[str, Any]] = field(default_factory=list)

    def hold(self) -> int:
        """Propose, ask and apply, until there is nothing more to say. Returns the exit code."""
        proposal = self._proposed()
        while proposal is not None:
            edits = proposal.outcome.edits
            if self.dry_run:
                return 0 if edits else NOT_APPLIED
            if edits and self.yes:
                return self._apply(proposal)
            if not self._interactive:
                if edits:
                    note("Nothing was applied. Give --yes to apply edits without a question, or ask in a terminal.")
                return WAITS if edits else NOT_APPLIED
            said = self._ask(APPLY if edits else CHANGE)
            if edits and said.lower() in YES:
                code = self._apply(proposal)
                if code != REJECTED:
                    return code
                said = self._ask(AGAIN)
                said = REJECTED_SINCE if said.lower() in YES else said
            if said.lower() in NO:
                note("Nothing was applied.")
                return NOT_APPLIED
            proposal = self._continued(proposal, said)
        return NOT_APPLIED

    @property
    def _interactive(self) -> bool:
        return not (self.as_json or self.yes) and sys.stdin.isatty() and sys.stdout.isatty()

    def _ask(self, question: str) -> str:
        """What the person says: yes, no, or what to change. What was typed before the question is no answer to it, and
        a word such as ``ok`` is neither yes nor a request."""
        while True:
            discard_typed(sys.stdin)
            try:
                said = str(click.prompt(question, default="", show_default=False, prompt_suffix="")).strip()
            except click.Abort:  # Ctrl-C or Ctrl-D
                click.echo()
                return ""
            if said.lower() in (*YES, *NO) or not _is_word(said):
                return said
            note("That is one word. Answer y or n, or say what to change in a sentence.")

    def _proposed(self) -> EditProposal | None:
        """What the model proposes for the last request; None if there is nothing."""
        if not self.as_json:
            note(f"{self.proposer.name} reads plan {self.name!r} … (Ctrl-C stops)")
        return with_system(self.store, self._propose)

    def _continued(self, proposal: EditProposal, said: str) -> EditProposal:
        """The next proposal; the one before if the round fails, which is said."""
        if len(self.requests) == MOST_ROUNDS:
            note(f"A conversation has at most {MOST_ROUNDS} rounds: apply the edits above, or begin another one.")
            return proposal
        self.answers.append({"edits": proposal.outcome.edits, "reason": proposal.reason})
        self.requests.append(said)
        following = None
        try:
            following = self._proposed()
        except (AsterismError, OSError) as error:
            note(f"Error: {error}")
        if following is None:
            self.answers.pop()
            self.requests.pop()
            if proposal.outcome.edits:
                note("The proposal before is kept: y applies it.")
        return following or proposal

    async def _propose(self, system: System) -> EditProposal | None:
        """Print what the model proposes. None if there is nothing, or the plan rejects it; that is printed then."""
        proposals: list[EditProposal] = []

        async def outcome() -> EditOutcome:
            request = ProposeEdit(self.name, self.requests, self.answers)
            proposals.append(await self.proposer.propose(system, request))
            return proposals[0].outcome

        try:
            answer = await attempt_edit(system, self.name, outcome(), dry_run=True)
        except NoProposal as error:
            note(f"{error}.")
            if self.as_json:
                print_json({"name": self.name, "accepted": False, "dry_run": True, "problem": str(error)})
            return None
        if not proposals:
            answer.print(self.as_json)
            return None
        proposal = proposals[0]
        if not self.as_json:
            answer.print(as_json=False)
            note(f"{proposal.editor}: {proposal.reason or 'no reason'} ({self._cost(proposal)})")
        elif not (self.yes and proposal.outcome.edits):  # the outcome is printed otherwise
            print_json(proposal)
        return proposal

    def _cost(self, proposal: EditProposal) -> str:

        return str(proposal.cost)

    def _apply(self, proposal: EditProposal) -> int:
        """Apply what is proposed, in the name of the person and of the model. Returns the exit code."""
        reason = "; ".join(self.requests)[:LONGEST_REASON]
        edits, version = proposal.outcome.edits, proposal.base_version

        async def apply(system: System) -> int:
            edit = system.edit_plan(self.name, edits, reason, version, editor=proposal.editor)
            return (await attempt_edit(system, self.name, edit)).print(self.as_json)

        return with_system(self.store, apply)


def _is_word(said: str) -> bool:
    """Whether it is a single word. Scripts without upper case may write a sentence without a space."""
    return len(said.split()) == 1 and (said.isascii() or said.upper() != said.lower())
