"""Notices about peers: each is given once, and their number is limited for each run, and for each peer and day.

A record that is refused comes again with every sync, and so does a clock that is wrong. A peer can also send any number
of different records that are refused. So the number of notices is limited for each run and for each peer and day. A
small register remembers the notices that were given; searching all notices would be slow. The peer itself receives the
reasons for its refused records every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from asterism.core.json_values import JsonObject
from asterism.core.run.run import Run
from asterism.peers.messages import MAX_REASON_CHARS, MAX_REASONS, IncomingRecord, printable
from asterism.peers.registry import peer_key
from asterism.store.optimistic_update import retried, try_commit
from asterism.store.protocol import Notice, Slot, Store, Write, read_slot

MAX_TOPICS = 200
"""How many topics are remembered for each peer."""

MAX_REFUSALS_PER_DAY = 200
"""How many notices a day one peer may cause: about its records, and about its devices and the rest."""

ROLLBACK_NOTICE_INTERVAL = 3600.0
"""For how many seconds a rollback that a peer reports is not reported again."""

MAX_NOTICES_PER_RUN = 5
"""How many different notices are given about one run of one peer."""

MAX_RUNS = 1000
"""For how many runs of a peer the notices are remembered."""

MAX_RECORDS_SEARCHED = 20
"""For how many refused records of a message the reason is looked up."""

REFUSAL_TEXT = "the record of run {run} from peer {peer} was refused: "
"""The beginning of a notice about a refused record, which the reason follows."""

DAY = 86_400.0


class RefusalNotices:
    """The notices about refused records of one peer. ``now`` is the time of the store's clock."""

    def __init__(self, peer: str, slot: Slot, now: float) -> None:
        self._peer, self._slot, self._now = peer, slot, now
        self._given = _given_digests(slot)
        self._day = _daily_count(slot, now)
        self._changed = False

    @classmethod
    async def load(cls, store: Store, peer: str, now: float) -> RefusalNotices:
        return cls(peer, await read_slot(store, _refusals_key(peer), {}), now)

    def refuse(self, run_id: str, reason: str) -> list[Write]:
        """The notice that a record was refused, unless it was given before or the limit is reached."""
        notice = Notice(self._now, "refused", f"{REFUSAL_TEXT.format(run=run_id, peer=self._peer)}{reason}", run_id)
        digest = _digest(notice)
        known = self._given.get(run_id, [])
        if digest in known or len(known) >= MAX_NOTICES_PER_RUN or self._day["given"] >= MAX_REFUSALS_PER_DAY:
            return []
        self._given[run_id] = [*known, digest]
        self._day["given"] += 1
        self._changed = True
        last = self._day["given"] >= MAX_REFUSALS_PER_DAY
        return [notice, _limit_notice(self._peer, self._now)] if last else [notice]

    def writes(self) -> list[Write]:
        """The writes that remember the notices, to be committed with them."""
        if not self._changed:
            return []
        runs = dict(list(self._given.items())[-MAX_RUNS:])
        return [self._slot.put({**self._day, "runs": runs})]


@retried
async def notify_once(store: Store, peer: str, notice: Notice, topic: str | None = None) -> None:
    """Give a notice about a peer, unless one of the same ``topic`` was given. Without a topic the message itself is the
    topic, and the limit of the day applies."""
    key = topic or notice.message
    slot = await read_slot(store, _topics_key(peer), {})
    known = list(slot.value.get("said", ()))
    day = _daily_count(slot, store.clock())
    if key in known or (topic is None and day["given"] >= MAX_REFUSALS_PER_DAY):
        return
    writes: list[Write] = [notice]
    if topic is None:
        day["given"] += 1
        writes += [_limit_notice(peer, store.clock())] if day["given"] >= MAX_REFUSALS_PER_DAY else []
    after = {**day, "said": [*known, key][-MAX_TOPICS:]}
    await store.commit([slot.put(after), *writes])


