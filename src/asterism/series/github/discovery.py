"""Which series an issue belongs to, and which place it has there: told by its title, or by a label.

A pattern is a regular expression with the group ``series`` and, for the order within it, ``micro``; the one for titles
that is used if none is given is in ``titles.py``. Where there is no micro number, or what stands there is none, the
number of the issue serves. A pull request belongs to no series, and neither does a tracking issue. If a label is
required, what does not have it belongs to none either. To GitHub labels are the same in whatever case.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from asterism.core.series.machine import Live
from asterism.series.github.titles import TITLE_PATTERN, NearMiss, canonical, why_not
from asterism.series.register import BadSeriesName, SeriesError, checked_name

LABEL_PATTERN = r"^series:(?P<series>[^/]+)(?:/(?P<micro>\d+))?$"
TRACKING_LABEL = "asterism-series"

__all__ = ["LABEL_PATTERN", "TITLE_PATTERN", "TRACKING_LABEL", "Assignee", "BadPattern", "Finder", "Found"]


class BadPattern(SeriesError):
    """What should find series is no regular expression, or does not say which part of it is the series."""


@dataclass(frozen=True)
class Found:
    """An issue of a series, as GitHub showed it."""

    number: int
    series: str
    micro: int
    assigned: bool
    form: Mapping[str, Any]

    @property
    def live(self) -> Live:
        return Live(self.number, self.micro, self.assigned)


class Assignee:
    """Whom a series assigns. GitHub writes one bot in several ways: ``copilot-swe-agent`` where it is assigned,
    ``Copilot`` where it is shown."""

    _ONE_BOT = frozenset({"copilot-swe-agent", "copilot"})

    def __init__(self, login: str) -> None:
        self.login = login.removeprefix("@")
        plain = self.login.lower().removesuffix("[bot]")
        self._names = self._ONE_BOT if plain in self._ONE_BOT else frozenset({plain})
        self.is_bot = self.login.lower().endswith("[bot]") or plain in self._ONE_BOT

    def named(self, login: object) -> bool:
        return isinstance(login, str) and login.lower().removesuffix("[bot]") in self._names

    def among(self, issue: Mapping[str, Any]) -> bool:
        """Whether this issue is assigned to it."""
        people = issue.get("assignees") or []
        return any(self.named(person.get("login")) for person in people if isinstance(person, Mapping))


class Finder:
    """``required`` is a label that every issue of a series has. Raises BadPattern for patterns that cannot be used."""

    def __init__(
        self,
        title: str = TITLE_PATTERN,
        label: str = LABEL_PATTERN,
        assignee: Assignee | None = None,
        required: str | None = None,
    ) -> None:
        self._title, self._label = _compiled(title), _compiled(label)
        self.assignee = assignee
        self.required = required
        self.terms: dict[str, str | None] = {
            "pattern": title,
            "label_pattern": label,
            "label": required.casefold() if required else None,
        }
        """By what it tells series apart, as it is kept with each series."""

    def find(self, issue: Mapping[str, Any]) -> Found | None:
        """None for one that belongs to no series. A label says more than the title."""
        if "pull_request" in issue or has_label(issue, TRACKING_LABEL):
            return None
        if self.required and not has_label(issue, self.required):
            return None
        title = self._title.search(str(issue.get("title") or ""))
        label = next(filter(None, map(self._label.search, labels_of(issue))), None)
        match = label or title
        if match is None:
            return None
        try:
            series = checked_name(self._as_titles_say(match["series"] or "") if label else self._named(match))
        except BadSeriesName:
            return None
        number = int(issue["number"])
        micro = _micro(match) or (_micro(title) if title else None)
        assigned = self.assignee is not None and self.assignee.among(issue)
        return Found(number, series, int(micro) if micro else number, assigned, issue)

    def near_miss(self, issue: Mapping[str, Any], known: Collection[str]) -> NearMiss | None:
        """Why an issue that belongs to no series looks as if it should. ``known`` are the series of others."""
        title = str(issue.get("title") or "")
        if "pull_request" in issue or has_label(issue, TRACKING_LABEL):
            return None
        why = why_not(title, self._title, known)
        return NearMiss(int(issue["number"]), title, why) if why else None

    def _named(self, title: re.Match[str]) -> str:
        """A pattern of the user's says what the name is, to the letter."""
        name = title["series"] or ""
        return canonical(name) if self._title.pattern == TITLE_PATTERN else name

    def _as_titles_say(self, series: str) -> str:
        """A label that names in small letters what a title could only name in capitals means the same series."""
        *words, code, number = ["", *series.split("-")]
        capitals = "-".join([*(word.capitalize() for word in words if word), code.upper(), number])
        for name in (series, capitals.strip("-")):
            title = self._title.search(f"{name}-1")
            if title is not None and title["series"] == name and name.lower() == series.lower():
                return name
        return series


def labels_of(issue: Mapping[str, Any]) -> list[str]:
    return [
        str(label.get("name") if isinstance(label, Mapping) else label)
        for label in issue.get("labels") or []
        if label is not None
    ]


def has_label(issue: Mapping[str, Any], name: str) -> bool:
    return name.casefold() in (label.casefold() for label in labels_of(issue))


def _micro(match: re.Match[str]) -> str | None:
    """Its digits; None if it has none, or something else stands there, as a pattern of the user's may allow."""
    micro = match.groupdict().get("micro")
    return micro if micro is not None and micro.isdecimal() else None


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadPattern(f"{pattern!r} is no regular expression: {error}") from None
    if "series" not in compiled.groupindex:
        raise BadPattern(f"{pattern!r} does not say which part is the series: it needs a group (?P<series>…)")
    return compiled
