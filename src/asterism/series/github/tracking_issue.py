"""The tracking issue of a series, which shows its state to people, and the record in a ref that names the issue.

GitHub has no conditional update of an issue, so the body is never read as the state. It is written from the state, and
manual edits are overwritten. The ref ``refs/asterism/tracking/NAME`` has the record, which names the issue, and is
changed by compare-and-swap; of two processes that create an issue, the second closes its own again. If the issue is
deleted or transferred, another one with the label is used, or a new one is created under the assignment lock of the
series, so that a hundred processes that find none do not create a hundred.

The record also has the discovery rules: the patterns and the label by which the issues of the series are found. A sync
with other rules must not take every issue for renamed. Last, it has the latest announcements and answers. An active
issue that is not among them is announced by the process that adds it to the record. Revisions are not compared, because
they restart where a state was lost. If the state is lost, the record and the body of the tracking issue tell its last
revision.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from asterism.core.json_values import JsonObject
from asterism.core.series.machine import Series, UnreadableSeries
from asterism.series.github.assignment import Unassignment
from asterism.series.github.discovery import (
    EARLIER_PATTERNS,
    TITLE_PATTERN,
    TRACKING_LABEL,
    SeriesIssue,
    SeriesMatcher,
    has_label,
    labels_of,
)
from asterism.series.github.github_client import GitHubClient, RequestRejected
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.observed_state import Departure
from asterism.series.register import OutcomeUnknown, RegisterUnavailable, RevisionConflict, SeriesError, Snapshot

MAX_BODY = 65_000
"""Characters of a body; GitHub allows 65,536."""
SHORT_QUEUE = 100
"""Queue entries that are shown if the whole queue is too long."""
RECORD_TRIES = 4
"""How often a change of the record is tried."""
MAX_REVISION = 2**53
"""No series changes that often: a higher revision was written by hand, or by mistake."""
KEPT_EVENTS = 10
"""Announcements and answers that are kept: a stale replica of GitHub may show a state that was announced before."""

Rules = Mapping[str, str | None]


# -- the record -------------------------------------------------------------------------------------------------------


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
            _present_rules(rules) if _are_rules(rules) else None,
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


def _are_rules(rules: Any) -> bool:
    """Whether these can be the rules of a matcher; the patterns are compiled there."""
    if not isinstance(rules, dict) or not isinstance(rules.get("label"), str | None):
        return False
    return all(isinstance(rules.get(key), str) for key in ("pattern", "label_pattern"))


def _present_rules(rules: Any) -> Rules:
    """The rules with the present default title pattern in place of an earlier one, which found nothing else."""
    return {**rules, "pattern": TITLE_PATTERN if rules["pattern"] in EARLIER_PATTERNS else rules["pattern"]}


def other_rules_reason(rules: Rules | None) -> str:
    """Why a series whose issues are found by other rules is skipped."""
    if rules is None:
        return "because these patterns and labels find none of its issues"
    label = f" and the label {rules.get('label')!r}" if rules.get("label") else ""
    pattern = rules.get("pattern")
    named = "default pattern" if pattern == TITLE_PATTERN else f"pattern {pattern!r}"
    return f"because its issues are found by the {named}{label}"


# -- the issue --------------------------------------------------------------------------------------------------------


def title_of(name: str) -> str:
    return f"{name} Series State"


def shown_body(name: str, tracking: Iterable[Mapping[str, Any]]) -> str | None:
    """The body of the tracking issue of a series; None if it is not among these issues."""
    return next((issue.get("body") for issue in tracking if issue.get("title") == title_of(name)), None)


def body_of(series: Series, note: str = "") -> str:
    """The body for a state: the same text for the same state, so that it is written only when the state changes.

    A new wording would be written into every tracking issue once, so the words stay as they are.
    Of a queue that is too long for an issue only the beginning is shown, and the document if it fits on one line."""
    document = series.to_text().rstrip("\n")
    one_line = json.dumps(series.to_document(), ensure_ascii=False, separators=(",", ":"))
    body = _body(series, note, len(series.queue), ["```json", document, "```"])
    if len(body) > MAX_BODY:
        body = _body(series, note, SHORT_QUEUE, ["```json", one_line, "```"])
    if len(body) > MAX_BODY:
        body = _body(
            series, note, SHORT_QUEUE, ["The whole of it is too long for an issue: `asterism series status` says it."]
        )
    return body


def _body(series: Series, note: str, places: int, end: list[str]) -> str:
    rows = [f"| active | {_issue(series.active)} |"]
    rows += [f"| {place} | {_issue(item)} |" for place, item in enumerate(series.queue[:places], 1)]
    if len(series.queue) > places:
        rows.append(f"| … | and {len(series.queue) - places} more |")
    paused = plain(series.paused or "")[:500]
    lines = [
        f"<!-- asterism-series: {plain(series.name)} -->",
        f"The state of the series **{plain(series.name)}**: at most one of its issues is assigned at a time, the "
        "others wait in this order. Asterism keeps this view; what is written here by hand is overwritten.",
        *([f"> {note}"] if note else []),
        *([f"> Paused {paused}. Nobody is promoted until it is resumed."] if series.paused else []),
        "",
        "| place | issue |",
        "| --- | --- |",
        *rows,
        "",
        *end,
    ]
    return "\n".join(lines)


def unassigned_note(series: Series, person: str, assignee: str) -> str:
    """The comment on the active issue after a person has unassigned it."""
    name, event = plain(series.name), f"{plain(person)} unassigned {plain(assignee)}"
    if series.paused is not None:
        return f"{event}, so the series {name} is paused. Resume it with `asterism series resume {name}`."
    return (
        f"{event}, but this is the active issue of the series {name}, so it is assigned again. To stop the work on it, "
        f"close it, or pause the series with `asterism series pause {name}`."
    )


def _issue(item: object) -> str:
    return "nobody" if item is None else f"#{item}"


def plain(text: str) -> str:
    """The text without characters that could end a comment or a table, or mention a user."""
    return "".join(letter if letter.isalnum() or letter in " .,:;_-/()" else "·" for letter in text)


class _Comment(NamedTuple):
    """A comment that is made once, by the process that adds it to the record.

    ``is_recorded`` tells whether the record has it, ``add`` adds it with the mark of the process, and ``is_current``
    tells whether it still applies. ``tracking`` is the tracking issue, if that is known."""

    issue: int
    text: str
    message: str
    is_recorded: Callable[[TrackingRecord], bool]
    add: Callable[[TrackingRecord, str], TrackingRecord]
    is_current: Callable[[], Awaitable[bool]] | None = None
    tracking: int | None = None


class TrackingIssues:
    """The tracking issues of a repository. ``rules`` are stored with each series; None leaves the stored ones."""

    def __init__(self, register: GitHubRegister, rules: Rules | None = None) -> None:
        self._client: GitHubClient = register.client
        self._states = register
        self._rules = rules
        self.register = GitHubRegister(register.client, "tracking")

    async def show(
        self, name: str, body: str, candidates: tuple[Mapping[str, Any], ...], seen: Snapshot, create: bool = False
    ) -> int | None:
        """Write the body into the tracking issue.

        :param candidates: the open issues with the tracking label.
        :param seen: the record, as the register has it.
        :returns: the number of the issue; None if there is none and ``create`` is False.
        :raises RegisterUnavailable, OutcomeUnknown: the next sync repeats it.
        """
        ours = [issue for issue in candidates if issue.get("title") == title_of(name)]
        issue = await self._recorded_issue(TrackingRecord.parse(seen.text, name), candidates)
        if issue is None:
            if not ours and not create:
                return None
            issue = await self._choose_issue(name, body, ours, seen)
        else:
            await self.store_rules(name, seen)
        number = int(issue["number"])
        await self._write(issue, name, body)
        for other in ours:
            if int(other["number"]) != number:
                await self._close(int(other["number"]))
        return number

    async def show_fresh(self, name: str, body: str, create: bool) -> int | None:
        """As ``show``, with the record and the issues read again."""
        seen = await self.register.read(name)
        return await self.show(name, body, await self._list(), seen, create)

    async def _list(self) -> tuple[Mapping[str, Any], ...]:
        try:
            return tuple(await self._client.get_all("issues", {"state": "open", "labels": TRACKING_LABEL}))
        except RequestRejected as error:
            raise RegisterUnavailable(f"cannot list the tracking issues: {error}") from None

    async def store_rules(self, name: str, seen: Snapshot) -> None:
        """Store the discovery rules with a series, unless it has them. After a conflict the next sync does it."""
        record = TrackingRecord.parse(seen.text, name)
        if self._rules is None or record.rules == self._rules:
            return
        with contextlib.suppress(RevisionConflict, OutcomeUnknown):
            text = self._with_rules(record).to_text()
            await self.register.swap(name, seen.token, text, f"store the discovery rules of {name}")

    def _with_rules(self, record: TrackingRecord) -> TrackingRecord:
        return record if self._rules is None else replace(record, rules=self._rules)

    # -- comments ------------------------------------------------------------------------------------------------------

    async def announce(self, series: Series, number: int, text: str, seen: Snapshot) -> None:
        """Comment on the tracking issue ``number`` that an issue is active, once.

        ``seen`` is the record as it was read earlier: if it has the announcement, no request is made. A comment whose
        response is lost is not repeated. Raises RegisterUnavailable: the next sync repeats it."""
        if series.active is None or TrackingRecord.parse(seen.text, series.name).has_announced(series):
            return

        async def is_current() -> bool:
            """Read after the record: if a later issue was announced, the state has it by now."""
            state = Series.salvaged((await self._states.read(series.name)).text, series.name)
            return (state.active, state.since) == (series.active, series.since)

        await self._comment_once(
            series.name,
            _Comment(
                number,
                text,
                f"announce the active issue of {series.name} in #{number}",
                is_recorded=lambda record: record.has_announced(series),
                add=lambda record, mark: record.announcing(series, mark),
                is_current=is_current,
                tracking=number,
            ),
        )

    async def answer(self, name: str, unassigned: Unassignment, text: str) -> None:
        """Comment on the issue that a person has unassigned, once. Raises RegisterUnavailable."""
        event, number = unassigned.event, unassigned.issue
        await self._comment_once(
            name,
            _Comment(
                number,
                text,
                f"answer in #{number} of {name}",
                is_recorded=lambda record: event in record.answered,
                add=lambda record, mark: record.answering(event, mark),
            ),
        )

    async def _comment_once(self, name: str, comment: _Comment) -> None:
        mark = uuid.uuid4().hex
        for _ in range(RECORD_TRIES):
            seen = await self.register.read(name)
            record = TrackingRecord.parse(seen.text, name)
            if comment.is_recorded(record):
                if mark in (seen.text or ""):  # ours: the reply was lost
                    await self._comment(comment.issue, comment.text)
                return
            if comment.is_current is not None and not await comment.is_current():
                return
            record = replace(self._with_rules(record), issue=record.issue or comment.tracking)
            try:
                await self.register.swap(name, seen.token, comment.add(record, mark).to_text(), comment.message)
            except (RevisionConflict, OutcomeUnknown):
                continue
            await self._comment(comment.issue, comment.text)
            return

    async def _comment(self, number: int, text: str) -> None:
        with contextlib.suppress(OutcomeUnknown, RequestRejected):
            await self._client.send("POST", f"issues/{number}/comments", {"body": text}, repeatable=False)

    # -- which issue ---------------------------------------------------------------------------------------------------

    async def _recorded_issue(
        self, record: TrackingRecord, candidates: tuple[Mapping[str, Any], ...]
    ) -> Mapping[str, Any] | None:
        """The issue that the record names, if it still exists."""
        if record.issue is None:
            return None
        for issue in candidates:
            if int(issue["number"]) == record.issue:
                return issue
        try:
            recorded: Mapping[str, Any] = await self._client.get(f"issues/{record.issue}")
        except RequestRejected:  # deleted, transferred, or never there
            return None
        return None if "pull_request" in recorded else recorded

    async def _choose_issue(
        self, name: str, body: str, ours: list[Mapping[str, Any]], seen: Snapshot
    ) -> Mapping[str, Any]:
        """Record one of ``ours``, or a new issue; the one of another process if that was faster."""
        issue = ours[0] if ours else await self._create(name, body)
        for _ in range(RECORD_TRIES):
            record = replace(self._with_rules(TrackingRecord.parse(seen.text, name)), issue=int(issue["number"]))
            try:
                await self.register.swap(name, seen.token, record.to_text(), f"#{issue['number']} shows {name}")
                return issue
            except (RevisionConflict, OutcomeUnknown):
                seen = await self.register.read(name)
                chosen = await self._recorded_issue(TrackingRecord.parse(seen.text, name), tuple(ours))
                if chosen is not None:
                    if chosen["number"] != issue["number"]:
                        await self._close(int(issue["number"]))
                    return chosen
        raise RegisterUnavailable(f"cannot record the tracking issue of {name}: other writers won every try")

    async def _create(self, name: str, body: str) -> Mapping[str, Any]:
        form = {"title": title_of(name), "body": body, "labels": [TRACKING_LABEL]}
        try:
            created: Mapping[str, Any] = await self._client.send("POST", "issues", form, repeatable=False)
            return created
        except RequestRejected as error:
            raise RegisterUnavailable(f"cannot create the tracking issue of {name}: {error}") from None
        except OutcomeUnknown:
            created_issues = [issue for issue in await self._list() if issue.get("title") == title_of(name)]
            if not created_issues:
                raise
            return min(created_issues, key=lambda issue: int(issue["number"]))

    async def _write(self, issue: Mapping[str, Any], name: str, body: str) -> None:
        """Write title, body, state and label of the issue, where they differ."""
        wanted: JsonObject = {"title": title_of(name), "body": body, "state": "open"}
        if not has_label(issue, TRACKING_LABEL):
            wanted["labels"] = [*labels_of(issue), TRACKING_LABEL]
        present = {**issue, "body": (issue.get("body") or "").replace("\r\n", "\n").rstrip()}
        changes = {key: value for key, value in wanted.items() if key == "labels" or present.get(key) != value}
        if changes:
            try:
                await self._client.send("PATCH", f"issues/{issue['number']}", changes)
            except RequestRejected as error:
                raise RegisterUnavailable(f"cannot write the tracking issue of {name}: {error}") from None

    async def _close(self, number: int) -> None:
        """Close a superfluous tracking issue, which a race created."""
        with contextlib.suppress(RequestRejected, OutcomeUnknown):
            await self._client.send("PATCH", f"issues/{number}", {"state": "closed", "state_reason": "not_planned"})


# -- labels ------------------------------------------------------------------------------------------------------------


ACTIVE_LABEL = "series-active"
QUEUED_LABEL = "series-queued"
MAX_CHANGES = 50
"""Label changes per sync; those of a long queue are spread over the next syncs."""

_DEFINITIONS = {
    "active": {"color": "0e8a16", "description": "The active issue of its series: it is being worked on."},
    "queued": {"color": "fbca04", "description": "Waits for its turn in its series."},
}


class BadLabel(SeriesError):
    """A label that cannot be used for the places in a series."""


class PlaceLabels:
    """``active`` and ``queued`` are the names of the labels, in which ``{series}`` stands for the name of the series;
    None for a label that is not wanted. Raises BadLabel."""

    def __init__(self, client: GitHubClient, matcher: SeriesMatcher, active: str | None, queued: str | None) -> None:
        self._client = client
        self._names = {place: name for place, name in (("active", active), ("queued", queued)) if name is not None}
        self._existing: set[str] = set()
        self.changes_left = MAX_CHANGES
        for name in self._of_series("RFC-1").values():
            _check(name, matcher)
        if len({name.casefold() for name in self._names.values()}) < len(self._names):
            raise BadLabel(f"the label {active!r} cannot be both the active and the queued label")

    def begin_sync(self) -> None:
        self.changes_left = MAX_CHANGES

    def _of_series(self, series: str) -> dict[str, str]:
        return {place: name.replace("{series}", series) for place, name in self._names.items()}

    async def remove_all(self, number: int, departure: Departure, series: str) -> None:
        """Remove the labels of an issue that is about to leave, unless it is no longer accessible."""
        if departure not in (Departure.DELETED, Departure.TRANSFERRED):
            for name in self._of_series(series).values():
                await self._remove(number, name)

    async def show(self, series: Series, issues: Mapping[int, SeriesIssue]) -> None:
        """Label the open issues of a series with their places. A failed request is repeated by the next sync."""
        if not self._names:
            return
        for issue in issues.values():
            self._existing |= {label.casefold() for label in labels_of(issue.data)}
        names = self._of_series(series.name)
        for number, issue in issues.items():
            position = series.position(number)
            place = "" if position is None else "active" if position == 0 else "queued"
            wanted = names.get(place)
            present = {label.casefold() for label in labels_of(issue.data)}
            for name in names.values():
                if name != wanted and name.casefold() in present:
                    await self._remove(number, name)
            if wanted is not None and wanted.casefold() not in present:
                await self._add(number, wanted, place)

    async def _add(self, number: int, name: str, place: str) -> None:
        if self.changes_left <= 0:
            return
        self.changes_left -= 1
        await self._create(name, place)
        await self._send("POST", f"issues/{number}/labels", {"labels": [name]})

    async def _remove(self, number: int, name: str) -> None:
        if self.changes_left > 0:
            self.changes_left -= 1
            await self._send("DELETE", f"issues/{number}/labels/{quote(name, safe='')}", None)

    async def _create(self, name: str, place: str) -> None:
        """Create a label, unless it is known to exist."""
        if name.casefold() not in self._existing:
            await self._send("POST", "labels", {"name": name, **_DEFINITIONS[place]})
            self._existing.add(name.casefold())

    async def _send(self, method: str, path: str, body: Any) -> None:
        """A refused request is done already (the label exists, or is not on the issue), or not allowed."""
        with contextlib.suppress(RequestRejected, RegisterUnavailable, OutcomeUnknown):
            await self._client.send(method, path, body)


def _check(name: str, matcher: SeriesMatcher) -> None:
    """A label that puts an issue into a series, or takes it out, must not be set here."""
    if not name.strip() or not name.isprintable() or set(name) & set(",{}"):
        raise BadLabel(
            f"{name!r} is not a valid label (examples: {ACTIVE_LABEL}, {QUEUED_LABEL}, rfc-series-active:{{series}})"
        )
    if name.casefold() in (TRACKING_LABEL, (matcher.required or "").casefold()):
        raise BadLabel(f"the label {name!r} is used to find issues: choose another one for their places")
    if matcher.match({"number": 1, "title": "", "labels": [name, matcher.required]}) is not None:
        raise BadLabel(f"the label {name!r} names a series: choose another one (example: {ACTIVE_LABEL})")
