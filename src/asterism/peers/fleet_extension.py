"""The peers of a store as an extension of its fleet: a monitor pass and an explanation of runs."""

from __future__ import annotations

from asterism.core.run.run import Run
from asterism.fleet.extensions import MonitorPass
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_explanation import Reason
from asterism.peers.registry import PeerRegistry, removed_peer_key
from asterism.peers.takeover import Takeover
from asterism.store.protocol import FEED, feed_of


def monitor_pass(fleet: Fleet) -> MonitorPass:
    """Adopt the runs of peers that are gone."""
    return Takeover(fleet).run_pass


async def explain(fleet: Fleet, run: Run) -> Reason | None:
    """The peer that decides about a run of which this store has a copy; None if this store decides."""
    if await fleet.store.register(FEED) is None:
        return None
    left_to = (await feed_of(fleet.store).left_to([run.id])).get(run.id)
    if left_to is None:
        return None
    name = next((peer.name for peer in await PeerRegistry(fleet.store).all() if peer.store == left_to), None)
    if name is None:
        removed = await fleet.store.register(removed_peer_key(left_to))
        was = removed.value["peer"] if removed is not None and removed.value else "that has no name any more"
        if removed is not None and removed.value and removed.value["adopt"]:
            return Reason("left", was, f"it was left to peer {was}, which was removed: it is about to be adopted here")
        return Reason("removed", was, f"it is held: it was left to peer {was}, which was removed")
    text = f"it is left to peer {name}, which says what becomes of it as long as it is heard of"
    return Reason("left", name, text)
