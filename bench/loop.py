"""The event loop of the benchmarks of durable work: uvloop where it is installed, for everybody who works on asyncio.
(The tests are content without it.)"""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec

WORDS = "on uvloop" if find_spec("uvloop") is not None else "on asyncio"


def factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop  # type: ignore[no-any-return,unused-ignore]


def runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=factory())
