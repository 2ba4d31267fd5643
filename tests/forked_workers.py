"""A pytest plugin: ``-p tests.forked_workers --workers 4`` runs the tests in four forks of this process.

A worker of pytest-xdist is a new program, which imports all test files and collects all tests again: eleven seconds of
processor time for each worker. A fork has them already.

A worker asks for tests when it has one left: what a fixture of a module has made is kept while the next test is of the
same module. Tests are handed out in the order in which they were collected, in parts of one file; the parts get smaller
towards the end, so that all workers end at about the same time. If a worker dies, the test that it ran has failed, and
another worker takes over.

The hook ``pytest_configure_node`` of pytest-xdist starts the servers of all workers, while tests are
collected; ``workerinput`` of the configuration is as in a worker of pytest-xdist, too.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_LARGEST_PART = 64


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="run the tests in so many forks of this process")


def pytest_configure(config: pytest.Config) -> None:
    number = config.getoption("--workers")
    if number and not config.option.collectonly and not config.option.usepdb:
        config.pluginmanager.register(_Workers(config, number), "forked workers")


@dataclass(eq=False)
class _Worker:
    name: str
    pid: int
    connection: Connection[Any, Any]
    todo: list[int] = field(default_factory=list)
    """The numbers of the tests that it has not reported yet."""
    process: int | None = None
    """A descriptor of its process, on Linux: what a test has forked may hold the connection open for longer."""

    def __post_init__(self) -> None:
        if hasattr(os, "pidfd_open"):
            self.process = os.pidfd_open(self.pid)

    @property
    def signs(self) -> list[Any]:
        """What is ready when the worker has said something, or has ended."""
        return [self.connection] if self.process is None else [self.connection, self.process]

    def close(self) -> int:
        """Returns the status with which it has ended."""
        self.connection.close()
        if self.process is not None:
            os.close(self.process)
        return os.waitpid(self.pid, 0)[1]


class _Workers:
    """The process that collects the tests, hands them out, and reports what became of them."""

    def __init__(self, config: pytest.Config, number: int) -> None:
        self._config, self._number = config, number
        self._names = (f"gw{number}" for number in range(sys.maxsize))
        self._workers: list[_Worker] = []
        self._shared = SimpleNamespace(config=config, workerinput={})

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with ThreadPoolExecutor(1) as thread:
            sharing: Future[Any] = thread.submit(self._share)
            outcome = yield
            sharing.result()
        return outcome

    def _share(self) -> None:
        if self._config.pluginmanager.hasplugin("xdist"):  # which declares the hook
            self._config.hook.pytest_configure_node(node=self._shared)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # pytest says that not all could be collected
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # tests of several files end in turn
        self._parts = _parts(session.items, self._number)
        self._left: list[list[int]] = []
        try:
            for _ in range(min(self._number, len(session.items))):
                self._fork(session)
            while self._workers:
                ready = wait([sign for worker in self._workers for sign in worker.signs])
                for worker in [worker for worker in self._workers if any(sign in ready for sign in worker.signs)]:
                    self._hear(session, worker)
        finally:
            for worker in self._workers:
                os.kill(worker.pid, signal.SIGKILL)
                worker.close()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _fork(self, session: pytest.Session) -> None:
        name = next(self._names)
        folder = self._config._tmp_path_factory.getbasetemp() / name  # type: ignore[attr-defined]
        ours, theirs = Pipe()
        sys.stdout.flush()  # otherwise the fork writes it, too
        pid = os.fork()
        if pid:
            theirs.close()
            self._workers.append(_Worker(name, pid, ours))
            return
        code = 1
        try:
            for connection in (ours, *(worker.connection for worker in self._workers)):
                connection.close()
            workerinput = {**self._shared.workerinput, "workerid": name, "workercount": self._number}
            _work(session, theirs, folder, workerinput)
            code = 0
        except BaseException:  # the end of a fork is here
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _hear(self, session: pytest.Session, worker: _Worker) -> None:
        try:
            if not worker.connection.poll():
                raise EOFError
            reports = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._ended(session, worker)
            return
        if reports is None:
            part = [] if session.shouldfail or session.shouldstop else self._next_part()
            worker.todo += part
            worker.connection.send(part)
            return
        item = session.items[worker.todo.pop(0)]
        self._report(item, [pytest.TestReport._from_json(report) for report in reports])

    def _next_part(self) -> list[int]:
        return self._left.pop() if self._left else next(self._parts, [])

    def _report(self, item: pytest.Item, reports: list[pytest.TestReport]) -> None:
        hook = self._config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _ended(self, session: pytest.Session, worker: _Worker) -> None:
        self._workers.remove(worker)
        status = worker.close()
        if not worker.todo:
            assert status == 0, f"worker {worker.name} ended with {os.waitstatus_to_exitcode(status)}"
            return
        item = session.items[worker.todo.pop(0)]
        words = f"worker {worker.name} ended with {os.waitstatus_to_exitcode(status)} while it ran {item.nodeid}"
        self._report(item, [pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")])
        if worker.todo:
            self._left.append(worker.todo)
        if not session.shouldfail:
            self._fork(session)


def _parts(items: list[pytest.Item], workers: int) -> Iterator[list[int]]:
    """The numbers of the tests in parts: consecutive tests of one file, and a slow test alone, unless its file says
    ``slow(together=True)``."""
    first = 0
    while first < len(items):
        most = min(_LARGEST_PART, max(1, (len(items) - first) // (8 * workers)))
        last = first + 1
        while (
            last < min(first + most, len(items))
            and items[last].path == items[first].path
            and not _is_alone(items[first])
        ):
            last += 1
        yield list(range(first, last))
        first = last


def _is_alone(item: pytest.Item) -> bool:
    slow = item.get_closest_marker("slow")
    return slow is not None and not slow.kwargs.get("together")


# -- in a worker -------------------------------------------------------------------------------------------------------


class _Reports:
    """Sends the reports of each test when it has ended."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report._to_json())

    def pytest_runtest_logfinish(self) -> None:
        self._connection.send(self._reports)
        self._reports = []


def _work(session: pytest.Session, connection: Connection[Any, Any], folder: Path, workerinput: dict[str, Any]) -> None:
    config, plugins = session.config, session.config.pluginmanager
    config.workerinput = workerinput  # type: ignore[attr-defined]
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    if (reporter := plugins.unregister(name="terminalreporter")) is not None:
        plugins.register(SimpleNamespace(_tw=reporter._tw), "terminalreporter")
    if (capture := plugins.getplugin("capturemanager")) is not None:  # into files of its own
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    plugins.register(_Reports(connection), "reports of a worker")
    todo: list[pytest.Item] = []
    while True:
        connection.send(None)
        part = [session.items[number] for number in connection.recv()]
        todo += part
        for item, following in zip_longest(todo, todo[1:]):
            if following is not None or not part:
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if not part:
            return
        del todo[:-1]
