"""`ray`: a remote function per task that gets the object references of its parents; a cluster of two workers.

Measured is from the first `.remote()` to the return of `ray.get` of all references; the processor time is
that of the driver, the workers and Ray's own servers together.
"""

import array
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.graphs import Graph, check, independent
from bench.measure import Sample, family_cpu, timed
from bench.peers import Measure
from bench.peers.surroundings import environment, scratch

NAME = "ray"
LIMIT = 5_000

QUIET = {
    "DO_NOT_TRACK": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what newer versions do anyway, and warn about until told
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: one machine, so listen on the loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
}


def VERSION() -> str:
    return version("ray")


def _remote_body(trace: Path) -> Any:
    """A no-op that leaves its marks in a file, for the tasks run in other processes."""
    import ray

    name = str(trace)

    # Retries are off, so that nothing hides a task that runs twice.
    @ray.remote(max_retries=0)
    def body(task: int, *parents: None) -> None:
        # Appending is atomic, so the file has all tasks in their order. It takes a few µs of some 1,000.
        file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, array.array("q", (~task, task)).tobytes())
        os.close(file)

    return body


def _execute(graph: Graph, body: Any) -> None:
    import ray

    references: list[Any] = []
    for task, parents in enumerate(graph):
        references.append(body.remote(task, *[references[parent] for parent in parents]))
    ray.get(references)


def _measure(graph: Graph, body: Any, file: Path) -> Sample:
    file.write_bytes(b"")
    sample = timed(len(graph), lambda: _execute(graph, body), family_cpu)
    check(graph, array.array("q", file.read_bytes()))
    return sample


@contextmanager
def _cluster(directory: Path) -> Iterator[None]:
    import ray

    ray.init(
        address="local",
        num_cpus=2,  # on a machine with more, further workers only cost: the driver is the bottleneck
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        object_store_memory=128 * 2**20,
        _temp_dir=str(directory),
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def session() -> Iterator[Measure]:
    # Without this, Ray would look for its token in the home directory, and write one there.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with environment(QUIET | token), scratch() as directory, _cluster(directory):
        trace = directory / "trace"
        body = _remote_body(trace)
        _measure(independent(100), body, trace)  # the workers start with their first tasks
        yield lambda graph: _measure(graph, body, trace)


def run(graph: Graph) -> Sample:
    """Measure one graph on a cluster of its own."""
    with session() as measure:
        return measure(graph)
