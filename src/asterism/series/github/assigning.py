"""Assigning an issue, and believing only what can be read back.

GitHub answers 201 to an assignment of somebody who cannot be assigned, and assigns nobody. People are assigned through
REST. Bots are assigned through GraphQL, which takes the whole list of who is assigned: those who are there stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asterism.series.github.client import GitHubClient, Refused
from asterism.series.github.finding import Assignee
from asterism.series.register import SeriesError, Unsure

Guard = Callable[[], None]

_WHO = "... on User { id login } ... on Bot { id login } ... on Organization { id login } ... on Mannequin { id login }"
_ACTORS = f"""query($owner: String!, $name: String!, $number: Int!) {{ repository(owner: $owner, name: $name) {{
  suggestedActors(capabilities: [CAN_BE_ASSIGNED], first: 100) {{ nodes {{ {_WHO} }} }}
  issue(number: $number) {{ id assignedActors(first: 100) {{ nodes {{ {_WHO} }} }} }} }} }}"""
_REPLACE = """mutation($input: ReplaceActorsForAssignableInput!) { replaceActorsForAssignable(input: $input) {
  assignable { ... on Issue { number } } } }"""


class CannotAssign(SeriesError):
    """GitHub took the request and assigned nobody, or does not know who that is."""


class Assigning:
    """``way`` is ``rest``, ``graphql``, or ``auto``: bots by GraphQL, people by REST."""

    def __init__(self, client: GitHubClient, assignee: Assignee, way: str = "auto") -> None:
        self._client, self._assignee = client, assignee
        self._by_graphql = way == "graphql" or (way == "auto" and assignee.is_bot)

    async def assign(self, number: int, guard: Guard) -> None:
        """``guard`` is called before anything is sent, and raises when it is too late. Raises CannotAssign."""
        await self._change(number, True, guard)

    async def unassign(self, number: int, guard: Guard) -> None:
        await self._change(number, False, guard)

    async def _change(self, number: int, wanted: bool, guard: Guard) -> None:
        lost: Unsure | None = None
        try:
            if self._by_graphql:
                await self._replace(number, wanted, guard)
            else:
                method = "POST" if wanted else "DELETE"
                body = {"assignees": [self._assignee.login]}
                await self._client.send(method, f"issues/{number}/assignees", body, guard=guard)
        except Unsure as error:
            lost = error
        except Refused as refused:
            raise CannotAssign(f"#{number} cannot be {_word(wanted)}: {refused}") from None
        if self._assignee.among(await self._seen(number)) is wanted:
            return
        if lost is not None:
            raise lost
        hint = (
            "is the login right, and may it be assigned in this repository?" if wanted else "somebody assigns it again"
        )
        raise CannotAssign(
            f"GitHub took the request, but {self._assignee.login} is {'not' if wanted else 'still'} assigned to "
            f"#{number}: {hint}"
        )

    async def _seen(self, number: int) -> Mapping[str, Any]:
        try:
            seen: Mapping[str, Any] = await self._client.get(f"issues/{number}")
        except Refused as refused:
            raise CannotAssign(f"#{number} is not there any more: {refused}") from None
        return seen

    async def _replace(self, number: int, wanted: bool, guard: Guard) -> None:
        asked = {"owner": self._client.owner, "name": self._client.name, "number": number}
        data, errors = await self._client.ask(_ACTORS, asked)
        try:
            repository = data["repository"]
            issue = repository["issue"]["id"]
            assigned = {node["id"]: node["login"] for node in repository["issue"]["assignedActors"]["nodes"] if node}
            possible = {node["login"]: node["id"] for node in repository["suggestedActors"]["nodes"] if node}
        except (KeyError, TypeError):
            raise CannotAssign(f"#{number} cannot be {_word(wanted)}: {_said(errors)}") from None
        kept = [actor for actor, login in assigned.items() if not self._assignee.named(login)]
        if wanted:
            found = [actor for login, actor in possible.items() if self._assignee.named(login)]
            if not found:
                raise CannotAssign(f"{self._assignee.login} is nobody who can be assigned in {self._client.url}")
            kept.append(found[0])
        _, errors = await self._client.ask(_REPLACE, {"input": {"assignableId": issue, "actorIds": kept}}, guard=guard)
        if errors:
            raise CannotAssign(f"#{number} cannot be {_word(wanted)}: {_said(errors)}")


def _word(wanted: bool) -> str:
    return "assigned" if wanted else "unassigned"


def _said(errors: list[dict[str, Any]]) -> str:
    return "; ".join(str(error.get("message")) for error in errors) or "GitHub gave no reason"
