"""Discovery: which series an issue belongs to, and its place there, by its title or a label.

A pattern is a regular expression with the group ``series`` and, for the order within the series, ``micro``. Without a
micro number the number of the issue decides about the order. Pull requests and tracking issues belong to no series, and
neither does an issue without the required label, if one is set. Labels are compared without regard to case, as GitHub
does.

The default title pattern accepts these forms of a series and a micro number: ``RFC-093-02: …``, ``Flow-RFC-009-01: …``,
``[RFC-051-02] …``, ``RFC 050 - 01 …`` and ``RFC-093: Micro 2 - …``. The name is the code in capitals and its number,
joined by a hyphen, with the words before them that hyphens join too: ``RFC-093``, ``Flow-RFC-009``, ``RFC-051``,
``RFC-050``.

It rejects similar texts: names of standards (``ISO-8859-01``, ``CVE-2024-12345``), dates (``REL-2024-01-15``), and
years in place of the micro number (``COVID-19-2020``). With spaces around the hyphen a sentence looks much the same
(``RFC 2119 - 10 reasons``), so in that form one of the two numbers must begin with a zero, or a colon, a dash or the
end must follow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from asterism.core.series.machine import Live
from asterism.series.register import BadSeriesName, SeriesError, encode_name

LABEL_PATTERN = r"^series:(?P<series>[^/]+)(?:/(?P<micro>\d+))?$"
TRACKING_LABEL = "asterism-series"

STANDARDS = (
    *("AES", "ANSI", "CVE", "CWE", "DIN", "ECMA", "EN", "FIPS", "HTTP", "IEC", "IEEE", "ISO", "SHA", "TLS", "UTF"),
)
"""Codes that two numbers follow in the titles of any repository, and that name no series."""

_DASH = "[-\u2010\u2011\u2013\u2014]"
_CODE = f"(?!(?:{'|'.join(STANDARDS)})[-\\s])[A-Z]+"
_BETWEEN = rf"\s*{_DASH}\s*"
_NOT_A_SENTENCE = (  # for the forms with spaces
    rf"(?=[A-Z]+-[0-9]+-[0-9]|[A-Z]+[-\s]\s*0|[A-Z]+[-\s]\s*[0-9]+{_BETWEEN}(?:0|[0-9]+\s*(?:[\].:,;]|{_DASH}|$)))"
)
_NOT_A_DATE = r"(?!(?:19|20)[0-9]{2}-[0-9]{2}-[0-9]{2})"
_NOT_A_YEAR = r"(?!(?:19|20)[0-9]{2}\b)"
_MICRO = rf"\s*(?::|{_DASH}|\s)\s*[Mm]icro\s+"
_NAME = rf"{_CODE}(?:-|\s+){_NOT_A_DATE}[0-9]+"
_WORDS_BEFORE = r"^\s*(?P<bracket>\[\s*)?(?P<series>(?:[A-Z][A-Za-z0-9]*-)*"

TITLE_PATTERN = (
    rf"{_WORDS_BEFORE}(?:{_NOT_A_SENTENCE}{_NAME}(?={_BETWEEN}[0-9])|{_NAME}(?={_MICRO})))"
    rf"(?:{_BETWEEN}{_NOT_A_YEAR}|{_MICRO})(?P<micro>[0-9]+)\b"
    r"(?(bracket)\s*\])"
)

EARLIER_PATTERNS = frozenset(
    {rf"{_WORDS_BEFORE}{_NOT_A_SENTENCE}{_NAME}){_BETWEEN}{_NOT_A_YEAR}(?P<micro>[0-9]+)\b(?(bracket)\s*\])"}
)
"""Default patterns of earlier versions, which stored them with each series. What they find, the present one finds."""

_LOOSE_TITLE = re.compile(
    rf"\s*[\[(]?\s*(?:[a-z][a-z0-9]*-)*(?P<code>[a-z]{{2,}})[-_\s]*[0-9]+\s*(?:{_DASH}|[_./:\s#])\s*[0-9]+",
    re.IGNORECASE,
)
_WITHOUT_MICRO = re.compile(r"\s*\[?\s*(?P<series>(?:[A-Z][A-Za-z0-9]*-)*[A-Z]+(?:-|\s+)[0-9]+)(?![0-9])")
_WORDS = re.compile(r"(?<![\w-])[\[(]?\w")
_SERIES_NAME = re.compile(r"(?:.*-)?([A-Za-z]+)-0*([0-9]+)")

MAX_TITLE = 300
"""Characters of a title that are examined; GitHub allows 256."""


class BadPattern(SeriesError):
    """Not a valid regular expression, or one without the group ``series``."""


@dataclass(frozen=True)
class SeriesIssue:
    """An issue of a series. ``data`` is the issue as GitHub returned it."""

    number: int
    series: str
    micro: int
    assigned: bool
    data: Mapping[str, Any]

    @property
    def live(self) -> Live:
        return Live(self.number, self.micro, self.assigned)


class NearMiss(NamedTuple):
    """An open issue that belongs to no series although its title looks like it, and the reason."""

    number: int
    title: str
    why: str


class Assignee:
    """The account that series assign. GitHub spells one bot in several ways: ``copilot-swe-agent`` in assignments,
    ``Copilot`` in what it shows."""

    _COPILOT = frozenset({"copilot-swe-agent", "copilot"})

    def __init__(self, login: str) -> None:
        self.login = login.removeprefix("@")
        plain = self.login.lower().removesuffix("[bot]")
        self._names = self._COPILOT if plain in self._COPILOT else frozenset({plain})
        self.is_bot = self.login.lower().endswith("[bot]") or plain in self._COPILOT

    def is_login(self, login: object) -> bool:
        return isinstance(login, str) and login.lower().removesuffix("[bot]") in self._names

    def is_assigned(self, issue: Mapping[str, Any]) -> bool:
        people = issue.get("assignees") or []
        return any(self.is_login(person.get("login")) for person in people if isinstance(person, Mapping))


class SeriesMatcher:
    """Finds the series of an issue by patterns. Every issue of a series has the ``required`` label, if one is set.

    Raises BadPattern for a pattern that cannot be used."""

    def __init__(
        self,
        title: str = TITLE_PATTERN,
        label: str = LABEL_PATTERN,
        assignee: Assignee | None = None,
        required: str | None = None,
    ) -> None:
        self._title, self._label = _compile(title), _compile(label)
        self.assignee = assignee
        self.required = required
        self.rules: dict[str, str | None] = {
            "pattern": title,
            "label_pattern": label,
            "label": required.casefold() if required else None,
        }
        """The discovery rules, as they are stored with each series."""

    def match(self, issue: Mapping[str, Any]) -> SeriesIssue | None:
        """The issue as one of a series; None if it belongs to none. A label takes precedence over the title."""
        if "pull_request" in issue or has_label(issue, TRACKING_LABEL):
            return None
        if self.required and not has_label(issue, self.required):
            return None
        title = self._title.search(str(issue.get("title") or ""))
        label = next(filter(None, map(self._label.search, labels_of(issue))), None)
        match = label or title
        if match is None:
            return None
        series = self._name_in_label(match["series"] or "") if label else self._name_in_title(match)
        try:
            encode_name(series)
        except BadSeriesName:
            return None
        number = int(issue["number"])
        micro = _micro(match) or (_micro(title) if title else None)
        assigned = self.assignee is not None and self.assignee.is_assigned(issue)
        return SeriesIssue(number, series, int(micro) if micro else number, assigned, issue)

    def near_miss(self, issue: Mapping[str, Any], known: Collection[str]) -> NearMiss | None:
        """Why an issue without a series looks like one of a series. ``known`` are the series of other issues."""
        title = str(issue.get("title") or "")
        if "pull_request" in issue or has_label(issue, TRACKING_LABEL):
            return None
        why = mismatch_reason(title, self._title, known)
        return NearMiss(int(issue["number"]), title, why) if why else None

    def _name_in_title(self, title: re.Match[str]) -> str:
        """A custom pattern defines the name exactly; the default one also accepts spaces."""
        name = title["series"] or ""
        return canonical_name(name) if self._title.pattern == TITLE_PATTERN else name

    def _name_in_label(self, series: str) -> str:
        """A label in lower case means the series that a title can only name in capitals."""
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


def canonical_name(series: str) -> str:
    """``RFC 050`` is ``RFC-050``."""
    return re.sub(r"\s+", "-", series)


def mismatch_reason(title: str, pattern: re.Pattern[str], known: Collection[str]) -> str | None:
    """Why a title that does not match the pattern names no series; None if it does not look like one.

    ``known`` are the names of the other series in the repository."""
    title = title[:MAX_TITLE]
    if re.compile(pattern.pattern, pattern.flags | re.IGNORECASE).search(title):
        return "its capitals are written in lower case"
    for word in list(_WORDS.finditer(title))[1:]:
        if pattern.match(title[word.start() :]):
            return "the name is not at the beginning of the title"
    if pattern.pattern != TITLE_PATTERN:
        return None
    whole = _WITHOUT_MICRO.match(title)
    loose = _LOOSE_TITLE.match(title)
    code = loose["code"].upper() if loose is not None else ""
    if code in STANDARDS:
        return f"{code} is the name of a standard"
    codes = {match[1].upper() for name in known if (match := _SERIES_NAME.fullmatch(name)) is not None}
    if loose is not None and (loose["code"].isupper() or code in codes):
        return "the name is not written like RFC-093-02"
    if whole is not None and canonical_name(whole["series"]) in known:
        return "it has no micro number"
    return None


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Groups of names that may mean one series: ``RFC-93`` and ``RFC-093``, ``RFC-009`` and ``Flow-RFC-009``."""
    alike: dict[tuple[str, int], list[str]] = {}
    for name in sorted(names):
        match = _SERIES_NAME.fullmatch(name)
        if match is not None:
            alike.setdefault((match[1].upper(), int(match[2])), []).append(name)
    return [group for group in alike.values() if len(group) > 1]


def _micro(match: re.Match[str]) -> str | None:
    """The digits of the micro number; None if there is none, or if a custom pattern allows other characters."""
    micro = match.groupdict().get("micro")
    return micro if micro is not None and micro.isdecimal() else None


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadPattern(f"{pattern!r} is not a valid regular expression: {error}") from None
    if "series" not in compiled.groupindex:
        raise BadPattern(f"{pattern!r} has no group for the name of the series: add (?P<series>…)")
    return compiled
