"""No step of an event loop takes longer than 100 ms: a watchdog over every loop that runs inside a test.

While one step computes, nothing else of the loop goes on: heartbeats are late, and tasks with a short timeout end
although they did nothing wrong. A test in which a step takes too long fails, with the step and the place in the code.

The measure is the processor time of the loop's own thread, without the garbage collector, whose work grows with
the heap of the whole test process. A step that waits for the processor on a busy machine is therefore not blamed. A
machine may also be slow for a while (a shared core): right after a stall the watchdog measures how fast the machine
computes now, against the best it has seen, and takes that much off. A virtual machine stands still while its host
computes for others, and the thread that was computing is charged for that time: it is taken off, too. While the machine
has more to do than it has cores, as in CI, a step has twice the time: what others do to the caches cannot be measured
apart.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import itertools
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import pytest

LIMIT = 0.100
"""Seconds of processor time that one step may take."""

ORDINARY_PACE = 0.002
"""What ``_pace`` takes on a slow machine, in seconds. On one that is slower still, as a throttled one, a step counts as
it would there: the limit is about the work of a step."""

SAMPLE_EVERY = 0.02
"""Seconds between two looks at what a long step is doing."""

READ_EVERY = 0.002
"""Seconds after which the processor time of a thread is read again: that takes as long as a short step. A step that
begins in between is charged for what it took more than the time since then, so it may get away with so much more."""

COUNT_EVERY = 0.05
"""Seconds after which the steal time is read again."""

FRAMES = 6
"""How many frames of a stalled step are shown, the innermost ones."""


class Allowed(NamedTuple):
    """A step that may take longer: a pattern of the test's id, a pattern of the step, and why."""

    test: str
    step: str
    reason: str


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        "tests/(cli|docs|report|planfile)/",
        r"the task (_used|_sync)\b",
        "a command that asks and prints is alone on its loop, and imports what it needs there; what works on beside it "
        "(devices, executions, servers) runs in tasks of its own, which are watched",
    ),
    Allowed(
        "tests/(peers/test_|cli/test_.*peer)",
        r"the task (test_|its_|\w+\.<locals>\.(scene|main))",
        "two stores in memory meet within the test's own coroutine: they answer without giving way, so that the whole "
        "meeting is one step; the first server in a process also imports uvicorn and reads its certificate there",
    ),
    Allowed(
        "tests/peers/test_hostile_peers",
        r"the task \w+ kept|the task \w+$",
        "the same: each lie is a coroutine over stores in memory",
    ),
    Allowed(
        "tests/(store/test_(conformance|sqlite_queue|postgres)|testing/)",
        r"the task (test_|\w+\.<locals>\.)",
        "the test itself makes megabytes of text or thousands of records, and commits them at once",
    ),
    Allowed(
        "tests/orchestrator/test_scale.py",
        r"the task (run_in_time\.<locals>\.main|EditCycles\._call_editor)|DeviceScheduler\._step",
        "a plan of 100,000 tasks is admitted, 20,000 tasks are removed by one edit, or given up below one failure: all "
        "or nothing, in one step",
    ),
    Allowed(
        "tests/durable/test_(compaction|durable_report|journal_store)",
        r"the task test_",
        "a long journal is read back when a constellation is taken up, before anything of it runs",
    ),
    Allowed(
        "tests/fleet/device/test_commands.py::test_a_large_input",
        r"execute\.<locals>\.main",
        "an input of megabytes is written as JSON for its command",
    ),
    Allowed(
        "tests/compat/test_deep_graphs",
        r"(_Inbox\._deliver|orchestrate_constellation|DeviceScheduler\._step)",
        "an agent hands back a copy of a graph of thousands of tasks: compared and merged in one step, all or nothing; "
        "and the statistics of such a graph are counted once, for the event of its end",
    ),
    Allowed(
        "tests/(series|cli|bench)/",
        r"(GitHubCore\.(arequest|__aenter__)|the task \w+\.<locals>\.main|the task test_)",
        "githubkit imports its models within the first request, and signs the token of an app within its coroutine",
    ),
    Allowed(
        "tests/page/",
        r"(wait_for_future|Connection\.|Dispatcher)",
        "the loop of Playwright waits for a browser while the test computes in one of its callbacks",
    ),
    Allowed(
        "tests/(agents|cli|docs|models)/",
        r"the task (request_apart|model_request_apart|ModelCaller\._request)\b",
        "the clients of OpenAI and Anthropic import and compile their types within the first request; so a request has "
        "an event loop of its own, in a thread, and stalls no other",
    ),
)


