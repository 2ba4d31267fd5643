"""What is said of a peer is said once, not with every meeting: a record that is refused comes again and again, and so
does a clock that is wrong."""

from __future__ import annotations

import contextlib

from asterism.store.errors import Conflict
from asterism.store.protocol import Notice, PutRegister, Store, Write

MOST = 200
"""How much is remembered of what was said, for each peer."""


async def about_run(store: Store, notice: Notice) -> list[Write]:
    """The notice, unless it was given before."""
    for _, known in await store.notices(run=notice.run, limit=1000):
        if (known.kind, known.message) == (notice.kind, notice.message):
            return []
    return [notice]


async def once(store: Store, peer: str, notice: Notice, topic: str | None = None) -> None:
    """Give a notice about a peer; ``topic`` is what is not said twice, the message itself unless it is given."""
    said = topic or notice.message
    found = await store.register(_key(peer))
    known = list(found.value.get("said", ())) if found is not None else []
    if said in known:
        return
    after = {"said": [*known, said][-MOST:]}
    with contextlib.suppress(Conflict):  # somebody else is saying something: next time
        await store.commit([PutRegister(_key(peer), after, found and found.revision), notice])


async def over(store: Store, peer: str, topic: str) -> None:
    """It is not so any more, and would be said again."""
    found = await store.register(_key(peer))
    if found is None or topic not in found.value.get("said", ()):
        return
    after = {"said": [one for one in found.value["said"] if one != topic]}
    with contextlib.suppress(Conflict):
        await store.commit([PutRegister(_key(peer), after, found.revision)])


def _key(peer: str) -> str:
    return f"peer/{peer}/told"
