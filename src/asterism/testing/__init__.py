"""Testing tools for plans, and for devices of one's own.

::

    from asterism.testing import check_device, run_plan

    def test_a_release_takes_as_long_as_its_longest_chain():
        result = run_plan(release(), takes={"build": 600})          # virtual time: waiting costs nothing
        assert result.state == "completed"

    async def test_the_robot_is_a_device():
        await check_device(Robot(), completes=..., fails=..., lasts=...)

===========================  ===========================================================================================
``virtual_time``             ``run`` and ``SimLoop``: an event loop whose clock jumps, in an order that follows a seed
``pretended_device``         ``run_plan``: a plan in virtual time, whose tasks take, return and fail as a test says
``pytest_plugin``            the fixture ``run_plan`` and the marker ``plan_seeds``, for your ``conftest.py``
``device_check``             ``check_device``: whether a device of one's own keeps what the protocol promises
===========================  ===========================================================================================

Each name is imported when it is first asked for. No other room imports from this one.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.testing.device_check import check_device as check_device
    from asterism.testing.pretended_device import PretendedDevice as PretendedDevice
    from asterism.testing.pretended_device import PretendedFailure as PretendedFailure
    from asterism.testing.pretended_device import run_plan as run_plan
    from asterism.testing.virtual_time import Deadlock as Deadlock
    from asterism.testing.virtual_time import SimLoop as SimLoop
    from asterism.testing.virtual_time import run as run

__getattr__, __dir__ = lazy_names(__name__)
