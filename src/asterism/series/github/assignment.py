"""Assignment of issues, verified by reading the issue back, and detection of unassignments by people.

GitHub answers 201 even if the account cannot be assigned, and assigns nobody. People are assigned through REST, which
adds them. Bots are assigned through GraphQL, which replaces the whole list of assignees: the present ones are kept in
it. An account that is assigned between the read and the write is missing from that list, and loses its assignment. The
timeline of the issue shows it, and the account is assigned again.

The timeline also shows whether a person unassigned the active issue. The service acts under the login of its token, so
a person whose token it uses cannot be told apart from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from asterism.series.github.discovery import Assignee
from asterism.series.github.github_client import GitHubClient, RequestRejected, graphql_reason
from asterism.series.register import OutcomeUnknown, RegisterUnavailable, SeriesError

Guard = Callable[[], None]
"""Called before a request is sent; raises if it is too late."""

TIMESTAMP_TOLERANCE = 2.0
"""GitHub writes times to the second, and its clock is known to the second."""

_ACTOR = (
    "... on User { id login } ... on Bot { id login } ... on Organization { id login } ... on Mannequin { id login }"
)
_ASSIGNABLE_ACTORS = f"""query($owner: String!, $name: String!, $after: String) {{
  repository(owner: $owner, name: $name) {{
    suggestedActors(capabilities: [CAN_BE_ASSIGNED], first: 100, after: $after) {{
    nodes {{ {_ACTOR} }} pageInfo {{ hasNextPage endCursor }} }} }} }}"""
_ASSIGNMENTS = f"""query($owner: String!, $name: String!, $number: Int!) {{ viewer {{ login }}
  repository(owner: $owner, name: $name) {{ issue(number: $number) {{ id
    assignedActors(first: 100) {{ nodes {{ {_ACTOR} }} }}
    timelineItems(itemTypes: [UNASSIGNED_EVENT], last: 100) {{ nodes {{ ... on UnassignedEvent {{
      id actor {{ login }} assignee {{ {_ACTOR} }} }} }} }} }} }} }}"""
_REPLACE_ACTORS = """mutation($input: ReplaceActorsForAssignableInput!) { replaceActorsForAssignable(input: $input) {
  assignable { ... on Issue { number } } } }"""
_UNASSIGNMENTS = """query($owner: String!, $name: String!, $number: Int!) { viewer { login }
  repository(owner: $owner, name: $name) { issue(number: $number) {
    timelineItems(itemTypes: [UNASSIGNED_EVENT], last: 50) { nodes { ... on UnassignedEvent {
      id createdAt actor { __typename login }
      assignee { ... on User { login } ... on Bot { login } ... on Organization { login } ... on Mannequin { login } }
    } } } } } }"""


class AssignmentFailed(SeriesError):
    """GitHub accepted the request but assigned nobody, or does not know the account."""


class _Assignments(NamedTuple):
    """The id of an issue, its assignees by id, and the accounts that we unassigned, by the id of the event."""

    issue: str
    assigned: dict[str, str]
    unassigned: dict[str, str]


class Unassignment(NamedTuple):
    """The id of the event, the login of the person, and the number of the issue."""

    event: str
    by: str
    issue: int


class Assigner:
    """Assigns issues to an account.

    ``assign_with`` is ``rest``, ``graphql``, or ``auto``: GraphQL for bots, REST for people."""

    def __init__(self, client: GitHubClient, assignee: Assignee, assign_with: str = "auto") -> None:
        self._client, self._assignee = client, assignee
        self._by_graphql = assign_with == "graphql" or (assign_with == "auto" and assignee.is_bot)

    async def assign(self, number: int, guard: Guard) -> None:
        """Assign an issue, and verify it. Raises AssignmentFailed."""
        await self._change(number, True, guard)

    async def unassign(self, number: int, guard: Guard) -> None:
        """Unassign an issue, and verify it. Raises AssignmentFailed."""
        await self._change(number, False, guard)

    async def _change(self, number: int, wanted: bool, guard: Guard) -> None:
        lost: OutcomeUnknown | None = None
        try:
            if self._by_graphql:
                await self._replace_actors(number, wanted, guard)
            else:
                method = "POST" if wanted else "DELETE"
                body = {"assignees": [self._assignee.login]}
                await self._client.send(method, f"issues/{number}/assignees", body, guard=guard)
        except OutcomeUnknown as error:
            lost = error
        except RequestRejected as error:
            raise AssignmentFailed(f"cannot {_verb(wanted)} #{number}: {error}") from None
        if self._assignee.is_assigned(await self._read(number)) is wanted:
            return
        if lost is not None:
            raise lost
        hint = (
            "check the login, and that it can be assigned in this repository"
            if wanted
            else "something assigns it again"
        )
        raise AssignmentFailed(
            f"GitHub accepted the request, but {self._assignee.login} is {'not' if wanted else 'still'} assigned to "
            f"#{number}: {hint}"
        )

    async def _read(self, number: int) -> Mapping[str, Any]:
        try:
            issue: Mapping[str, Any] = await self._client.get(f"issues/{number}")
        except RequestRejected as error:
            raise AssignmentFailed(f"#{number} no longer exists: {error}") from None
        return issue

    # -- GraphQL: replace the whole list -------------------------------------------------------------------------------

    async def _replace_actors(self, number: int, wanted: bool, guard: Guard) -> None:
        ours = [await self._assignee_id(number)] if wanted else []
        before = await self._assignments(number, wanted)  # as late as possible
        kept = [actor for actor, login in before.assigned.items() if not self._assignee.is_login(login)]
        variables = {"input": {"assignableId": before.issue, "actorIds": [*kept, *ours]}}
        try:
            _, errors = await self._client.graphql(_REPLACE_ACTORS, variables, guard=guard)
        except OutcomeUnknown:
            with contextlib.suppress(SeriesError):  # report the lost reply, not a failed repair
                await self._restore_others(number, wanted, before)
            raise
        if errors:
            raise AssignmentFailed(f"cannot {_verb(wanted)} #{number}: {graphql_reason(errors)}")
        await self._restore_others(number, wanted, before)

    async def _restore_others(self, number: int, wanted: bool, before: _Assignments) -> None:
        """Assign the accounts again that our list has dropped."""
        now = await self._assignments(number, wanted)
        present = {login.lower() for login in now.assigned.values()}
        dropped = [
            login
            for event, login in now.unassigned.items()
            if event not in before.unassigned and login.lower() not in present and not self._assignee.is_login(login)
        ]
        if dropped:
            body = {"assignees": list(dict.fromkeys(dropped))}
            await self._client.send("POST", f"issues/{number}/assignees", body)

    async def _assignee_id(self, number: int) -> str:
        """The id of the assignee, among all accounts that can be assigned."""
        after: str | None = None
        while True:
            variables = {"owner": self._client.owner, "name": self._client.name, "after": after}
            data, errors = await self._client.graphql(_ASSIGNABLE_ACTORS, variables)
            try:
                actors = data["repository"]["suggestedActors"]
                found = [str(node["id"]) for node in actors["nodes"] if node and self._assignee.is_login(node["login"])]
                page = actors["pageInfo"]
                more, following = bool(page["hasNextPage"]), page["endCursor"]
            except (KeyError, TypeError):
                raise AssignmentFailed(f"cannot assign #{number}: {graphql_reason(errors)}") from None
            if found:
                return found[0]
            if not more or following == after:
                raise AssignmentFailed(f"{self._assignee.login} cannot be assigned in {self._client.url}")
            after = following

    async def _assignments(self, number: int, wanted: bool) -> _Assignments:
        variables = {"owner": self._client.owner, "name": self._client.name, "number": number}
        data, errors = await self._client.graphql(_ASSIGNMENTS, variables)
        try:
            issue = data["repository"]["issue"]
            assigned = {node["id"]: node["login"] for node in issue["assignedActors"]["nodes"] if node}
            us = _plain((data.get("viewer") or {}).get("login"))
            unassigned = {
                str(event["id"]): str(event["assignee"]["login"])
                for event in issue["timelineItems"]["nodes"]
                if event and event.get("assignee") and us and _plain((event.get("actor") or {}).get("login")) == us
            }
            return _Assignments(str(issue["id"]), assigned, unassigned)
        except (KeyError, TypeError):
            raise AssignmentFailed(f"cannot {_verb(wanted)} #{number}: {graphql_reason(errors)}") from None


async def find_unassignment(client: GitHubClient, assignee: Assignee, number: int, since: float) -> Unassignment | None:
    """The last unassignment of the assignee from the issue, if a person made it after ``since``.

    An earlier one does not concern the present turn of the issue. Raises RegisterUnavailable if GitHub does not
    tell."""
    variables = {"owner": client.owner, "name": client.name, "number": number}
    data, errors = await client.graphql(_UNASSIGNMENTS, variables)
    try:
        events = [event for event in data["repository"]["issue"]["timelineItems"]["nodes"] if event]
        ours = [event for event in events if assignee.is_login((event.get("assignee") or {}).get("login"))]
        if not ours:
            return None
        actor = ours[-1].get("actor") or {}
        at = datetime.fromisoformat(ours[-1]["createdAt"]).timestamp()
        us = Assignee(str((data.get("viewer") or {}).get("login") or ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RegisterUnavailable(f"cannot tell who unassigned #{number}: {graphql_reason(errors)}") from None
    is_person = actor.get("__typename") == "User" and not us.is_login(actor.get("login"))
    if not is_person or at + TIMESTAMP_TOLERANCE <= since:
        return None
    return Unassignment(str(ours[-1]["id"]), str(actor["login"]), number)


def _plain(login: object) -> str:
    """GraphQL writes the login of an App with ``[bot]`` in some places and without it in others."""
    return login.lower().removesuffix("[bot]") if isinstance(login, str) else ""


def _verb(wanted: bool) -> str:
    return "assign" if wanted else "unassign"
