"""What peers plug into a fleet: a pass of the monitor, and explanations of waiting runs."""

from __future__ import annotations

from asterism.core.run.run import Run
from asterism.fleet.extensions import MonitorPass
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_explanation import Reason
from asterism.peers.registry import PeerRegistry, removed_peer_key
from asterism.peers.takeover import Takeover
from asterism.store.protocol import FEED, feed_of


def monitor_pass(fleet: Fleet) -> MonitorPass:
    """The pass that adopts the runs of silent peers."""
    return Takeover(fleet).run_pass


async def explain(fleet: Fleet, run: Run) -> Reason | None:
    """Which peer decides about a run; None if this store does."""
    if await fleet.store.register(FEED) is None:
        return None
    left_to = (await feed_of(fleet.store).left_to([run.id])).get(run.id)
    if left_to is None:
        return None
    name = next((peer.name for peer in await PeerRegistry(fleet.store).all() if peer.store == left_to), None)
    if name is None:
        removed = await fleet.store.register(removed_peer_key(left_to))
        was = removed.value["peer"] if removed is not None and removed.value else "(unknown)"
        if removed is not None and removed.value and removed.value["adopt"]:
            return Reason("left", was, f"peer {was} managed it and was removed: this store is about to adopt it")
        return Reason("removed", was, f"it is held: peer {was} managed it and was removed")
    return Reason("left", name, f"peer {name} manages it as long as that peer is heard from")
