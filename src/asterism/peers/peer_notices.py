"""What is said of a peer is said once, not with every meeting: a record that is refused comes again and again, and so
does a clock that is wrong. The peer itself is told why its records were refused, each time.

A peer can send as much that is refused as it likes, always something else. So only so much is said of one run, and of
one peer in a day; what was said is looked up in a small register, not among all notices.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

from asterism.core.run.run import Run
from asterism.peers.messages import MAX_REASON_CHARS, MAX_REASONS, IncomingRecord, printable
from asterism.peers.registry import peer_key
from asterism.store.protocol import Notice, PutRegister, Register, Store, Write
from asterism.store.store_errors import Conflict

MAX_TOPICS = 200
"""How much is remembered of what was said, for each peer."""

MAX_REFUSALS_PER_DAY = 200
"""How many refusals of one peer are said in a day: of its records, and of its devices and the rest."""

ROLLBACK_NOTICE_INTERVAL = 3600.0
"""For how many seconds it is not said again that a store was put back, for each peer that says so."""

MAX_NOTICES_PER_RUN = 5
"""How many different refusals are said of one run of one peer."""

MAX_RUNS = 1000
"""Of how many runs it is remembered what was said, for each peer."""

MAX_RECORDS_SEARCHED = 20
"""Among how many records the first reasons are looked for."""

DAY = 86_400.0


class RefusalNotices:
    """What was said of the records of one peer. ``now`` is by the store's clock."""

    def __init__(self, peer: str, found: Register | None, now: float) -> None:
        self._peer, self._found, self._now = peer, found, now
        self._said: dict[str, list[str]] = dict(found.value.get("runs", {})) if found is not None else {}
        self._day = _daily_count(found, now)
        self._changed = False

    @classmethod
    async def load(cls, store: Store, peer: str, now: float) -> RefusalNotices:
        return cls(peer, await store.register(_refusals_key(peer)), now)

    def notice_writes(self, run_id: str, notice: Notice) -> list[Write]:
        """The notice, unless it was given before, or too much was said."""
        mark = hashlib.sha256(notice.message.encode()).hexdigest()[:12]
        known = self._said.get(run_id, [])
        if mark in known or len(known) >= MAX_NOTICES_PER_RUN or self._day["given"] >= MAX_REFUSALS_PER_DAY:
            return []
        self._said[run_id] = [*known, mark]
        self._day["given"] += 1
        self._changed = True
        return [notice] if self._day["given"] < MAX_REFUSALS_PER_DAY else [notice, _limit_notice(self._peer, self._now)]

    def writes(self) -> list[Write]:
        """What has to be written with those notices."""
        if not self._changed:
            return []
        runs = dict(list(self._said.items())[-MAX_RUNS:])
        return [
            PutRegister(_refusals_key(self._peer), {**self._day, "runs": runs}, self._found and self._found.revision)
        ]


async def notify_once(store: Store, peer: str, notice: Notice, topic: str | None = None) -> None:
    """Give a notice about a peer; ``topic`` is what is not said twice, the message itself unless it is given: then only
    so many are given in a day."""
    said = topic or notice.message
    while True:
        found = await store.register(_topics_key(peer))
        known = list(found.value.get("said", ())) if found is not None else []
        day = _daily_count(found, store.clock())
        if said in known or (topic is None and day["given"] >= MAX_REFUSALS_PER_DAY):
            return
        writes: list[Write] = [notice]
        if topic is None:
            day["given"] += 1
            writes += [_limit_notice(peer, store.clock())] if day["given"] >= MAX_REFUSALS_PER_DAY else []
        after = {**day, "said": [*known, said][-MAX_TOPICS:]}
        try:
            await store.commit([PutRegister(_topics_key(peer), after, found and found.revision), *writes])
        except Conflict:  # somebody else is saying something
            continue
        return


async def clear_topic(store: Store, peer: str, topic: str) -> None:
    """It is not so any more, and would be said again."""
    found = await store.register(_topics_key(peer))
    if found is None or topic not in found.value.get("said", ()):
        return
    after = {**found.value, "said": [one for one in found.value["said"] if one != topic]}
    with contextlib.suppress(Conflict):
        await store.commit([PutRegister(_topics_key(peer), after, found.revision)])


async def notify_peer_rollback(store: Store, peer: str) -> None:
    """A peer says that its store was put back from a copy."""
    words = f"the store of peer {peer} was put back from an older copy of itself: everything is exchanged anew with it"
    while True:
        try:
            writes = await rollback_writes(store, peer, "there", words)
            if writes:
                await store.commit(writes)
        except Conflict:
            continue
        return


async def rollback_writes(store: Store, peer: str, whose: str, words: str) -> list[Write]:
    """What says that a store was put back, ours ("here") or that of a peer ("there"); nothing, if that was said within
    the hour. A peer that lies may say so with every message."""
    key, now = peer_key(peer, "restored"), store.clock()
    found = await store.register(key)
    said = dict(found.value) if found is not None else {}
    if 0.0 <= now - said.get(whose, -ROLLBACK_NOTICE_INTERVAL) < ROLLBACK_NOTICE_INTERVAL:
        return []
    notice = Notice(now, "restored", words)
    return [PutRegister(key, {**said, whose: now}, found and found.revision), notice]


async def refusal_reasons(store: Store, peer: str, items: Sequence[IncomingRecord], count: int) -> list[str]:
    """The first reasons why ``count`` of a peer's records were refused, as the notices have them, however long ago."""
    found: list[str] = []
    looked_at = 0
    for item in items if count else ():
        if item.run is None:
            found.append(f"run {item.name}: {item.why}" if item.name is not None else item.why)
        elif looked_at < MAX_RECORDS_SEARCHED and not await _is_ingested(store, item.run):
            looked_at += 1
            begin = f"run {item.run.id} as peer {peer} has it was not taken: "
            told = [one.message for _, one in await store.notices(run=item.run.id, limit=1000)]
            found += [f"run {item.run.id}: {one.removeprefix(begin)}" for one in told if one.startswith(begin)][-1:]
        if len(found) >= min(count, MAX_REASONS):
            break
    return [printable(one, MAX_REASON_CHARS) for one in found]


async def _is_ingested(store: Store, theirs: Run) -> bool:
    """Whether what it tells last is in ours."""
    mine = await store.run(theirs.id)
    return mine is not None and set(theirs.story[-1:]) <= set(mine.story)


def _daily_count(found: Register | None, now: float) -> dict[str, Any]:
    """Since when it is counted what was said, and how much it was. Anew after a day, and if the clock was set back."""
    value = found.value if found is not None else {}
    if 0 <= now - value.get("since", -DAY) < DAY:
        return {"since": value["since"], "given": value["given"]}
    return {"since": now, "given": 0}


def _limit_notice(peer: str, now: float) -> Notice:
    return Notice(now, "refused", f"peer {peer}: so much of it was refused that no more is said of that for a day")


def _topics_key(peer: str) -> str:
    return peer_key(peer, "told")


def _refusals_key(peer: str) -> str:
    return peer_key(peer, "refused")
