"""What is so on GitHub: which issues of a series are open and assigned, and what became of those that are not.

The open issues are listed, not searched for: a search lags behind. An issue that is missing from the list is looked at
by itself before anything is concluded, since the list was made a moment ago. Closed by a pull request that was merged,
or by a commit, it is completed; closed otherwise it is abandoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from asterism.core.series.machine import Item, Live
from asterism.series.github.discovery import TRACKING_LABEL, Finder, Found, has_label, labels_of
from asterism.series.github.github_client import PER_PAGE, GitHubClient, Refused, said
from asterism.series.github.titles import NearMiss
from asterism.series.register import RegisterUnavailable, SeriesError

STEADY = 5
"""How often a list that changes while it is read is read again."""
_CLOSER = """query($owner: String!, $name: String!, $number: Int!) { repository(owner: $owner, name: $name) {
  issue(number: $number) { timelineItems(itemTypes: [CLOSED_EVENT], last: 1) { nodes { ... on ClosedEvent {
    closer { __typename ... on PullRequest { number merged } ... on Commit { oid } } } } } } } }"""


class Fate(StrEnum):
    """What became of an issue that was in a series."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    TRANSFERRED = "transferred"
    DELETED = "deleted"
    RENAMED = "renamed"
    """Open, but of this series no more."""


@dataclass(frozen=True)
class Survey:
    """The open issues by series, the tracking issues among them, and the ``others``."""

    series: Mapping[str, Mapping[int, Found]]
    tracking: tuple[Mapping[str, Any], ...]
    others: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Reality:
    """Of one series: what lives, and what became of what was known and lives no more."""

    live: dict[int, Found] = field(default_factory=dict)
    gone: dict[int, Fate] = field(default_factory=dict)

    def holders(self) -> list[int]:
        """Those that the bot is assigned to, in the order of their micro numbers."""
        ordered = sorted(self.live.values(), key=lambda found: (found.micro, found.number))
        return [found.number for found in ordered if found.assigned]


class NoneFound(SeriesError):
    """No open issue of a series was found, or not which one is being worked on: nothing to rebuild a state from."""


