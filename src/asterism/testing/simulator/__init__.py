"""A deterministic simulator of fleets: the real runtime in virtual time, on a network and machines that misbehave.

::

    python -m asterism.testing.simulator --seeds 1000      # many worlds
    python -m asterism.testing.simulator --seed 4711       # one, with its log
    python -m asterism.testing.simulator --world plans     # with living plans in them; or peers

One seed is one world: who exists, what they are given to do, which faults happen when, and in what order everything
that could happen at one moment does. A world that breaks a promise raises Violation, and its seed shows it again.
"""

from asterism.testing.simulator.fleet_world import FleetWorld
from asterism.testing.simulator.simulation import simulate
from asterism.testing.simulator.witness import Violation

__all__ = ["FleetWorld", "Violation", "simulate"]