@dataclass(frozen=True, slots=True)
class Stall:
    step: str
    seconds: float
    where: str

    def __str__(self) -> str:
        return f"{self.step} kept its event loop busy for {self.seconds * 1000:.0f} ms\n{self.where}"


class _Reading(NamedTuple):
    """When the processor time of a thread was read, what it was, and the steal time of that moment."""

    at: float
    spent: float
    stolen: float


_NEVER = (0.0, 0.0)


class Watchdog:
    """Measures every step of every loop of this process between ``start`` and ``stop``."""

    def __init__(self, limit: float = LIMIT, stolen: Callable[[], float] | None = None) -> None:
        self.limit = limit
        self._stolen = stolen or _StealTime()
        self._counted = (time.monotonic(), self._stolen())
        self.stalls: list[Stall] = []
        self._now: dict[int, asyncio.Handle] = {}  # by thread: what its loop is doing
        self._samples: dict[int, tuple[int, Counter[str]]] = {}
        self._read: dict[int, _Reading] = {}  # by thread
        self._collecting: dict[int, tuple[float, float]] = {}  # by thread: when the collector began; in all so far
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="loop watchdog", daemon=True)
        self._best = min(ORDINARY_PACE, *(_pace() for _ in range(20)))
        self._step: Callable[[asyncio.Handle], None] = asyncio.Handle._run

    def start(self) -> None:
        asyncio.Handle._run = self._watched(self._step)  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collector)
        self._sampler.start()

    def stop(self) -> None:
        asyncio.Handle._run = self._step  # type: ignore[method-assign, assignment]
        gc.callbacks.remove(self._collector)
        self._over.set()
        self._sampler.join()

    def _watched(self, step: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        """A step that is measured. Millions of steps go through it, so it calls nothing of ours while all is well."""
        own, monotonic, limit = threading.get_ident, time.monotonic, self.limit
        steps, reads, collecting = self._now, self._read, self._collecting

        def watched(handle: asyncio.Handle) -> None:
            thread = own()
            outer, steps[thread] = steps.get(thread), handle
            callback = handle._callback  # type: ignore[attr-defined]  # afterwards the handle may have none
            collected = collecting.get(thread, _NEVER)[1]
            began = monotonic()
            read = reads.get(thread)
            if read is None or began - read.at > READ_EVERY:
                read = reads[thread] = _Reading(began, time.thread_time(), self._recent_steal(began))
            try:
                step(handle)
            finally:
                if outer is None:
                    del steps[thread]
                else:
                    steps[thread] = outer
                if monotonic() - began > limit:
                    spent = time.thread_time() - read.spent - (began - read.at)
                    if spent > limit:
                        spent -= collecting.get(thread, _NEVER)[1] - collected + self._stolen() - read.stolen
                        self._judge(handle, _name(callback), spent, thread)

        return watched

    def _judge(self, handle: asyncio.Handle, name: str, spent: float, thread: int) -> None:
        sample = self._samples.get(thread)
        where = _where(sample[1]) if sample is not None and sample[0] == id(handle) else ""
        if spent > self.limit:
            now = min(_pace() for _ in range(3))
            self._best = min(self._best, now)
            spent *= self._best / now
        if spent > (self.limit * 2 if _crowded() else self.limit):
            self.stalls.append(Stall(name, spent, where))

    def _recent_steal(self, now: float) -> float:
        """The steal time of a moment ago, at most: to read it takes as long as a short step."""
        if now - self._counted[0] > COUNT_EVERY:
            self._counted = (now, self._stolen())
        return self._counted[1]

    def _collector(self, phase: str, info: dict[str, int]) -> None:
        thread, now = threading.get_ident(), time.thread_time()
        began, total = self._collecting.get(thread, _NEVER)
        self._collecting[thread] = (now, total) if phase == "start" else (began, total + now - began)

    def _sample(self) -> None:
        """Count where each long step is seen, again and again."""
        seen: dict[int, int] = {}
        with tempfile.TemporaryFile(buffering=0) as file:
            dump = _StackDump(file)
            while not self._over.wait(SAMPLE_EVERY):
                seen = self._look(seen, dump)

    def _look(self, seen: dict[int, int], dump: _StackDump) -> dict[int, int]:
        """One look: count the places of steps that were there at the last look, too. Returns the steps that run, by
        thread, as ids: a handle that is kept would keep its task and functions alive."""
        running: dict[int, int] = {}
        for thread, handle in dict(self._now).items():
            step = running[thread] = id(handle)
            if seen.get(thread) != step:
                continue
            known, places = self._samples.get(thread, (None, Counter()))
            if known != step:
                places = Counter()
                self._samples[thread] = (step, places)
            within = itertools.takewhile(lambda place: place[0] != __file__, dump.stack(thread))
            places.update(dict.fromkeys((f"{os.path.relpath(file)} {name}" for file, name in within), 1))
        return running


class _StackDump:
    """Stacks of threads, as faulthandler writes them into a file. A dump is one piece: CPython 3.11 may crash if a
    thread goes on while another one walks its frames. Each call that releases the interpreter lock makes the sampler
    wait for the step that computes, so there is only one for each dump, and the file grows."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._read = file, 0

    def stack(self, thread: int) -> list[tuple[str, str]]:
        """The stack of a thread, innermost first: (file, function)."""
        faulthandler.dump_traceback(self._file, all_threads=True)
        text = os.pread(self._file.fileno(), 1 << 20, self._read)
        self._read += len(text)
        _, _, stack = text.decode("utf-8", "replace").partition(f"hread 0x{thread:016x} ")
        return _FRAME.findall(stack.partition("\n\n")[0])


_FRAME = re.compile(r'File "(.*)", line \S+ in (.*)')


def _where(places: Counter[str]) -> str:
    """The places where it was seen in most looks, the innermost ones."""
    most = max(places.values(), default=0)
    frequent = [place for place, times in places.items() if times > most / 2 and not _DULL.search(place)]
    return "".join(f"  in {place}\n" for place in frequent[:FRAMES])


_DULL = re.compile(r"/asyncio/|<frozen")


class _StealTime:
    """The steal time of Linux: seconds for which the host of this virtual machine computed for others, while this one
    wanted to."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/stat", os.O_RDONLY)
        except OSError:  # not Linux
            self._file = -1

    def __call__(self) -> float:
        if self._file < 0:
            return 0.0
        return int(os.pread(self._file, 256, 0).split()[8]) / os.sysconf("SC_CLK_TCK")


