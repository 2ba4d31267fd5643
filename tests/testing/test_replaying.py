"""What one seed plays is the same in every process: else the line that replays a broken world would replay another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PLAYED = """
import hashlib, logging
from asterism.testing.simulator import FleetWorld, simulate
from asterism.testing.simulator.peer_world import PeerWorld
from asterism.testing.simulator.plan_world import PlanWorld
logging.getLogger("asterism").setLevel(logging.CRITICAL)
for kind, seeds in ((FleetWorld, {few} * 4), (PlanWorld, {few} * 2), (PeerWorld, {few})):
    for seed in range(seeds):
        world = simulate(seed, world=kind)
        log = getattr(world, "log", world.witness.log)  # of a plan: until all is over and those left are sent home
        assert len(log) > 10
        print(kind.__name__, seed, hashlib.sha256("\\n".join(log).encode()).hexdigest())
"""


@pytest.mark.parametrize("few", [1, pytest.param(4, marks=pytest.mark.long)])
def test_a_seed_is_the_same_world_whatever_the_order_of_sets_is_in_a_process(few: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PLAYED.replace("{few}", str(few))],
            env={**os.environ, "PYTHONHASHSEED": str(order)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for order in (1, 2)
    ]
    told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert told[0] == told[1]
