"""``prefect``: a flow whose tasks persist their results, with a server of its own on SQLite.

What lets a flow go on where it was are the results of its tasks: each is a file, under a key made of the task, its
arguments and the run of the flow. The server records their states. As in ``bench/peers/prefect_peer.py``, measured is
what happens inside the flow, from the first ``submit`` to the end of the last task; logging and the services of the
server that nobody needs here are off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.durable.peers import Measure, recorded
from bench.durable.work import trace
from bench.graphs import Graph, check, independent
from bench.measure import Sample, family_cpu, timed
from bench.peers import prefect_peer
from bench.peers.surroundings import environment

NAME = "prefect"
SETTINGS = (
    "a flow with `persist_result=True` and the default cache policy, four threads; results in files, states in its "
    "server's SQLite file as it opens it: write-ahead log, `synchronous=NORMAL`"
)
LIMIT = {"wide": 300, "chain": 200, "layered": 300}

NEEDED = ("TASK_RUN_RECORDER", "EVENT_PERSISTER")
"""The services that record what became of tasks."""

DURABLE = {
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
    **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "true" for service in NEEDED},
}


def VERSION() -> str:
    return version("prefect")


def _mark(number: int) -> int:
    trace.extend((~number, number))
    return number


def _flow() -> Any:
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    body: Any = task(persist_result=True)(_mark)

    def submit(graph: Graph) -> None:
        futures: list[Any] = []
        for number, parents in enumerate(graph):
            futures.append(body.submit(number, wait_for=[futures[parent] for parent in parents]))
        for future in futures:
            future.result()

    def execute(graph: Graph) -> Sample:
        return timed(len(graph), lambda: submit(graph), family_cpu)

    # A task that waits for its parents holds a thread; they were submitted before it, so one always moves.
    threads: Any = ThreadPoolTaskRunner(max_workers=4)
    return flow(task_runner=threads, validate_parameters=False, persist_result=False)(execute)


def _measure(graph: Graph, results: Path) -> Sample:
    from prefect.events.worker import EventsWorker

    trace.clear()
    before = _results(results)
    sample: Sample = _flow()(graph)
    check(graph, trace)
    recorded(_results(results) - before, len(graph), "results")
    # What happened is sent to the server by and by; the next run must not pay for that.
    EventsWorker.instance().wait_until_empty()
    return sample


def _results(folder: Path) -> int:
    return sum(1 for path in folder.iterdir() if path.is_file()) if folder.exists() else 0


@contextmanager
def session(folder: Path) -> Iterator[Measure]:
    own = prefect_peer._own_files(folder) | {"PREFECT_LOCAL_STORAGE_PATH": str(folder / "storage")}
    with environment(prefect_peer.QUIET | own | DURABLE), prefect_peer._server():
        _measure(independent(1), folder / "storage")  # starts the server
        yield lambda graph: _measure(graph, folder / "storage")
