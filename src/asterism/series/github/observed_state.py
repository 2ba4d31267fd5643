"""The observed state of series on GitHub: which issues are open and assigned, and why others left.

The open issues are listed, not searched for, because the search index lags behind. An issue that is missing from the
list is read by itself before anything is concluded, because the list is a moment old. An issue that a merged pull
request or a commit closed is completed; otherwise a closed issue is abandoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from asterism.core.series.machine import Item, Live, Series
from asterism.series.github.discovery import TRACKING_LABEL, NearMiss, SeriesIssue, SeriesMatcher, has_label, labels_of
from asterism.series.github.github_client import PAGE_SIZE, GitHubClient, RequestRejected, graphql_reason
from asterism.series.register import RegisterUnavailable, SeriesError

STABLE_LIST_TRIES = 5
"""How often a list that changes while it is read is read again."""
_CLOSER = """query($owner: String!, $name: String!, $number: Int!) { repository(owner: $owner, name: $name) {
  issue(number: $number) { timelineItems(itemTypes: [CLOSED_EVENT], last: 1) { nodes { ... on ClosedEvent {
    closer { __typename ... on PullRequest { number merged } ... on Commit { oid } } } } } } } }"""


class Departure(StrEnum):
    """Why an issue left its series."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    TRANSFERRED = "transferred"
    DELETED = "deleted"
    EVICTED = "evicted"
    """It is open, but neither its title nor a label puts it into this series, and nobody forced it in."""


@dataclass(frozen=True)
class IssueSurvey:
    """The open issues by series, the tracking issues, and the ``others``."""

    series: Mapping[str, Mapping[int, SeriesIssue]]
    tracking: tuple[Mapping[str, Any], ...]
    others: tuple[Mapping[str, Any], ...] = ()


@dataclass
class ObservedSeries:
    """One series: its open issues, and the known issues that are ``gone``, with the reason."""

    open: dict[int, SeriesIssue] = field(default_factory=dict)
    gone: dict[int, Departure] = field(default_factory=dict)

    def assigned(self) -> list[int]:
        """The issues that are assigned to the assignee, in the order of their micro numbers."""
        ordered = sorted(self.open.values(), key=lambda issue: (issue.micro, issue.number))
        return [issue.number for issue in ordered if issue.assigned]

    def add(self, number: int, outcome: SeriesIssue | Departure) -> None:
        if isinstance(outcome, SeriesIssue):
            self.open[number] = outcome
        else:
            self.open.pop(number, None)
            self.gone[number] = outcome


class CannotRebuild(SeriesError):
    """The open issues do not tell the state: there are none, or several are assigned."""


