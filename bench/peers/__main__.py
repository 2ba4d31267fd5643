"""Measures graphs with one peer: the process that `bench.peers.apart` starts.

It reads `{"peer": name, "graphs": [...], "repeats": n}` and prints its samples as the last line.
"""

import json
import sys
from dataclasses import astuple
from functools import partial

from bench.measure import best_of
from bench.peers import load


def main() -> None:
    request = json.load(sys.stdin)
    samples = []
    with load(request["peer"]).session() as measure:
        for lists in request["graphs"]:
            graph = [tuple(parents) for parents in lists]
            samples.append(astuple(best_of(partial(measure, graph), request["repeats"])))
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