class Looking:
    """Asks GitHub with ``client`` and tells series apart with ``finder``. The label that it requires narrows the list;
    the tracking issues are then listed apart."""

    def __init__(self, client: GitHubClient, finder: Finder) -> None:
        self._client, self._finder, self._label = client, finder, finder.required

    async def survey(self, steady: bool = False) -> Survey:
        """``steady`` is for who relies on nothing being missing: an issue that is closed while a list of several pages
        is read moves the others, and one of them can slip through between two pages. Then it is read again until it
        stays the same in what matters here; what has not changed costs nothing."""
        try:
            issues = await self._listed(self._narrowed, steady)
            if self._label:
                issues += await self._listed({"labels": TRACKING_LABEL})
        except Refused as refused:
            raise RegisterUnavailable(f"the issues of {self._client.url} cannot be listed: {refused}") from None
        series: dict[str, dict[int, Found]] = {}
        tracking: dict[int, Mapping[str, Any]] = {}
        others = []
        for issue in issues:
            found = self._finder.find(issue)
            if found is not None:
                series.setdefault(found.series, {})[found.number] = found
            elif has_label(issue, TRACKING_LABEL) and "pull_request" not in issue:
                tracking[int(issue["number"])] = issue
            else:
                others.append(issue)
        return Survey(series, tuple(tracking[number] for number in sorted(tracking)), tuple(others))

    def near_misses(self, survey: Survey) -> list[NearMiss]:
        """The open issues that belong to no series and look as if they should."""
        found = (self._finder.near_miss(issue, survey.series) for issue in survey.others)
        return [one for one in found if one is not None]

    @property
    def _narrowed(self) -> dict[str, str]:
        return {"labels": self._label} if self._label else {}

    async def _listed(self, narrowed: Mapping[str, str], steady: bool = False) -> list[Any]:
        asked = {"state": "open", "sort": "created", "direction": "asc", **narrowed}
        issues = await self._client.pages("issues", asked)
        if not steady or len(issues) < PER_PAGE:
            return issues
        for _ in range(STEADY):
            before, issues = issues, await self._client.pages("issues", asked)
            if [*map(_gist, before)] == [*map(_gist, issues)]:
                return issues
        raise RegisterUnavailable(f"the issues of {self._client.url} change too quickly to be listed")

    async def fresh(self, name: str, survey: Survey, active: Item | None = None) -> Reality:
        """What a ``survey`` said of one series, with who is assigned by now. It takes a moment however many issues are
        open: those that are assigned are listed. For who is to act, the ``active`` one and who was assigned before are
        looked at by themselves too, if they are not among them."""
        known = survey.series.get(name, {})
        listed = [found for issue in await self._assigned() if (found := self._finder.find(issue)) is not None]
        seen = {found.number: found for found in listed if found.series == name}
        reality = Reality({number: replace(found, assigned=False) for number, found in known.items()} | seen)
        before = [number for number, found in known.items() if found.assigned]
        for number in dict.fromkeys([active, *before] if active is not None else []):
            if isinstance(number, int) and number not in seen:
                looked = await self.look(number, name)
                if isinstance(looked, Found):
                    reality.live[number] = looked
                else:
                    reality.live.pop(number, None)
                    reality.gone[number] = looked
        return reality

    async def _assigned(self) -> list[Any]:
        """GitHub writes a bot in several ways, so for one all that are assigned to anybody are listed."""
        assignee = self._finder.assignee
        login = "*" if assignee is None or assignee.is_bot else assignee.login
        try:
            return await self._listed({**self._narrowed, "assignee": login}, steady=True)
        except Refused as refused:
            if refused.status == 422:  # nobody has this login
                return []
            raise RegisterUnavailable(f"the issues of {self._client.url} cannot be listed: {refused}") from None

    async def live(self, name: str, assignee_is_known: bool) -> list[Live]:
        """What a series is rebuilt from. Raises NoneFound if no issue is: more likely the pattern is not that of this
        series than that all of it is done, and to write an empty state would free it. If it is not known whom series
        assign, the one issue that is assigned to anybody is the one that is being worked on."""
        found = list((await self.survey(steady=True)).series.get(name, {}).values())
        if not found:
            raise NoneFound(
                f"no open issue of {self._client.url} belongs to {name} by these patterns and labels: nothing was "
                "written; give the pattern and the label that sync is run with, or say that none lives"
            )
        if assignee_is_known:
            return [one.live for one in found]
        taken = [one.number for one in found if one.form.get("assignees")]
        if len(taken) > 1:
            numbers = ", ".join(f"#{number}" for number in taken)
            raise NoneFound(f"{numbers} are assigned in {name}: to tell which is active, say whom series assign")
        return [one.live._replace(assigned=one.number in taken) for one in found]

    async def reality(self, name: str, survey: Survey, known: Iterable[Item | None]) -> Reality:
        """``known`` are the issues that the state knows of."""
        reality = Reality(dict(survey.series.get(name, {})))
        for number in known:
            if isinstance(number, int) and number not in reality.live:
                seen = await self.look(number, name)
                if isinstance(seen, Found):
                    reality.live[number] = seen
                else:
                    reality.gone[number] = seen
        return reality

    async def look(self, number: int, name: str) -> Found | Fate:
        """One issue by itself."""
        issue = await open_or_fate(self._client, number)
        if isinstance(issue, Fate):
            return issue
        found = self._finder.find(issue)
        return found if found is not None and found.series == name else Fate.RENAMED


async def open_or_fate(client: GitHubClient, number: int) -> Mapping[str, Any] | Fate:
    """An issue, or a pull request, if it is open; what became of it otherwise."""
    try:
        issue: Mapping[str, Any] = await client.get(f"issues/{number}")
    except Refused as refused:
        if refused.status in (301, 302, 307, 308):
            return Fate.TRANSFERRED
        if refused.status in (404, 410):
            return Fate.DELETED
        raise RegisterUnavailable(f"issue #{number} cannot be read: {refused}") from None
    if issue.get("state") == "open":
        return issue
    pull = issue.get("pull_request")
    if isinstance(pull, Mapping):
        return Fate.COMPLETED if pull.get("merged_at") else Fate.ABANDONED
    return await _fate(client, number)


async def _fate(client: GitHubClient, number: int) -> Fate:
    data, errors = await client.ask(_CLOSER, {"owner": client.owner, "name": client.name, "number": number})
    try:
        events = data["repository"]["issue"]["timelineItems"]["nodes"]
        closer = (events[-1] if events else {}).get("closer") or {}
    except (KeyError, TypeError, AttributeError):
        raise RegisterUnavailable(f"what closed issue #{number} is not known: {said(errors)}") from None
    merged = closer.get("__typename") == "Commit" or closer.get("merged") is True
    return Fate.COMPLETED if merged else Fate.ABANDONED


def _gist(issue: Mapping[str, Any]) -> tuple[Any, ...]:
    """What matters here. A comment changes an issue too, and in a busy repository there is always one."""
    people = [person.get("login") for person in issue.get("assignees") or [] if isinstance(person, Mapping)]
    return issue.get("number"), issue.get("title"), issue.get("state"), sorted(labels_of(issue)), people