class IssueObserver:
    """Reads issues with ``client`` and finds their series with ``matcher``.

    A required label narrows the list; the tracking issues are then listed separately. ``forced`` are the issues that
    belong to a series by force: to that one, and to none by their titles or labels, so that two series never assign and
    unassign one issue in turn."""

    def __init__(self, client: GitHubClient, matcher: SeriesMatcher) -> None:
        self._client, self._matcher, self._label = client, matcher, matcher.required
        self.forced: dict[int, str] = {}

    def note_forced(self, series: Iterable[Series]) -> None:
        """Replace what is known about the forced issues of these series. An issue that several series force belongs to
        the first of them by name."""
        states = {state.name: state for state in series}
        others = {number: name for number, name in self.forced.items() if name not in states}
        forced = {item: name for name in sorted(states, reverse=True) for item in states[name].forced}
        self.forced = others | {item: name for item, name in forced.items() if isinstance(item, int)}

    def _match(self, issue: Mapping[str, Any]) -> SeriesIssue | None:
        """The issue as one of a series: of the one that it was forced into, else by its title and labels."""
        member, number = self._matcher.match(issue), int(issue["number"])
        name = self.forced.get(number)
        if name is None or (member is not None and member.series == name):
            return member
        assignee = self._matcher.assignee
        return SeriesIssue(number, name, number, assignee is not None and assignee.is_assigned(issue), issue)

    async def survey(self, stable: bool = False) -> IssueSurvey:
        """List the open issues.

        If an issue is closed while a list of several pages is read, the others move, and one of them can be missed
        between two pages. With ``stable`` the list is read again until it is the same twice; unchanged pages are
        free."""
        try:
            issues = await self._list(self._label_filter, stable)
            if self._label:
                issues += await self._list({"labels": TRACKING_LABEL})
        except RequestRejected as error:
            raise self._cannot_list(error) from None
        series: dict[str, dict[int, SeriesIssue]] = {}
        tracking: dict[int, Mapping[str, Any]] = {}
        others = []
        for issue in issues:
            member = self._match(issue)
            if member is not None:
                series.setdefault(member.series, {})[member.number] = member
            elif has_label(issue, TRACKING_LABEL) and "pull_request" not in issue:
                tracking[int(issue["number"])] = issue
            else:
                others.append(issue)
        return IssueSurvey(series, tuple(tracking[number] for number in sorted(tracking)), tuple(others))

    def near_misses(self, survey: IssueSurvey) -> list[NearMiss]:
        """The open issues that belong to no series but look like it."""
        misses = (self._matcher.near_miss(issue, survey.series) for issue in survey.others)
        return [miss for miss in misses if miss is not None]

    @property
    def _label_filter(self) -> dict[str, str]:
        return {"labels": self._label} if self._label else {}

    def _cannot_list(self, error: RequestRejected) -> RegisterUnavailable:
        return RegisterUnavailable(f"cannot list the issues of {self._client.url}: {error}")

    async def _list(self, narrowed: Mapping[str, str], stable: bool = False) -> list[Any]:
        query = {"state": "open", "sort": "created", "direction": "asc", **narrowed}
        issues = await self._client.get_all("issues", query)
        if not stable or len(issues) < PAGE_SIZE:
            return issues
        for _ in range(STABLE_LIST_TRIES):
            before, issues = issues, await self._client.get_all("issues", query)
            if [*map(_relevant_fields, before)] == [*map(_relevant_fields, issues)]:
                return issues
        raise RegisterUnavailable(f"the issues of {self._client.url} change too fast to be listed")

    async def observe(self, name: str, survey: IssueSurvey, known: Iterable[Item | None]) -> ObservedSeries:
        """One series of a survey. ``known`` are the issues in its state; those not in the survey are read."""
        observed = ObservedSeries(dict(survey.series.get(name, {})))
        for number in known:
            if isinstance(number, int) and number not in observed.open:
                observed.add(number, await self._read(number, name))
        return observed

    async def observe_assignments(self, name: str, survey: IssueSurvey, active: Item | None = None) -> ObservedSeries:
        """One series of an earlier survey, with the present assignments.

        Only the assigned issues are listed, so it is fast however many issues are open. If ``active`` is named, because
        the caller is about to assign it, it and the issues that were assigned are also read by themselves."""
        known = survey.series.get(name, {})
        listed = [member for issue in await self._list_assigned() if (member := self._match(issue)) is not None]
        seen = {member.number: member for member in listed if member.series == name}
        observed = ObservedSeries({number: replace(member, assigned=False) for number, member in known.items()} | seen)
        before = [number for number, member in known.items() if member.assigned]
        for number in dict.fromkeys([active, *before] if active is not None else []):
            if isinstance(number, int) and number not in seen:
                observed.add(number, await self._read(number, name))
        return observed

    async def _list_assigned(self) -> list[Any]:
        """GitHub spells a bot in several ways, so for a bot the issues of all assignees are listed."""
        assignee = self._matcher.assignee
        login = "*" if assignee is None or assignee.is_bot else assignee.login
        try:
            return await self._list({**self._label_filter, "assignee": login}, stable=True)
        except RequestRejected as error:
            if error.status == 422:  # the login does not exist
                return []
            raise self._cannot_list(error) from None

    async def live_issues(self, name: str, assignee_is_known: bool) -> list[Live]:
        """The open issues that a series is rebuilt from. Without a known assignee, the only assigned issue counts as
        the one being worked on.

        Raises CannotRebuild if there is no open issue: the pattern is more likely wrong than the whole series done, and
        an empty state would free it."""
        issues = list((await self.survey(stable=True)).series.get(name, {}).values())
        if not issues:
            raise CannotRebuild(
                f"no open issue of {self._client.url} belongs to {name} by these patterns and labels; nothing was "
                "written; give the pattern and the label that sync uses, or --empty if no issue is open"
            )
        if assignee_is_known:
            return [issue.live for issue in issues]
        taken = [issue.number for issue in issues if issue.data.get("assignees")]
        if len(taken) > 1:
            numbers = ", ".join(f"#{number}" for number in taken)
            raise CannotRebuild(f"{numbers} of {name} are assigned: name the assignee, so that the active one is known")
        return [issue.live._replace(assigned=issue.number in taken) for issue in issues]

    async def _read(self, number: int, name: str) -> SeriesIssue | Departure:
        issue = await read_open_issue(self._client, number)
        if isinstance(issue, Departure):
            return issue
        member = self._match(issue)
        return member if member is not None and member.series == name else Departure.EVICTED


async def read_open_issue(client: GitHubClient, number: int) -> Mapping[str, Any] | Departure:
    """An issue, or a pull request, if it is open; otherwise why it is not."""
    try:
        issue: Mapping[str, Any] = await client.get(f"issues/{number}")
    except RequestRejected as error:
        if error.status in (301, 302, 307, 308):
            return Departure.TRANSFERRED
        if error.status in (404, 410):
            return Departure.DELETED
        raise RegisterUnavailable(f"cannot read issue #{number}: {error}") from None
    if issue.get("state") == "open":
        return issue
    pull = issue.get("pull_request")
    if isinstance(pull, Mapping):
        return Departure.COMPLETED if pull.get("merged_at") else Departure.ABANDONED
    return await _closed_by(client, number)


async def _closed_by(client: GitHubClient, number: int) -> Departure:
    data, errors = await client.graphql(_CLOSER, {"owner": client.owner, "name": client.name, "number": number})
    try:
        events = data["repository"]["issue"]["timelineItems"]["nodes"]
        closer = (events[-1] if events else {}).get("closer") or {}
    except (KeyError, TypeError, AttributeError):
        raise RegisterUnavailable(f"cannot tell what closed issue #{number}: {graphql_reason(errors)}") from None
    merged = closer.get("__typename") == "Commit" or closer.get("merged") is True
    return Departure.COMPLETED if merged else Departure.ABANDONED


def _relevant_fields(issue: Mapping[str, Any]) -> tuple[Any, ...]:
    """A comment also changes an issue, and a busy repository always gets one."""
    people = [person.get("login") for person in issue.get("assignees") or [] if isinstance(person, Mapping)]
    return issue.get("number"), issue.get("title"), issue.get("state"), sorted(labels_of(issue)), people
