"""Final checks of a peer world: what must hold when its links have been repaired for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from asterism.core.run.merge import own_result
from asterism.core.run.run import Run
from asterism.store import row_codec
from asterism.store.protocol import Query
from asterism.testing.simulator.peer_stores import Link

if TYPE_CHECKING:
    from asterism.testing.simulator.peer_world import PeerWorld


async def check(world: PeerWorld) -> None:
    """Check all stores, long after the last fault. The witness records what does not hold."""
    broken = world.witness.broken
    everything = {name: {run.id: run for run in await store.find(Query())} for name, store in world.stores.items()}
    ids = sorted(set().union(*everything.values()))
    for run_id in ids:
        records = {name: runs.get(run_id) for name, runs in everything.items()}
        if _is_left_alone(world, run_id, records):
            broken(f"run {run_id} is open, and each store leaves it to another")
        texts = {None if run is None else text_of(run) for run in records.values()}
        if not world.agreed(run_id, list(records.values())):
            said = "; ".join(f"{name}: {_short(run)}" for name, run in records.items())
            broken(f"run {run_id} has {len(texts)} records long after all was mended: {said}")
        for run in records.values():
            if run is not None and not run.ended:
                broken(f"run {run_id} is still {run.status}: {run.story[-1]}")
    for acknowledged in world.witness.acknowledged:
        if acknowledged.id in world.excused:
            continue
        found = everything["m0"].get(acknowledged.id)
        if found is None or not set(acknowledged.story) <= set(found.story):
            broken(f"run {acknowledged.id} was acknowledged as {acknowledged.status}, and that is lost")
    _check_results(world, everything["m0"])
    if world.splits is not None and not any(world.splits):
        _check_nothing_was_contested(world)
    if not world.witness.violations:
        await _check_exchanges_are_complete(world)
    for name, store in world.stores.items():
        for problem in await store.check():
            broken(f"{name}: {problem}")
        for _, notice in await store.notices(limit=1_000_000):
            if notice.kind in ("refused", "impostor") and notice.run not in world.excused:
                broken(f"{name} refused an honest peer: {notice.message}")


def _is_left_alone(world: PeerWorld, run_id: str, records: Mapping[str, Run | None]) -> bool:
    knowing = {name: run for name, run in records.items() if run is not None}
    open_somewhere = any(not run.ended for run in knowing.values())
    return open_somewhere and all(run_id in world.stores[name]._feed.left for name in knowing)


def _check_results(world: PeerWorld, runs: Mapping[str, Run]) -> None:
    """The record holds each result that was acknowledged to a device, once."""
    for run in runs.values():
        if run.id in world.excused:
            continue
        results = [(one.device, one.epoch, one.ended_at) for one in (*own_result(run), *run.superseded)]
        recorded = world.witness.recorded.get(run.id, set())
        if len(results) != len(set(results)) or set(results) != recorded:
            world.witness.broken(f"run {run.id} was completed as {sorted(recorded)}, and says {sorted(results)}")


def _check_nothing_was_contested(world: PeerWorld) -> None:
    """No link was ever cut: each run had one owner at a time."""
    if world.witness.lost:
        world.witness.broken("a device lost a run, and no link was cut")
    begun = [(one.run, one.epoch) for one in world.witness.executions]
    for run, epoch in sorted(set(begun)):
        if begun.count((run, epoch)) > 1:
            world.witness.broken(f"run {run} was begun twice in epoch {epoch}, and no link was cut")


async def _check_exchanges_are_complete(world: PeerWorld) -> None:
    for name, life in world.lives.items():
        for other in tuple(world.stores):
            if other != name:
                for _ in range(2):
                    met = await life.exchange.sync(other, Link(world, name, other))
                if met.sent or met.taken or met.refused:
                    world.witness.broken(f"{name} and {other} keep sending each other the same records: {met}")


def text_of(run: Run) -> str:
    """A run as text, without its revision, which counts the writes of one store."""
    return row_codec.to_text([*row_codec.fixed(run), *row_codec.moving(run.changed(revision=0, _told=((), "")))])


def _short(run: Run | None) -> str:
    return "none" if run is None else f"{run.status} epoch {run.epoch} {run.device} {len(run.story)} entries"
