"""A deterministic simulator of fleets: the real runtime in virtual time, on a network and machines that misbehave.

::

    python -m asterism.testing.sim --seeds 1000      # many worlds
    python -m asterism.testing.sim --seed 4711       # one, with its log
    python -m asterism.testing.sim --world plans     # with living plans in them; or peers

One seed is one world: who exists, what they are given to do, which faults happen when, and in what order everything
that could happen at one moment does. A world that breaks a promise raises Violation, and its seed shows it again.
"""

from asterism.testing.sim.witness import Violation
from asterism.testing.sim.world import World, simulate

__all__ = ["Violation", "World", "simulate"]