async def clear_topic(store: Store, peer: str, topic: str) -> None:
    """Allow the next notice of a topic, since the condition has ended."""
    slot = await read_slot(store, _topics_key(peer), {})
    known = slot.value.get("said", ())
    if topic in known:
        await try_commit(store, [slot.put({**slot.value, "said": [other for other in known if other != topic]})])


@retried
async def notify_peer_rollback(store: Store, peer: str) -> None:
    """Give the notice that a peer reports a rollback of its store."""
    message = f"the store of peer {peer} was restored from an older copy: all records are exchanged again with it"
    writes = await rollback_writes(store, peer, "there", message)
    if writes:
        await store.commit(writes)


async def rollback_writes(store: Store, peer: str, side: str, message: str) -> list[Write]:
    """The writes of a notice about a rollback of our store (``here``) or of the peer's (``there``); none if one was
    given within the hour, since a peer that lies may report one with every message."""
    slot, now = await read_slot(store, peer_key(peer, "restored"), {}), store.clock()
    if 0.0 <= now - slot.value.get(side, -ROLLBACK_NOTICE_INTERVAL) < ROLLBACK_NOTICE_INTERVAL:
        return []
    return [slot.put({**slot.value, side: now}), Notice(now, "restored", message)]


async def refusal_reasons(store: Store, peer: str, records: Sequence[IncomingRecord], count: int) -> list[str]:
    """The first reasons why ``count`` of a peer's records were refused, from notices of any age."""
    if not count:
        return []
    digests = _given_digests(await read_slot(store, _refusals_key(peer), {}))
    reasons: list[str] = []
    searched = 0
    for record in records:
        if record.run is None:
            reasons.append(f"run {record.run_id}: {record.error}" if record.run_id is not None else record.error)
        elif searched < MAX_RECORDS_SEARCHED and not await _is_ingested(store, record.run):
            searched += 1
            run_id = record.run.id
            notices = [notice for _, notice in await store.notices(run=run_id, limit=1000) if notice.kind == "refused"]
            known = [_refusal_reason(notice, peer, digests.get(run_id, ())) for notice in notices]
            reasons += [f"run {run_id}: {reason}" for reason in known if reason is not None][-1:]
        if len(reasons) >= min(count, MAX_REASONS):
            break
    return [printable(reason, MAX_REASON_CHARS) for reason in reasons]


def _refusal_reason(notice: Notice, peer: str, digests: Collection[str]) -> str | None:
    """The reason in a notice about a refused record of a peer; None if the notice is about something else. ``digests``
    are the digests of the notices about this run and peer; the register forgets the oldest runs, whose notices are
    recognised by their text."""
    beginning = REFUSAL_TEXT.format(run=notice.run, peer=peer)
    if notice.message.startswith(beginning):
        return notice.message.removeprefix(beginning)
    return notice.message if _digest(notice) in digests else None


def _given_digests(slot: Slot) -> dict[str, list[str]]:
    """The digests of the notices about refused records, by run."""
    return dict(slot.value.get("runs", {}))


def _digest(notice: Notice) -> str:
    return hashlib.sha256(notice.message.encode()).hexdigest()[:12]


async def _is_ingested(store: Store, theirs: Run) -> bool:
    """Whether the last entry of their record is part of ours."""
    mine = await store.run(theirs.id)
    return mine is not None and set(theirs.story[-1:]) <= set(mine.story)


def _daily_count(slot: Slot, now: float) -> JsonObject:
    """The number of notices of the current day, and its beginning. It restarts after a day, and if the clock was set
    back."""
    if 0 <= now - slot.value.get("since", -DAY) < DAY:
        return {"since": slot.value["since"], "given": slot.value["given"]}
    return {"since": now, "given": 0}


def _limit_notice(peer: str, now: float) -> Notice:
    return Notice(
        now, "refused", f"peer {peer}: {MAX_REFUSALS_PER_DAY} refusals in a day; further ones are not reported today"
    )


def _topics_key(peer: str) -> str:
    return peer_key(peer, "told")


def _refusals_key(peer: str) -> str:
    return peer_key(peer, "refused")
