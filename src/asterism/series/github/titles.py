"""How titles name a series without a pattern of the user's, and titles that almost do.

These forms name a series and a micro number: ``RFC-093-02: …``, ``Flow-RFC-009-01: …``, ``[RFC-051-02] …`` and
``RFC 050 - 01 …``. The name is the code in capitals and its number, joined by a hyphen, with the words before them if
hyphens join these too: ``RFC-093``, ``Flow-RFC-009``, ``RFC-051``, ``RFC-050``.

What only looks like one does not: names of standards (``ISO-8859-01``, ``CVE-2024-12345``), dates (``REL-2024-01-15``),
years in the place of the micro number (``COVID-19-2020``). With spaces around the hyphen a sentence looks much the same
(``RFC 2119 - 10 reasons``), so there one of the two numbers begins with a zero, or a colon, a dash or the end follows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

STANDARDS = (
    *("AES", "ANSI", "CVE", "CWE", "DIN", "ECMA", "EN", "FIPS", "HTTP", "IEC", "IEEE", "ISO", "SHA", "TLS", "UTF"),
)
"""Codes that are followed by two numbers in titles of any repository, and name no series."""

_DASH = "[-\u2010\u2011\u2013\u2014]"
_CODE = f"(?!(?:{'|'.join(STANDARDS)})[-\\s])[A-Z]+"
_BETWEEN = rf"\s*{_DASH}\s*"
_CERTAIN = (  # which of the forms with spaces are no sentence
    rf"(?=[A-Z]+-[0-9]+-[0-9]|[A-Z]+[-\s]\s*0|[A-Z]+[-\s]\s*[0-9]+{_BETWEEN}(?:0|[0-9]+\s*(?:[\].:,;]|{_DASH}|$)))"
)
_NO_DATE = r"(?!(?:19|20)[0-9]{2}-[0-9]{2}-[0-9]{2})"
_NO_YEAR = r"(?!(?:19|20)[0-9]{2}\b)"

TITLE_PATTERN = (
    r"^\s*(?P<bracket>\[\s*)?"
    rf"(?P<series>(?:[A-Z][A-Za-z0-9]*-)*{_CERTAIN}{_CODE}(?:-|\s+){_NO_DATE}[0-9]+)"
    rf"{_BETWEEN}{_NO_YEAR}(?P<micro>[0-9]+)\b"
    r"(?(bracket)\s*\])"
)

_LOOSE = re.compile(
    rf"\s*[\[(]?\s*(?:[a-z][a-z0-9]*-)*(?P<code>[a-z]{{2,}})[-_\s]*[0-9]+\s*(?:{_DASH}|[_./:\s#])\s*[0-9]+",
    re.IGNORECASE,
)
_WITHOUT_MICRO = re.compile(r"\s*\[?\s*(?P<series>(?:[A-Z][A-Za-z0-9]*-)*[A-Z]+(?:-|\s+)[0-9]+)(?![0-9])")
_WORDS = re.compile(r"(?<![\w-])[\[(]?\w")
_NAME = re.compile(r"(?:.*-)?([A-Za-z]+)-0*([0-9]+)")

LONGEST_TITLE = 300
"""Letters of a title that are looked at: GitHub takes 256."""


class NearMiss(NamedTuple):
    """An open issue that belongs to no series although its title looks as if it should, and why it does not."""

    number: int
    title: str
    why: str


def canonical(series: str) -> str:
    """``RFC 050`` is ``RFC-050``."""
    return re.sub(r"\s+", "-", series)


def why_not(title: str, pattern: re.Pattern[str], known: Collection[str]) -> str | None:
    """Why a title that does not match the ``pattern`` names no series; None if it does not look like one. ``known`` are
    the names of series that others of the repository belong to."""
    title = title[:LONGEST_TITLE]
    if re.compile(pattern.pattern, pattern.flags | re.IGNORECASE).search(title):
        return "capitals are written as small letters"
    for word in list(_WORDS.finditer(title))[1:]:
        if pattern.match(title[word.start() :]):
            return "it does not stand at the beginning of the title"
    if pattern.pattern != TITLE_PATTERN:
        return None
    whole = _WITHOUT_MICRO.match(title)
    loose = _LOOSE.match(title)
    code = loose["code"].upper() if loose is not None else ""
    if code in STANDARDS:
        return f"{code} is taken for the name of a standard"
    codes = {match[1].upper() for name in known if (match := _NAME.fullmatch(name)) is not None}
    if loose is not None and (loose["code"].isupper() or code in codes):
        return "it is written in another way than RFC-093-02"
    if whole is not None and canonical(whole["series"]) in known:
        return "it has no micro number"
    return None


def lookalikes(names: Iterable[str]) -> list[list[str]]:
    """Names of series that may be meant for one: ``RFC-93`` and ``RFC-093``, ``RFC-009`` and ``Flow-RFC-009``."""
    alike: dict[tuple[str, int], list[str]] = {}
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is not None:
            alike.setdefault((match[1].upper(), int(match[2])), []).append(name)
    return [group for group in alike.values() if len(group) > 1]
