"""Whether a person has taken the active issue of a series away from whom it was assigned to.

The history of the issue tells. What the service itself does is done under the login of its token, so a person whose
token it uses cannot be told from it. Only what happened since the issue is active counts: who unassigns an issue that
waits says nothing about its turn.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from asterism.series.github.discovery import Assignee
from asterism.series.github.github_client import GitHubClient, said
from asterism.series.register import RegisterUnavailable

CLOCKS = 2.0
"""GitHub writes times to the second, and its clock is known here to the second."""

_EVENTS = """query($owner: String!, $name: String!, $number: Int!) { viewer { login }
  repository(owner: $owner, name: $name) { issue(number: $number) {
    timelineItems(itemTypes: [UNASSIGNED_EVENT], last: 50) { nodes { ... on UnassignedEvent {
      id createdAt actor { __typename login }
      assignee { ... on User { login } ... on Bot { login } ... on Organization { login } ... on Mannequin { login } }
    } } } } } }"""


class Unassignment(NamedTuple):
    """The id of the event, the login of the person, and the number of the issue."""

    event: str
    by: str
    issue: int


async def unassigned_by_person(
    client: GitHubClient, assignee: Assignee, number: int, since: float
) -> Unassignment | None:
    """The last time that ``assignee`` was unassigned from the issue, if a person did it after ``since``. Raises
    RegisterUnavailable if that cannot be told."""
    asked = {"owner": client.owner, "name": client.name, "number": number}
    data, errors = await client.ask(_EVENTS, asked)
    try:
        events = [one for one in data["repository"]["issue"]["timelineItems"]["nodes"] if one and one.get("assignee")]
        ours = [one for one in events if assignee.named(one["assignee"].get("login"))]
        if not ours:
            return None
        actor = ours[-1].get("actor") or {}
        at = datetime.fromisoformat(ours[-1]["createdAt"]).timestamp()
        us = Assignee(str((data.get("viewer") or {}).get("login") or ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RegisterUnavailable(f"who unassigned #{number} is not known: {said(errors)}") from None
    is_person = actor.get("__typename") == "User" and not us.named(actor.get("login"))
    return Unassignment(str(ours[-1]["id"]), str(actor["login"]), number) if is_person and at + CLOCKS > since else None
