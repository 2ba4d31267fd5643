"""Assigning an issue, and believing only what can be read back.

GitHub answers 201 to an assignment of somebody who cannot be assigned, and assigns nobody. People are assigned through
REST, which adds them. Bots are assigned through GraphQL, which takes the whole list of who is assigned: those who are
there stay. Somebody who is assigned between the question and the answer is not in that list, and is dropped by it. The
history of the issue tells, and who was dropped so is assigned again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from asterism.series.github.discovery import Assignee
from asterism.series.github.github_client import GitHubClient, Refused, said
from asterism.series.register import SeriesError, Unsure

Guard = Callable[[], None]

_WHO = "... on User { id login } ... on Bot { id login } ... on Organization { id login } ... on Mannequin { id login }"
_POSSIBLE = f"""query($owner: String!, $name: String!, $after: String) {{ repository(owner: $owner, name: $name) {{
  suggestedActors(capabilities: [CAN_BE_ASSIGNED], first: 100, after: $after) {{
    nodes {{ {_WHO} }} pageInfo {{ hasNextPage endCursor }} }} }} }}"""
_ISSUE = f"""query($owner: String!, $name: String!, $number: Int!) {{ viewer {{ login }}
  repository(owner: $owner, name: $name) {{ issue(number: $number) {{ id
    assignedActors(first: 100) {{ nodes {{ {_WHO} }} }}
    timelineItems(itemTypes: [UNASSIGNED_EVENT], last: 100) {{ nodes {{ ... on UnassignedEvent {{
      id actor {{ login }} assignee {{ {_WHO} }} }} }} }} }} }} }}"""
_REPLACE = """mutation($input: ReplaceActorsForAssignableInput!) { replaceActorsForAssignable(input: $input) {
  assignable { ... on Issue { number } } } }"""


class CannotAssign(SeriesError):
    """GitHub took the request and assigned nobody, or does not know who that is."""


class _Now(NamedTuple):
    """An issue by its id, who is assigned to it, by id, and whom we have ever unassigned, by the id of the event."""

    issue: str
    assigned: dict[str, str]
    dropped: dict[str, str]


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

    # -- by the whole list ---------------------------------------------------------------------------------------------

    async def _replace(self, number: int, wanted: bool, guard: Guard) -> None:
        ours = [await self._id(number)] if wanted else []
        before = await self._now(number, wanted)  # as late as can be
        kept = [actor for actor, login in before.assigned.items() if not self._assignee.named(login)]
        asked = {"input": {"assignableId": before.issue, "actorIds": [*kept, *ours]}}
        try:
            _, errors = await self._client.ask(_REPLACE, asked, guard=guard)
        except Unsure:
            with contextlib.suppress(SeriesError):  # that the reply was lost is what matters
                await self._repair(number, wanted, before)
            raise
        if errors:
            raise CannotAssign(f"#{number} cannot be {_word(wanted)}: {said(errors)}")
        await self._repair(number, wanted, before)

    async def _repair(self, number: int, wanted: bool, before: _Now) -> None:
        """Assign those again whom our list has dropped: nobody but the assignee was to be."""
        now = await self._now(number, wanted)
        there = {login.lower() for login in now.assigned.values()}
        dropped = [
            login
            for event, login in now.dropped.items()
            if event not in before.dropped and login.lower() not in there and not self._assignee.named(login)
        ]
        if dropped:
            body = {"assignees": list(dict.fromkeys(dropped))}
            await self._client.send("POST", f"issues/{number}/assignees", body)

    async def _id(self, number: int) -> str:
        """Of the assignee, among all who can be assigned."""
        after: str | None = None
        while True:
            asked = {"owner": self._client.owner, "name": self._client.name, "after": after}
            data, errors = await self._client.ask(_POSSIBLE, asked)
            try:
                possible = data["repository"]["suggestedActors"]
                found = [str(node["id"]) for node in possible["nodes"] if node and self._assignee.named(node["login"])]
                page = possible["pageInfo"]
                more, following = bool(page["hasNextPage"]), page["endCursor"]
            except (KeyError, TypeError):
                raise CannotAssign(f"#{number} cannot be assigned: {said(errors)}") from None
            if found:
                return found[0]
            if not more or following == after:
                raise CannotAssign(f"{self._assignee.login} is nobody who can be assigned in {self._client.url}")
            after = following

    async def _now(self, number: int, wanted: bool) -> _Now:
        asked = {"owner": self._client.owner, "name": self._client.name, "number": number}
        data, errors = await self._client.ask(_ISSUE, asked)
        try:
            issue = data["repository"]["issue"]
            assigned = {node["id"]: node["login"] for node in issue["assignedActors"]["nodes"] if node}
            us = _plain((data.get("viewer") or {}).get("login"))
            dropped = {
                str(event["id"]): str(event["assignee"]["login"])
                for event in issue["timelineItems"]["nodes"]
                if event and event.get("assignee") and us and _plain((event.get("actor") or {}).get("login")) == us
            }
            return _Now(str(issue["id"]), assigned, dropped)
        except (KeyError, TypeError):
            raise CannotAssign(f"#{number} cannot be {_word(wanted)}: {said(errors)}") from None


def _plain(login: object) -> str:
    """GraphQL writes the login of an App with ``[bot]`` here and without it there."""
    return login.lower().removesuffix("[bot]") if isinstance(login, str) else ""


def _word(wanted: bool) -> str:
    return "assigned" if wanted else "unassigned"
