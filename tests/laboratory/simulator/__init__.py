"""A deterministic simulator of fleets: the real runtime on machines and a network that misbehave.

::

    python -m tests.laboratory.simulator --seeds 1000      # many worlds
    python -m tests.laboratory.simulator --seed 4711       # one, with its log
    python -m tests.laboratory.simulator --world plans     # worlds with plans, or with peers

A seed determines a world: its machines, their work, the faults and their times, and the order of everything that could
happen at one moment. A world that breaks a promise raises Violation with the command that replays it.

``simulation`` plays a world: ``simulate`` runs it on an event loop in virtual time. Worlds are in ``fleet_world``
(machines and one store; the same with moves of runs, batteries, wall clocks or schedules), ``gateway_world`` (machines
without a store), ``plan_world`` (orchestrators of a plan that crash; the same with people who retry or cancel it) and
``peer_world`` (three stores that exchange records). They are made of ``machines`` and ``faults``. The
``checker`` receives every write and every execution, and reports broken promises; ``peer_world`` also checks what must
hold between stores.
"""

from tests.laboratory.simulator.checker import Violation
from tests.laboratory.simulator.fleet_world import FleetWorld
from tests.laboratory.simulator.simulation import simulate

__all__ = ["FleetWorld", "Violation", "simulate"]
