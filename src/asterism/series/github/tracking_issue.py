"""The tracking issue of a series: a view for people, one for each series.

GitHub has no conditional update of an issue, so what stands in its body is never read as the state: it is written from
the state, and what people or accidents make of it is written over. Which issue it is stands in a ref of its own,
``refs/asterism/tracking/NAME``, decided by compare-and-swap. Who creates one and comes second closes it again. When the
issue is deleted or transferred, another with the label is taken, or a new one made: by one at a time, in the turn of
the series (``turns.py``), so that a hundred who find none do not make a hundred.

Beside it stands which issues were announced last, and since when each was active. One that is active now and is not
among them is announced, by whoever writes that down there. Revisions are not compared: they are counted anew where a
state was lost.

The same ref says by which patterns and label the issues of the series are found. Who comes with others would take every
issue for renamed: it leaves the series alone.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from asterism.core.series.machine import Series
from asterism.series.github.discovery import TRACKING_LABEL, has_label, labels_of
from asterism.series.github.discovery_rules import announced_in, answered_in, kept_in, terms_of
from asterism.series.github.github_client import GitHubClient, Refused
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.unassignment import Unassignment
from asterism.series.register import Moved, RegisterUnavailable, Snapshot, Unsure

REMEMBERED = 10
"""Announcements that are remembered: a copy of GitHub's that is behind may show a state that was announced before."""
LONGEST = 65_000
"""Letters of a body: GitHub takes 65,536."""
SHORT = 100
"""Places of the queue that are shown, where all of them would be too long."""


def title_of(name: str) -> str:
    return f"{name} Series State"


def view_of(name: str, tracking: Iterable[Mapping[str, Any]]) -> str | None:
    """What the tracking issue of a series shows; None if it is not among these."""
    return next((issue.get("body") for issue in tracking if issue.get("title") == title_of(name)), None)


def body_of(series: Series, note: str = "") -> str:
    """The state as people read it: the same text for the same state, so that it is written only when it changes. Of a
    queue that is too long for an issue the beginning is shown, and the document if it fits on one line."""
    document = series.to_text().rstrip("\n")
    one_line = json.dumps(series.to_document(), ensure_ascii=False, separators=(",", ":"))
    body = _body(series, note, len(series.queue), ["```json", document, "```"])
    if len(body) > LONGEST:
        body = _body(series, note, SHORT, ["```json", one_line, "```"])
    if len(body) > LONGEST:
        body = _body(
            series, note, SHORT, ["The whole of it is too long for an issue: `asterism series status` says it."]
        )
    return body


def _body(series: Series, note: str, places: int, end: list[str]) -> str:
    rows = [f"| active | {_shown(series.active)} |"]
    rows += [f"| {place} | {_shown(item)} |" for place, item in enumerate(series.queue[:places], 1)]
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
    """The comment on the active issue, after a person has unassigned it."""
    name, who = plain(series.name), f"{plain(person)} unassigned {plain(assignee)}"
    if series.paused is not None:
        return f"{who}, so the series {name} is paused. To go on: `asterism series resume {name}`."
    return (
        f"{who}, but this is the active issue of the series {name}, so it is assigned again. To stop the work on it, "
        f"close it, or pause the series: `asterism series pause {name}`."
    )


def _shown(item: object) -> str:
    return "nobody" if item is None else f"#{item}"


def plain(text: str) -> str:
    """So that a name or a reason cannot end a comment, a table or a mention."""
    return "".join(letter if letter.isalnum() or letter in " .,:;_-/()" else "·" for letter in text)


class _Comment(NamedTuple):
    """One that is made once: by whoever writes ``note`` down, unless it ``is_noted`` or is no longer current. ``shown``
    is the tracking issue, if that is known."""

    number: int
    text: str
    message: str
    is_noted: Callable[[str | None], bool]
    note: Callable[[str | None, str], Mapping[str, Any]]
    is_current: Callable[[], Awaitable[bool]] | None = None
    shown: int | None = None


