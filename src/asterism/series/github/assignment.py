"""Assignment of issues: under the lock of the series, and verified by reading the issue back.

The state of a series changes by compare-and-swap, but an assignment on GitHub has no condition: a process that was
delayed between its decision and the assignment would add a second one. So all assignments of a series are made under a
lock. The lock is a ref, ``refs/asterism/turns/NAME``, acquired and released by compare-and-swap. Its holder reads the
state and the issues again before it assigns anything.

If the holder dies, the lock expires by GitHub's clock. A live holder stops well before that by its own clock, which
continues during suspend and counts from before the lock was requested: it sends no request that could arrive late. What
remains is a request that GitHub itself executes more than ``MARGIN`` seconds after its sender gave up.

GitHub answers 201 even if the account cannot be assigned, and assigns nobody. People are assigned through REST, which
adds them. Bots are assigned through GraphQL, which replaces the whole list of assignees: the present ones are kept in
it. An account that is assigned between the read and the write is missing from that list, and loses its assignment. The
timeline of the issue shows it, and the account is assigned again.

The timeline also shows whether a person unassigned the active issue. The service acts under the login of its token, so
a person whose token it uses cannot be told apart from it.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from asterism.series.compare_and_swap import Contended
from asterism.series.github.discovery import Assignee
from asterism.series.github.github_client import TIMEOUT, GitHubClient, RequestRejected, graphql_reason
from asterism.series.github.github_register import GitHubRegister
from asterism.series.register import (
    AssignmentFailed,
    OutcomeUnknown,
    RateLimited,
    RegisterUnavailable,
    RevisionConflict,
    SeriesError,
)

Guard = Callable[[], None]
"""Called before a request is sent; raises if it is too late."""

TIMESTAMP_TOLERANCE = 2.0
"""GitHub writes times to the second, and its clock is known to the second."""
DURATION = 90.0
"""How long a lock may be held, in seconds."""
MARGIN = 15.0
"""The safety margin before the end of the lock, in seconds."""
RELEASE_TRIES = 5

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


# -- the lock ---------------------------------------------------------------------------------------------------------


class LockHeld(SeriesError):
    """Another process holds the assignment lock of this series."""


class LockExpired(SeriesError):
    """It took too long: another process may hold the lock by now. Nothing more was sent."""


class LockContended(Contended):
    """Other processes held the lock for as long as this one waited. The state is right; nothing was assigned."""

    def __init__(self, name: str, tries: int, seconds: float) -> None:
        super().__init__(name, tries, seconds)
        waited = f" for {seconds:.1f} s" if tries else " (this run did not wait)"
        self.args = (
            f"other processes held the assignment lock of series {name}{waited}: the state is up to date, but this run "
            "assigned nothing; the next run does",
        )


def suspend_aware_clock() -> float:
    """Seconds that continue during suspend, where the system offers that, as GitHub's clock does."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class HeldLock:
    """A lock that this process has acquired."""

    def __init__(self, name: str, token: str, ends: float, clock: Callable[[], float]) -> None:
        self.name, self.token = name, token
        self._ends, self._clock = ends, clock

    def check(self) -> None:
        """Raises LockExpired if a request that is sent now could arrive after the end of the lock."""
        if self._clock() + TIMEOUT + MARGIN > self._ends:
            raise LockExpired(f"the assignment lock of series {self.name} has expired: assigning took too long")


class _Entry(NamedTuple):
    holder: str | None
    until: float