def _crowded() -> bool:
    """Whether more wants to compute than there are cores."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def _pace() -> float:
    """The processor time of a fixed piece of work: how fast the machine computes right now."""
    began = time.thread_time()
    total = 0
    for number in range(20_000):
        total += number & 7
    return time.thread_time() - began


def _name(callback: Any) -> str:
    """What a step is called."""
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"the task {getattr(task.get_coro(), '__qualname__', task)}"
    return f"the callback {getattr(callback, '__qualname__', repr(callback))}"


def allowed(test: str, stall: Stall) -> bool:
    where = f"{stall.step}\n{stall.where}"
    return any(re.search(exception.test, test) and re.search(exception.step, where) for exception in ALLOWED)


class Plugin:
    """Fails the test in which a step was too long."""

    def __init__(self) -> None:
        self.watchdog = Watchdog(LIMIT if sys.gettrace() is None else 3 * LIMIT)  # who is traced (coverage) is slower
        self._started = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if not self._started:  # in the process that runs the tests: a fork has no threads
            self._started = True
            self.watchdog.start()
        return (yield from self._watched(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._watched(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._watched(item))

    def pytest_unconfigure(self) -> None:
        if self._started:
            self.watchdog.stop()

    def _watched(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.watchdog.stalls.clear()
        outcome = yield
        stalls = [str(stall) for stall in self.watchdog.stalls if not allowed(item.nodeid, stall)]
        if stalls:
            pytest.fail("\n".join(stalls), pytrace=False)
        return outcome
