"""Lets one queue work: the process that ``bench.runs.queues`` starts.

It reads ``{"peer": name, "url": …, "jobs": n, "batch": n, "workers": n}`` and prints what it took as its last line.
"""

import asyncio
import gc
import json
import sys

from bench import loop
from bench.runs.peers import Timing, load


def main() -> None:
    request = json.load(sys.stdin)
    peer = load(request.pop("peer"))
    gc.collect()
    with loop.runner() if peer.UVLOOP else asyncio.Runner() as runner:
        timing: Timing = runner.run(peer.work(**request))
    print(json.dumps(timing))


if __name__ == "__main__":
    main()