class Tracking:
    """Keeps the tracking issues of a repository. ``terms`` are kept with each series: by what its issues are found. Who
    has none to keep leaves those that are there."""

    def __init__(self, register: GitHubRegister, terms: Mapping[str, str | None] | None = None) -> None:
        self._client: GitHubClient = register.client
        self._states = register
        self._terms = terms
        self.register = GitHubRegister(register.client, "tracking")

    async def show(
        self, name: str, body: str, candidates: tuple[Mapping[str, Any], ...], seen: Snapshot, create: bool = False
    ) -> int | None:
        """The number of the issue that now shows ``body``; None if there is none and it is not to be created.
        ``candidates`` are the open issues with the label, ``seen`` is what the register says. Raises
        RegisterUnavailable and Unsure: then the next cycle does it."""
        ours = [issue for issue in candidates if issue.get("title") == title_of(name)]
        issue = await self._registered(name, seen, candidates)
        if issue is None:
            if not ours and not create:
                return None
            issue = await self._decided(name, body, ours, seen)
        else:
            await self.keep_terms(name, seen)
        number = int(issue["number"])
        await self._written(issue, name, body)
        for other in ours:
            if int(other["number"]) != number:
                await self._closed(int(other["number"]))
        return number

    async def show_anew(self, name: str, body: str, create: bool) -> int | None:
        """As ``show``, with what is so by now."""
        seen = await self.register.read(name)
        return await self.show(name, body, await self._listed(), seen, create)

    async def _listed(self) -> tuple[Mapping[str, Any], ...]:
        try:
            return tuple(await self._client.pages("issues", {"state": "open", "labels": TRACKING_LABEL}))
        except Refused as refused:
            raise RegisterUnavailable(f"the tracking issues cannot be listed: {refused}") from None

    async def keep_terms(self, name: str, seen: Snapshot) -> None:
        """Say by what the issues of a series are found, unless that is known. If somebody is first, the next cycle
        looks again."""
        if self._terms is None or terms_of(seen.text, name) == self._terms:
            return
        with contextlib.suppress(Moved, Unsure):
            text = self._document(name, _number(seen.text, name), seen.text)
            await self.register.swap(name, seen.token, text, f"by what the issues of {name} are found")

    async def announce(self, series: Series, number: int, text: str, seen: Snapshot) -> None:
        """Comment on who is active, in the issue ``number``, unless that was done. ``seen`` is what the register
        said a while ago: if that is enough to know, nothing is asked. Whoever writes it down comments, and nobody else;
        a comment whose reply is lost is not sent again. Raises RegisterUnavailable: then the next cycle does it."""
        if series.active is None or _is_told(series, seen.text):
            return

        async def is_current() -> bool:
            """Read after what was announced: if somebody who came later was, the state says so by now."""
            state = Series.salvaged((await self._states.read(series.name)).text, series.name)
            return (state.active, state.since) == (series.active, series.since)

        await self._comment_once(
            series.name,
            _Comment(
                number,
                text,
                f"#{number} tells who is active in {series.name}",
                lambda seen: _is_told(series, seen),
                lambda seen, mark: {"announced": _announcement(series, seen, mark)},
                is_current,
                shown=number,
            ),
        )

    async def answer(self, name: str, unassigned: Unassignment, text: str) -> None:
        """Comment on the issue that a person has unassigned, unless that was done. Raises RegisterUnavailable."""
        event, number = unassigned.event, unassigned.issue
        await self._comment_once(
            name,
            _Comment(
                number,
                text,
                f"an answer in #{number} of {name}",
                lambda seen: event in answered_in(seen, name),
                lambda seen, mark: {"answered": [event, *answered_in(seen, name)][:REMEMBERED], "mark": mark},
            ),
        )

    async def _comment_once(self, name: str, comment: _Comment) -> None:
        mark = uuid.uuid4().hex
        for _ in range(4):
            seen = await self.register.read(name)
            if comment.is_noted(seen.text):
                if mark in (seen.text or ""):  # ours, and the reply to it was lost
                    await self._comment(comment.number, comment.text)
                return
            if comment.is_current is not None and not await comment.is_current():
                return
            issue = _number(seen.text, name) or comment.shown
            noted = self._document(name, issue, seen.text, comment.note(seen.text, mark))
            try:
                await self.register.swap(name, seen.token, noted, comment.message)
            except (Moved, Unsure):
                continue
            await self._comment(comment.number, comment.text)
            return

    async def _comment(self, number: int, text: str) -> None:
        try:
            await self._client.send("POST", f"issues/{number}/comments", {"body": text}, again=False)
        except (Unsure, Refused):
            return

    # -- which issue ---------------------------------------------------------------------------------------------------

    async def _registered(
        self, name: str, seen: Snapshot, candidates: tuple[Mapping[str, Any], ...]
    ) -> Mapping[str, Any] | None:
        """The issue that the register names, if it is there still."""
        number = _number(seen.text, name)
        if number is None:
            return None
        for issue in candidates:
            if int(issue["number"]) == number:
                return issue
        try:
            found: Mapping[str, Any] = await self._client.get(f"issues/{number}")
        except Refused:  # deleted, transferred, or never there
            return None
        return None if "pull_request" in found else found

    async def _decided(self, name: str, body: str, ours: list[Mapping[str, Any]], seen: Snapshot) -> Mapping[str, Any]:
        issue = ours[0] if ours else await self._created(name, body)
        for _ in range(4):
            try:
                text = self._document(name, int(issue["number"]), seen.text)
                await self.register.swap(name, seen.token, text, f"#{issue['number']} shows {name}")
                return issue
            except (Moved, Unsure):
                seen = await self.register.read(name)
                chosen = await self._registered(name, seen, tuple(ours))
                if chosen is not None:
                    if chosen["number"] != issue["number"]:
                        await self._closed(int(issue["number"]))
                    return chosen
        raise RegisterUnavailable(f"which issue shows {name} could not be decided: others were first each time")

    def _document(self, name: str, issue: int | None, before: str | None, anew: Mapping[str, Any] | None = None) -> str:
        """With all that stood there ``before`` and is not said ``anew``."""
        terms = terms_of(before, name) if self._terms is None else self._terms
        kept = {"announced": announced_in(before, name), "answered": answered_in(before, name)}
        beside = {"found_by": terms and dict(terms), **kept, **(anew or {})}
        return (
            json.dumps({"series": name, "issue": issue, **{key: said for key, said in beside.items() if said}}) + "\n"
        )

    async def _created(self, name: str, body: str) -> Mapping[str, Any]:
        form = {"title": title_of(name), "body": body, "labels": [TRACKING_LABEL]}
        try:
            created: Mapping[str, Any] = await self._client.send("POST", "issues", form, again=False)
            return created
        except Refused as refused:
            raise RegisterUnavailable(f"the tracking issue of {name} cannot be created: {refused}") from None
        except Unsure:
            found = [issue for issue in await self._listed() if issue.get("title") == title_of(name)]
            if not found:
                raise
            return min(found, key=lambda issue: int(issue["number"]))

    # -- what it shows -------------------------------------------------------------------------------------------------

    async def _written(self, issue: Mapping[str, Any], name: str, body: str) -> None:
        wanted: dict[str, Any] = {"title": title_of(name), "body": body, "state": "open"}
        if not has_label(issue, TRACKING_LABEL):
            wanted["labels"] = [*labels_of(issue), TRACKING_LABEL]
        here = {**issue, "body": (issue.get("body") or "").replace("\r\n", "\n").rstrip()}
        changes = {key: value for key, value in wanted.items() if key == "labels" or here.get(key) != value}
        if changes:
            try:
                await self._client.send("PATCH", f"issues/{issue['number']}", changes)
            except Refused as refused:
                raise RegisterUnavailable(f"the view of {name} cannot be written: {refused}") from None

    async def _closed(self, number: int) -> None:
        """One too many, made in a race."""
        try:
            await self._client.send("PATCH", f"issues/{number}", {"state": "closed", "state_reason": "not_planned"})
        except (Refused, Unsure):
            return


def _number(text: str | None, name: str) -> int | None:
    found = kept_in(text, name).get("issue")
    return found if type(found) is int else None


def _announcement(series: Series, before: str | None, mark: str) -> dict[str, Any]:
    """What is written down of it, with those before it."""
    last = announced_in(before, series.name)
    earlier = [[last["issue"], last["since"]], *_earlier(last)] if last is not None else []
    said = {"issue": series.active, "since": series.since, "revision": series.revision, "mark": mark}
    return {**said, "earlier": earlier[: REMEMBERED - 1]}


def _earlier(last: Mapping[str, Any]) -> list[Any]:
    found = last.get("earlier")
    return found if isinstance(found, list) else []


def _is_told(series: Series, text: str | None) -> bool:
    """Whether it was announced that this issue is active since then."""
    last = announced_in(text, series.name)
    return last is not None and [series.active, series.since] in [[last["issue"], last["since"]], *_earlier(last)]
