"""What is stored beside a series: its tracking issue, discovery rules and last announcements.

It names the tracking issue, and the discovery rules: the patterns and the label by which the issues of the series are
found. A sync with other rules must not take every issue for renamed. It also has the last announcements and answers. If
the state is lost, the record and the body of the tracking issue tell its last revision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from asterism.core.series.machine import Series, UnreadableSeries
from asterism.series.github.discovery import TITLE_PATTERN

MAX_REVISION = 2**53
"""No series changes that often: a higher revision was written by hand, or by mistake."""

KEPT_EVENTS = 10
"""Announcements and answers that are kept: a stale replica of GitHub may show a state that was announced before."""

Rules = Mapping[str, str | None]


@dataclass(frozen=True)
class TrackingRecord:
    """What the record of a series says; a field that is missing or not valid has its default.

    ``announced`` is the last announcement: ``issue``, ``since``, ``revision``, ``mark`` and the ``earlier`` ones.
    ``answered`` has the ids of the unassignments that were answered with a comment, newest first. ``mark`` identifies
    the writer of the last answer."""

    series: str
    issue: int | None = None
    rules: Rules | None = None
    announced: Mapping[str, Any] | None = None
    answered: tuple[str, ...] = ()
    mark: str | None = None

    @classmethod
    def parse(cls, text: str | None, name: str) -> TrackingRecord:
        try:
            data = json.loads(text or "null")
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or data.get("series") != name:
            return cls(name)
        issue, rules, announced, answered = (data.get(key) for key in ("issue", "found_by", "announced", "answered"))
        if isinstance(announced, dict) and type(announced.get("issue")) is int:
            since = announced.get("since")
            announced = {**announced, "since": since if type(since) in (int, float) else None}
        else:
            announced = None
        return cls(
            name,
            issue if type(issue) is int else None,
            rules if isinstance(rules, dict) else None,
            announced,
            tuple(event for event in answered if isinstance(event, str)) if isinstance(answered, list) else (),
        )

    def to_text(self) -> str:
        optional = {
            "found_by": self.rules and dict(self.rules),
            "announced": self.announced,
            "answered": list(self.answered),
            "mark": self.mark,
        }
        written = {key: value for key, value in optional.items() if value}
        return json.dumps({"series": self.series, "issue": self.issue, **written}) + "\n"

    def has_announced(self, series: Series) -> bool:
        """Whether the record has the announcement of this active issue since this time."""
        return [series.active, series.since] in self._announcements()

    def announcing(self, series: Series, mark: str) -> TrackingRecord:
        """The record with the announcement of the active issue."""
        announced = {"issue": series.active, "since": series.since, "revision": series.revision, "mark": mark}
        return replace(self, announced={**announced, "earlier": self._announcements()[: KEPT_EVENTS - 1]})

    def answering(self, event: str, mark: str) -> TrackingRecord:
        """The record with the answer to an unassignment."""
        return replace(self, answered=(event, *self.answered)[:KEPT_EVENTS], mark=mark)

    def _announcements(self) -> list[Any]:
        if self.announced is None:
            return []
        earlier = self.announced.get("earlier")
        last = [self.announced["issue"], self.announced["since"]]
        return [last, *(earlier if isinstance(earlier, list) else [])]


class LastKnown(NamedTuple):
    """What is known of a series without its state: a revision that it had, and issues that were active, since when."""

    revision: int = 0
    active: tuple[tuple[int, float | None], ...] = ()

    @classmethod
    def of(cls, record: TrackingRecord, body: str | None = None) -> LastKnown:
        """From the record, and the body of the tracking issue, which shows the state.

        Anyone can edit the body, so it decides only about the revision to continue from."""
        shown, announced = _state_in_body(body, record.series), record.announced
        revision = announced.get("revision") if announced is not None else 0
        known = [shown.revision, revision if type(revision) is int else 0]
        active = [(shown.active, shown.since)] if isinstance(shown.active, int) else []
        if announced is not None:
            active.append((announced["issue"], announced["since"]))
        return cls(min(max(known), MAX_REVISION), tuple(active))

    def restore_since(self, series: Series) -> Series:
        """The series with the time since when its issue is active, if that is known."""
        for number, since in self.active:
            series = series.active_since(number, since)
        return series


NOTHING_KNOWN = LastKnown()


def _state_in_body(body: str | None, name: str) -> Series:
    """The state that a tracking issue shows; an unused series if it shows none."""
    document = (body or "").replace("\r\n", "\n").partition("```json\n")[2].rpartition("```")[0]
    try:
        return Series.from_text(document, name)
    except UnreadableSeries:
        return Series(name)


def other_rules_reason(rules: Rules | None) -> str:
    """Why a series whose issues are found by other rules is skipped."""
    if rules is None:
        return "because these patterns and labels find none of its issues"
    label = f" and the label {rules.get('label')!r}" if rules.get("label") else ""
    pattern = rules.get("pattern")
    named = "default pattern" if pattern == TITLE_PATTERN else f"pattern {pattern!r}"
    return f"because its issues are found by the {named}{label}"
