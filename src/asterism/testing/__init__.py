"""Testing tools: virtual time, a simulator of fleets, and conformance suites.

They test Asterism itself, and programs and engines built on it.

::

    from asterism.testing import run, simulate

    def test_a_timeout_of_ten_minutes():
        run(main())                      # a coroutine in virtual time: waiting costs nothing

    def test_a_hundred_fleets():
        for seed in range(100):
            simulate(seed)               # raises Violation, with the command that replays it

===========================  ===========================================================================================
``virtual_time``             ``run`` and ``SimLoop``: an event loop whose clock jumps, in an order that follows a seed
``pretended_device``         ``run_plan``: a plan in virtual time, whose tasks take, return and fail as a test says
``pytest_plugin``            the fixture ``run_plan`` and the marker ``plan_seeds``, for your ``conftest.py``
``simulator``                ``simulate``: the real runtime on machines and a network that misbehave, from one seed
``conformance``              ``AsyncTests``: async tests that need no pytest plugin, the base of the suites
``store_conformance``        ``StoreConformance``: what every store promises; ``SharedStoreConformance`` with processes
``register_conformance``     ``RegisterConformance``: what every register of series promises
===========================  ===========================================================================================

``check_invariants`` (of ``asterism.core.plan.invariants``) recomputes every counter of a plan, and raises
AssertionError if one is wrong. Each name is imported when it is first asked for. ``StoreConformance`` needs pytest and
hypothesis (the extra ``test``; in a checkout: ``pip install '.[test]'``); everything else needs neither.

No other room imports from this one. A fault is added in ``simulator/faults.py``, a kind of world beside
``simulator/fleet_world.py`` and in ``WORLDS`` of ``simulator/simulation.py``, a promise of stores in the suite.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.core.plan.invariants import check_invariants as check_invariants
    from asterism.testing.conformance import AsyncTests as AsyncTests
    from asterism.testing.conformance import ProcessOpener as ProcessOpener
    from asterism.testing.pretended_device import PretendedDevice as PretendedDevice
    from asterism.testing.pretended_device import PretendedFailure as PretendedFailure
    from asterism.testing.pretended_device import run_plan as run_plan
    from asterism.testing.register_conformance import FaultyRegister as FaultyRegister
    from asterism.testing.register_conformance import RegisterConformance as RegisterConformance
    from asterism.testing.simulator.checker import Violation as Violation
    from asterism.testing.simulator.fleet_world import FleetWorld as FleetWorld
    from asterism.testing.simulator.peer_world import PeerWorld as PeerWorld
    from asterism.testing.simulator.plan_world import PlanWorld as PlanWorld
    from asterism.testing.simulator.simulation import simulate as simulate
    from asterism.testing.store_conformance import SharedStoreConformance as SharedStoreConformance
    from asterism.testing.store_conformance import StoreConformance as StoreConformance
    from asterism.testing.virtual_time import Deadlock as Deadlock
    from asterism.testing.virtual_time import SimLoop as SimLoop
    from asterism.testing.virtual_time import run as run

__getattr__, __dir__ = lazy_names(__name__)
