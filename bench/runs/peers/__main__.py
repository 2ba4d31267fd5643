"""Lets one queue work: the process that ``bench.runs.queues`` starts.

It reads ``{"peer": name, "url": …, "jobs": n, "batch": n, "workers": n}`` and prints what it took as its last line.
"""

import asyncio
import gc
import json
import sys
from importlib.util import find_spec

from bench.runs.peers import Timing, load


def main() -> None:
    request = json.load(sys.stdin)
    peer = load(request.pop("peer"))
    factory = None
    if peer.UVLOOP and find_spec("uvloop") is not None:  # the tests are content without it
        import uvloop

        factory = uvloop.new_event_loop
    gc.collect()
    with asyncio.Runner(loop_factory=factory) as runner:
        timing: Timing = runner.run(peer.work(**request))
    print(json.dumps(timing))


if __name__ == "__main__":
    main()
