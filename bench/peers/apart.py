"""Measures a peer in a process of its own, with a home directory of its own.

Some peers leave threads, settings and exit handlers behind, which would be measured with the next one; and
some write to the home directory, where a benchmark has no business.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.graphs import Graph
from bench.measure import Sample
from bench.peers.surroundings import scratch

ROOT = Path(__file__).parents[2]


def measure_apart(peer: str, graphs: Sequence[Graph], repeats: int = 1, timeout: float = 600) -> list[Sample]:
    """The best of `repeats` runs of each graph, in one session of the peer; raises with what it printed."""
    request = json.dumps({"peer": peer, "graphs": graphs, "repeats": repeats})
    with scratch() as home:
        output = _child(request, {**os.environ, "HOME": str(home), "TMPDIR": str(home)}, timeout)
    return [Sample(*sample) for sample in json.loads(output.splitlines()[-1])]


def _child(request: str, environment: Mapping[str, str], timeout: float) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.peers"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it started can be ended with it
    )
    with process:
        try:
            output, errors = process.communicate(request, timeout)
        finally:
            _end_group(process.pid)
    if process.returncode:
        raise RuntimeError(f"{request[:40]}… ended with {process.returncode}:\n{errors[-4000:]}")
    return output


def _end_group(group: int) -> None:
    """A peer ends its own processes; this is for the one that hung or crashed."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