class SeriesAssignmentLock:
    """The assignment locks of all series of a repository."""

    def __init__(self, register: GitHubRegister, clock: Callable[[], float] = suspend_aware_clock) -> None:
        self.register = GitHubRegister(register.client, "turns")
        self._clock = clock

    async def acquire(self, name: str) -> HeldLock:
        """Raises LockHeld if another process holds the lock, or was faster."""
        holder = uuid.uuid4().hex
        seen = await self.register.read(name)
        if seen.token is not None:
            entry = await self._entry(seen.text or "", seen.token)
            if entry.holder is not None and self.register.clock() < entry.until + TIMESTAMP_TOLERANCE:
                raise LockHeld(f"another process holds the assignment lock of series {name}")
        started = self._clock()
        text = _text(name, holder, self.register.clock() + DURATION)
        try:
            token = await self.register.swap(name, seen.token, text, f"lock the assignments of {name}")
        except RevisionConflict:
            raise LockHeld(f"another process was faster to acquire the assignment lock of series {name}") from None
        except OutcomeUnknown:
            again = await self.register.read(name)
            if again.text != text or again.token is None:
                raise LockHeld(f"the assignment lock of series {name} was not acquired") from None
            token = again.token
        return HeldLock(name, token, started + DURATION, self._clock)

    async def release(self, lock: HeldLock) -> None:
        """Release the lock if it is still ours. After a lost reply it tries again, because other processes wait. A lock
        that cannot be released expires."""
        text = _text(lock.name, None, 0.0)
        for _ in range(RELEASE_TRIES):
            try:
                await self.register.swap(lock.name, lock.token, text, f"unlock the assignments of {lock.name}")
                return
            except (RevisionConflict, RateLimited):
                return
            except (OutcomeUnknown, RegisterUnavailable):
                continue

    async def _entry(self, text: str, token: str) -> _Entry:
        """The content of the ref. Content that Asterism did not write counts as a lock since the time of its commit."""
        try:
            data = json.loads(text)
            holder, until = data["holder"], float(data["until"])
            plausible = until <= self.register.clock() + DURATION + TIMESTAMP_TOLERANCE
            if holder is None or (isinstance(holder, str) and plausible):
                return _Entry(holder, until)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        try:
            commit = await self.register.client.get(f"git/commits/{token}")
            at = datetime.fromisoformat(commit["committer"]["date"]).timestamp()
        except (RequestRejected, KeyError, TypeError, ValueError):
            return _Entry(None, 0.0)  # not a commit, so never a lock
        if at > self.register.clock() + DURATION:
            return _Entry(None, 0.0)  # a date in the future must not block the series until then
        return _Entry("unknown", at + DURATION)


def _text(name: str, holder: str | None, until: float) -> str:
    return json.dumps({"series": name, "holder": holder, "until": round(until, 3)}) + "\n"


# -- assigning --------------------------------------------------------------------------------------------------------


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
        others = [actor for actor, login in before.assigned.items() if not self._assignee.is_login(login)]
        variables = {"input": {"assignableId": before.issue, "actorIds": [*others, *ours]}}
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
                ids = [str(node["id"]) for node in actors["nodes"] if node and self._assignee.is_login(node["login"])]
                page = actors["pageInfo"]
                more, following = bool(page["hasNextPage"]), page["endCursor"]
            except (KeyError, TypeError):
                raise AssignmentFailed(f"cannot assign #{number}: {graphql_reason(errors)}") from None
            if ids:
                return ids[0]
            if not more or following == after:
                raise AssignmentFailed(f"{self._assignee.login} cannot be assigned in {self._client.url}")
            after = following

    async def _assignments(self, number: int, wanted: bool) -> _Assignments:
        variables = {"owner": self._client.owner, "name": self._client.name, "number": number}
        data, errors = await self._client.graphql(_ASSIGNMENTS, variables)
        try:
            issue = data["repository"]["issue"]
            assigned = {node["id"]: node["login"] for node in issue["assignedActors"]["nodes"] if node}
            us = _viewer(data)
            unassigned = {
                str(event["id"]): str(event["assignee"]["login"])
                for event in issue["timelineItems"]["nodes"]
                if event and event.get("assignee") and us.is_login((event.get("actor") or {}).get("login"))
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
        us = _viewer(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RegisterUnavailable(f"cannot tell who unassigned #{number}: {graphql_reason(errors)}") from None
    is_person = actor.get("__typename") == "User" and not us.is_login(actor.get("login"))
    if not is_person or at + TIMESTAMP_TOLERANCE <= since:
        return None
    return Unassignment(str(ours[-1]["id"]), str(actor["login"]), number)


def _viewer(data: Mapping[str, Any]) -> Assignee:
    """Who we are. GraphQL writes the login of an App with ``[bot]`` in some places and without it in others."""
    return Assignee(str((data.get("viewer") or {}).get("login") or ""))


def _verb(wanted: bool) -> str:
    return "assign" if wanted else "unassign"
