"""What is kept beside the state of a series, in the ref that says which issue tracks it.

By what its issues are found: the patterns and the label that whoever keeps it is run with. Who comes with others does
not take for renamed what only they find. And which issue was announced last: if the state is lost, that and the
tracking issue are what remains of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from asterism.core.series.machine import Series, UnreadableSeries
from asterism.series.github.sync_reports import SeriesReport
from asterism.series.github.titles import TITLE_PATTERN

HIGHEST = 2**53
"""No series is changed that often: a higher revision was written by hand, or by mistake."""


def kept_in(text: str | None, name: str) -> Mapping[str, Any]:
    """What that ref says of a series; nothing if that cannot be told."""
    try:
        data = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) and data.get("series") == name else {}


class Remains(NamedTuple):
    """What is known of a series without its state: a revision that it had, and who was active since when."""

    revision: int = 0
    active: tuple[tuple[int, float | None], ...] = ()

    def dated(self, series: Series) -> Series:
        """The series, with since when its active issue is active, if that is known here."""
        for number, since in self.active:
            series = series.active_since(number, since)
        return series


NOTHING = Remains()


def remains_of(text: str | None, name: str, view: str | None = None) -> Remains:
    """What that ref tells of the state, and the body of the tracking issue, which shows it. People can write there what
    they like, so that decides nothing but where the revision goes on."""
    said, shown = announced_in(text, name), _shown_in(view, name)
    revision = said.get("revision") if said is not None else 0
    known = [shown.revision, revision if type(revision) is int else 0]
    active = [(shown.active, shown.since)] if isinstance(shown.active, int) else []
    if said is not None:
        active.append((said["issue"], said["since"]))
    return Remains(min(max(known), HIGHEST), tuple(active))


def _shown_in(view: str | None, name: str) -> Series:
    """The state that a tracking issue shows; one that nobody has used, if it shows none."""
    document = (view or "").replace("\r\n", "\n").partition("```json\n")[2].rpartition("```")[0]
    try:
        return Series.from_text(document, name)
    except UnreadableSeries:
        return Series(name)


def announced_in(text: str | None, name: str) -> Mapping[str, Any] | None:
    """What was announced last; None if nothing was, or if it cannot be told."""
    said = kept_in(text, name).get("announced")
    if not isinstance(said, dict) or type(said.get("issue")) is not int:
        return None
    since = said.get("since")
    return {**said, "since": since if type(since) in (int, float) else None}


def answered_in(text: str | None, name: str) -> list[str]:
    """What people did and was answered with a comment, by the ids of the events, the newest first."""
    found = kept_in(text, name).get("answered")
    return [event for event in found if isinstance(event, str)] if isinstance(found, list) else []


def terms_of(text: str | None, name: str) -> dict[str, str | None] | None:
    """By what the issues of a series were found by whoever keeps it; None if nobody has said so."""
    terms = kept_in(text, name).get("found_by")
    return terms if isinstance(terms, dict) else None


def whose(terms: Mapping[str, str | None] | None) -> str:
    """Why a series is left alone."""
    if terms is None:
        return "for none of its issues is found here"
    label = f" and the label {terms.get('label')!r}" if terms.get("label") else ""
    pattern = terms.get("pattern")
    named = "pattern that is used if none is given" if pattern == TITLE_PATTERN else f"pattern {pattern!r}"
    return f"for its issues are found by the {named}{label}"


def tell_slips(reports: Iterable[SeriesReport], known: bool) -> None:
    """Of a sync that found no issue of any series. If it has kept none before either (``known``), and others keep some,
    its pattern or label is likely to be a slip."""
    reports = list(reports)
    if known or not all(one.left_alone for one in reports):
        return
    for one in reports:
        one.status, one.unknown = "unmatched", True
        one.problem = f"no open issue belongs to any series by these patterns and labels; {one.left_alone}"
