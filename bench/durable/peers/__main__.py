"""Measures graphs with one engine: the process that ``bench.durable.speed`` starts.

It reads ``{"peer": name, "graphs": [[shape, tasks], ...], "folder": path}`` and prints its samples as the last line.
"""

import gc
import json
import sys
from dataclasses import astuple
from pathlib import Path

from bench.durable.peers import load
from bench.durable.work import graph

FIRST = 3
"""So many tasks before anything counts: whatever is loaded at the first use is loaded then."""


def main() -> None:
    request = json.load(sys.stdin)
    samples = []
    with load(request["peer"]).session(Path(request["folder"])) as measure:
        measure(graph("wide", FIRST))
        for shape, tasks in request["graphs"]:
            todo = graph(shape, tasks)
            gc.collect()
            samples.append(astuple(measure(todo)))
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
