"""`dask.distributed`: scheduler, worker and client in this one process, which spares them the network.

Measured is `Client.get` of a task graph in Dask's own form, the quickest way in: the tasks arrive at the
scheduler all at once, not one by one as with `submit`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from typing import Any

from bench.graphs import Graph, check
from bench.measure import Sample, timed
from bench.peers import Measure
from bench.peers.surroundings import scratch

NAME = "dask.distributed"
LIMIT = 2_000


def VERSION() -> str:
    return version("distributed")


# Dask pickles what it is given, here too: a list that a function brings along would be a copy.
trace: list[int] = []


def body(task: int, *parents: None) -> None:
    trace.extend((~task, task))


def _execute(client: Any, graph: Graph, run_id: int) -> None:
    # A key that the scheduler has seen before might be answered from memory: hence the number of the run.
    keys = [f"{run_id}-{task}" for task in range(len(graph))]
    client.get({key: (body, task, *[keys[p] for p in graph[task]]) for task, key in enumerate(keys)}, keys)


def _measure(client: Any, graph: Graph, run_id: int) -> Sample:
    trace.clear()
    sample = timed(len(graph), lambda: _execute(client, graph, run_id))
    check(graph, trace)
    return sample


@contextmanager
def _client() -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    with scratch() as directory:
        settings = {
            "temporary-directory": str(directory),
            # Tasks go to the worker at once, not a few at a time: half the time for independent ones.
            "distributed.scheduler.worker-saturation": "inf",
            # The statistical profiler is for the dashboard, which is off as well.
            "distributed.worker.profile.enabled": False,
        }
        # There is no way to have no status pages at all; these addresses keep them on the loopback.
        pages = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
        workers = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "memory_limit": 0}
        make_cluster: Any = LocalCluster
        make_client: Any = Client
        with (
            dask.config.set(settings),
            make_cluster(**workers, **pages) as cluster,
            make_client(cluster) as client,
        ):
            yield client


@contextmanager
def session() -> Iterator[Measure]:
    with _client() as client:
        runs = count()
        yield lambda graph: _measure(client, graph, next(runs))


def run(graph: Graph) -> Sample:
    """Measure one graph on a cluster of its own."""
    with session() as measure:
        return measure(graph)
