"""What is said of a peer is said once, not with every meeting: a record that is refused comes again and again, and so
does a clock that is wrong. The peer itself is told why its records were refused, each time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from asterism.core.run import Run
from asterism.runtime.peers.messages import LONGEST_REASON, MOST_REASONS, Item, harmless
from asterism.store.errors import Conflict
from asterism.store.protocol import Notice, PutRegister, Store, Write

MOST = 200
"""How much is remembered of what was said, for each peer."""


QUIET = 3600.0
"""For how many seconds it is not said again that a store was put back, for each peer that says so."""


async def about_run(store: Store, notice: Notice) -> list[Write]:
    """The notice, unless it was given before."""
    for _, known in await store.notices(run=notice.run, limit=1000):
        if (known.kind, known.message) == (notice.kind, notice.message):
            return []
    return [notice]


async def once(store: Store, peer: str, notice: Notice, topic: str | None = None) -> None:
    """Give a notice about a peer; ``topic`` is what is not said twice, the message itself unless it is given."""
    said = topic or notice.message
    while True:
        found = await store.register(_key(peer))
        known = list(found.value.get("said", ())) if found is not None else []
        if said in known:
            return
        after = {"said": [*known, said][-MOST:]}
        try:
            await store.commit([PutRegister(_key(peer), after, found and found.revision), notice])
        except Conflict:  # somebody else is saying something
            continue
        return


async def over(store: Store, peer: str, topic: str) -> None:
    """It is not so any more, and would be said again."""
    found = await store.register(_key(peer))
    if found is None or topic not in found.value.get("said", ()):
        return
    after = {"said": [one for one in found.value["said"] if one != topic]}
    with contextlib.suppress(Conflict):
        await store.commit([PutRegister(_key(peer), after, found.revision)])


async def was_put_back(store: Store, peer: str) -> None:
    """A peer says that its store was put back from a copy."""
    words = f"the store of peer {peer} was put back from an older copy of itself: everything is exchanged anew with it"
    while True:
        try:
            writes = await restored(store, peer, "there", words)
            if writes:
                await store.commit(writes)
        except Conflict:
            continue
        return


async def restored(store: Store, peer: str, whose: str, words: str) -> list[Write]:
    """What says that a store was put back, ours ("here") or that of a peer ("there"); nothing, if that was said within
    the hour. A peer that lies may say so with every message."""
    key, now = f"peer/{peer}/restored", store.clock()
    found = await store.register(key)
    said = dict(found.value) if found is not None else {}
    if 0.0 <= now - said.get(whose, -QUIET) < QUIET:
        return []
    notice = Notice(now, "restored", words)
    return [PutRegister(key, {**said, whose: now}, found and found.revision), notice]


async def reasons(store: Store, peer: str, items: Sequence[Item], count: int) -> list[str]:
    """The first reasons why ``count`` of a peer's records were refused, as the notices have them, however long ago."""
    found: list[str] = []
    for item in items if count else ():
        if item.run is None:
            found.append(f"run {item.name}: {item.why}" if item.name is not None else item.why)
        elif not await _has_taken(store, item.run):
            begin = f"run {item.run.id} as peer {peer} has it was not taken: "
            told = [one.message for _, one in await store.notices(run=item.run.id, limit=1000)]
            found += [f"run {item.run.id}: {one.removeprefix(begin)}" for one in told if one.startswith(begin)][-1:]
        if len(found) >= min(count, MOST_REASONS):
            break
    return [harmless(one, LONGEST_REASON) for one in found]


async def _has_taken(store: Store, theirs: Run) -> bool:
    """Whether what it tells last is in ours."""
    mine = await store.run(theirs.id)
    return mine is not None and set(theirs.story[-1:]) <= set(mine.story)


def _key(peer: str) -> str:
    return f"peer/{peer}/told"
