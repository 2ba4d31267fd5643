"""`prefect`: a flow that submits its tasks with `wait_for` to a pool of threads, and a server of its own.

Measured is what happens inside the flow, from the first `submit` to the end of the last task: a flow waits
up to a second for its own heartbeat when it ends, whatever it did. The processor time is that of this process
and the server together. Caching, results on disk, logging and the server's background services are off:
nothing here needs them, and with them a task takes up to five times as long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.graphs import Graph, check, independent
from bench.measure import Sample, family_cpu, timed
from bench.peers import Measure
from bench.peers.surroundings import environment, scratch

NAME = "prefect"
LIMIT = 1_000

SERVICES = (
    "CANCELLATION_CLEANUP",
    "CLEANUP_RECONCILER",
    "EVENT_LOGGER",
    "EVENT_PERSISTER",
    "FOREMAN",
    "LATE_RUNS",
    "PAUSE_EXPIRATIONS",
    "REPOSSESSOR",
    "SCHEDULER",
    "TASK_RUN_RECORDER",
    "TRIGGERS",
)

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in SERVICES},
}


def VERSION() -> str:
    return version("prefect")


def _own_files(home: Path) -> dict[str, str]:
    """Settings that keep Prefect away from the profile and the database of the user."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
    }


def _flow(trace: list[int]) -> Any:
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.task_runners import ThreadPoolTaskRunner

    def mark(number: int) -> None:
        trace.extend((~number, number))

    body: Any = task(cache_policy=NO_CACHE, persist_result=False)(mark)

    def submit(graph: Graph) -> None:
        futures: list[Any] = []
        for number, parents in enumerate(graph):
            futures.append(body.submit(number, wait_for=[futures[parent] for parent in parents]))
        for future in futures:
            future.wait()

    def execute(graph: Graph) -> Sample:
        return timed(len(graph), lambda: submit(graph), family_cpu)

    # A task that waits for its parents holds a thread; they were submitted before it, so one always moves.
    threads: Any = ThreadPoolTaskRunner(max_workers=4)
    return flow(task_runner=threads, validate_parameters=False, persist_result=False)(execute)


def _measure(graph: Graph) -> Sample:
    from prefect.events.worker import EventsWorker

    trace: list[int] = []
    sample: Sample = _flow(trace)(graph)
    check(graph, trace)
    # What happened is sent to the server by and by. The next run must not pay for that, and at the end of the
    # session there is no server any more, whose absence costs seconds for each event.
    EventsWorker.instance().wait_until_empty()
    return sample


@contextmanager
def _server() -> Iterator[None]:
    """The ephemeral server, which the first flow starts, and which would otherwise live as long as Python."""
    from prefect.context import refresh_global_settings_context
    from prefect.server.api.server import SubprocessASGIServer

    # The settings were read when Prefect was first imported, perhaps for another session.
    refresh_global_settings_context()
    try:
        yield
    finally:
        SubprocessASGIServer().stop()


@contextmanager
def session() -> Iterator[Measure]:
    with scratch() as home, environment(QUIET | _own_files(home)), _server():
        _measure(independent(1))  # starts the server
        yield _measure


def run(graph: Graph) -> Sample:
    """Measure one graph with a server of its own."""
    with session() as measure:
        return measure(graph)
