"""The ways that are traced, from one moment to another. The moments do not depend on the layout of the package: a
task's own function, a device's ``execute``, a commit of the store, the command line.

Only public names are used: those of ``asterism`` itself, ``asterism.__main__.main`` for the command line, and what a
server is made of, for a client without a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import httpx

import asterism
from asterism import (
    Constellation,
    ConstellationView,
    DeviceAgent,
    DurableOrchestrator,
    Event,
    Fleet,
    LocalDevice,
    Orchestrator,
    Task,
    Work,
    Workflow,
)
from asterism.api.credentials import Credentials
from asterism.base.http_limits import Bodies
from asterism.durable.journal_store import load
from asterism.durable.plan_runner import runs_plans
from asterism.durable.plan_submissions import submit_plan
from asterism.models import ModelEditor
from asterism.server.endpoint import ServerState
from asterism.server.http_service import server_app
from asterism.server.request_guard import SERVER_LIMITS, Gate
from asterism.store.memory import MemoryStore
from bench.call_paths import tasks
from bench.call_paths.tracer import Function, Tracer
from bench.peers.surroundings import environment, scratch
from bench.proof import check_plan, nothing

PACKAGE = Path(asterism.__file__).parent

CHAIN = 12
"""How many tasks the plans have, one after the other."""

COMMANDS = 5
"""How often a command is traced."""

SETTLED = 0.5
"""Seconds after which a device that has joined has nothing left to do."""

QUIET = 600.0
"""Seconds between two heartbeats of a device."""


@dataclass(frozen=True)
class Way:
    """``walk`` goes it several times, and starts and stops the tracer each time at its first and at its last moment."""

    name: str
    meaning: str
    walk: Callable[[Tracer], None]
    times: int


@dataclass(frozen=True)
class Traced:
    """The functions that ran in most walks, and the tree of calls of the last walk.

    The first walk does not count: it imports modules and fills caches. What ran in half of the others or fewer is
    background work, such as a heartbeat that came between."""

    way: Way
    functions: frozenset[Function]
    tree: str

    @property
    def files(self) -> frozenset[str]:
        return frozenset(function.file for function in self.functions)


def trace(way: Way) -> Traced:
    """Raises AssertionError unless the way was gone as often as it should be, from its first moment to its last."""
    tracer = Tracer(PACKAGE)
    way.walk(tracer)
    assert len(tracer.walks) == way.times, f"{way.name} was gone {len(tracer.walks)} times, not {way.times}"
    walks = tracer.walks[1:]
    times = Counter(function for walk in walks for function in walk)
    return Traced(way, frozenset(name for name, count in times.items() if 2 * count > len(walks)), tracer.tree())


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """A folder of its own for the store and for all that a device keeps."""
    with scratch() as folder:
        places = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "CONFIG", "DATA")}
        store = f"sqlite:///{folder}/fleet.db"
        with environment({**places, "ASTERISM_STORE": store, "USER": "ann", "LOGNAME": "ann"}):
            yield folder


def _chain(call: Any) -> Constellation:
    plan = Constellation("chain")
    for number in range(CHAIN):
        plan.add(Task(str(number), call=call), after=str(number - 1) if number else ())
    return plan


# -- plans in memory ---------------------------------------------------------------------------------------------------


class _Device(LocalDevice):
    """Stops the tracer when it is given a task. (What it then does to call the function is not on the way.)"""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__("here")
        self._tracer = tracer

    async def execute(self, work: Work) -> Any:
        self._tracer.stop()
        return await super().execute(work)


def next_task(tracer: Tracer) -> None:
    with tracer, tasks.ending_with(tracer.start, CHAIN - 1):
        result = Orchestrator([_Device(tracer)]).run_sync(_chain(tasks.marked))
    check_plan(result, nothing(range(CHAIN)))


def next_task_with_editor(tracer: Tracer) -> None:
    async def editor(view: ConstellationView, events: Sequence[Event]) -> None:
        """Nothing is to be changed."""

    with tracer, tasks.ending_with(tracer.start, CHAIN - 1):
        result = Orchestrator([_Device(tracer)], editor=editor).run_sync(_chain(tasks.marked))
    check_plan(result, nothing(range(CHAIN)))
    assert result.cycles, "the editor was not asked"


def model_cycle(tracer: Tracer) -> None:
    """Each task fails, and the model answers with the next one, which depends on that failure."""
    from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

    answers = iter(range(1, CHAIN))

    async def script(messages: Any, info: AgentInfo) -> Any:
        number = next(answers, None)
        edits = [] if number is None else _next_failure(number)
        arguments = json.dumps({"edits": edits, "reason": "scripted"})
        yield {0: DeltaToolCall("answer", arguments, tool_call_id="call")}

    plan = Constellation("failures")
    plan.add(Task("0", call=tasks.FAILING))
    editor = ModelEditor(FunctionModel(stream_function=script))
    with tracer, tasks.ending_with(tracer.start, CHAIN - 1):
        result = Orchestrator([_Device(tracer)], editor=editor).run_sync(plan)
    failed = [task.id for task in result if task.status == "failed"]
    assert failed == list(map(str, range(CHAIN))), f"the model should have added {CHAIN - 1} tasks: {failed}"


def _next_failure(number: int) -> list[dict[str, Any]]:
    """The edits that add a task after the one before it has failed."""
    task = {"id": str(number), "call": tasks.FAILING}
    dependency = {"source": str(number - 1), "target": str(number), "on": "failure"}
    return [{"op": "add_task", "task": task}, {"op": "add_dependency", **dependency}]


# -- the command line --------------------------------------------------------------------------------------------------


class _Output(io.StringIO):
    """A standard output that tells when something is written to it."""

    def __init__(self, written: Callable[[], None]) -> None:
        super().__init__()
        self._written = written

    def write(self, text: str) -> int:
        self._written()
        return super().write(text)


def _command(tracer: Tracer, *words: str) -> None:
    """Trace a command from ``main`` to the first text that it prints."""
    path, argv, errors = sys.path[:], sys.argv, io.StringIO()
    try:
        main = import_module("asterism.__main__").main  # which removes the working directory from the path
        sys.argv = ["asterism", *words]
        with tracer, contextlib.redirect_stdout(_Output(tracer.stop)), contextlib.redirect_stderr(errors):
            tracer.start()
            main()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"asterism {' '.join(words)} exits with {ended.code}: {errors.getvalue()}") from None
    finally:
        sys.path[:], sys.argv = path, argv


@contextlib.contextmanager
def _device_beside() -> Iterator[None]:
    """A device has joined the fleet, in a thread that is not traced."""
    joined, left = threading.Event(), threading.Event()

    async def live() -> None:
        async with await Fleet.open() as fleet:
            agent = DeviceAgent(fleet, "beside", slots=100, heartbeat=QUIET, heartbeat_timeout=3 * QUIET)
            living = asyncio.create_task(agent.run())
            await agent.joined.wait()
            await fleet.workflows.add(Workflow("nothing", call=tasks.NOTHING))
            await asyncio.sleep(SETTLED)
            joined.set()
            await asyncio.to_thread(left.wait)
            agent.drain()
            await living

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    joined.wait()
    try:
        yield
    finally:
        left.set()
        thread.join()


def create_run(tracer: Tracer) -> None:
    with _home(), _device_beside():
        for _ in range(COMMANDS):
            _command(tracer, "runs", "create", "nothing")


def claim_in_series(tracer: Tracer) -> None:
    for _ in range(COMMANDS):
        with _home() as folder:
            remote = folder / "remote.git"
            subprocess.run(["git", "init", "--quiet", "--bare", str(remote)], check=True)
            _command(tracer, "series", "claim", "RFC-093", "--issue", "123", "--remote", f"file://{remote}")


# -- in a store --------------------------------------------------------------------------------------------------------


class _WatchedStore:
    """A store that tells of a commit before it begins, and when it is durable. All else is the store's own."""

    def __init__(self, store: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
        self._store, self._before, self._after = store, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: Sequence[Any]) -> None:
        self._before(writes)
        await self._store.commit(writes)
        self._after(writes)


async def _watched_fleet(*, before: Callable[[Any], None], after: Callable[[Any], None]) -> Fleet:
    opened = await Fleet.open()
    return Fleet(cast(Any, _WatchedStore(opened.store, before, after)))


def _ignored(writes: Any) -> None:
    pass


def run_on_device(tracer: Tracer) -> None:
    async def live() -> None:
        ended = asyncio.Event()

        def committed(writes: Any) -> None:
            if any(write.run.ended for write in writes if hasattr(write, "run")):
                tracer.stop()
                ended.set()

        async with await _watched_fleet(before=_ignored, after=committed) as fleet:
            agent = DeviceAgent(fleet, "device", heartbeat=QUIET, heartbeat_timeout=3 * QUIET)
            living = asyncio.create_task(agent.run())
            await agent.joined.wait()
            await fleet.workflows.add(Workflow("nothing", call=tasks.NOTHING))
            await asyncio.sleep(SETTLED)
            tracer.start()
            create = (sys.executable, "-m", "asterism", "runs", "create", "nothing", "--json")
            process = await asyncio.create_subprocess_exec(*create, stdout=subprocess.DEVNULL)
            await ended.wait()
            await process.wait()
            agent.drain()
            await living

    for _ in range(COMMANDS):
        with _home(), tracer:
            asyncio.run(live())


def _durable(tracer: Tracer, *, stop_before: bool) -> None:
    def stop(writes: Any) -> None:
        if any(getattr(write, "key", "").startswith("journal/") for write in writes):
            tracer.stop()

    async def run() -> None:
        before, after = (stop, _ignored) if stop_before else (_ignored, stop)
        async with await _watched_fleet(before=before, after=after) as fleet:
            orchestrator = DurableOrchestrator(fleet, local=1, heartbeat=QUIET, takeover_after=3 * QUIET)
            check_plan(await orchestrator.run(_chain(tasks.MARKED)), nothing(range(CHAIN)))

    with _home(), tracer, tasks.ending_with(tracer.start, CHAIN - 1):
        asyncio.run(run())


def durable_end(tracer: Tracer) -> None:
    _durable(tracer, stop_before=True)


def durable_commit(tracer: Tracer) -> None:
    _durable(tracer, stop_before=False)


# -- a server ----------------------------------------------------------------------------------------------------------


def edit_over_http(tracer: Tracer) -> None:
    """A request to the application of a server, without a socket, until its answer. The server runs the plan, whose
    store is in memory; the edit adds a task and what it depends on."""

    async def live() -> None:
        async with Fleet(MemoryStore()) as fleet, runs_plans(fleet, _quiet_orchestrator) as runner:
            plan = Constellation("nightly")
            plan.add(Task("first", call=tasks.ENDLESS))
            await submit_plan(fleet, plan)
            runner.wake()
            await asyncio.sleep(SETTLED)
            credentials = Credentials(fleet.store)
            token = (await credentials.create("ann", ["admin"], by="bench")).token
            gate = Gate(credentials, asyncio.get_running_loop().time, https=False)
            state = ServerState(fleet, gate, Bodies(SERVER_LIMITS))
            transport = httpx.ASGITransport(cast(Any, server_app(state, ["127.0.0.1"])))
            headers = {"authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
                for number in range(COMMANDS):
                    await asyncio.sleep(SETTLED)
                    edits = _task_after_first(f"task-{number}")
                    tracer.start()
                    answer = await client.post("/api/v1/plans/nightly/edits", json={"edits": edits})
                    tracer.stop()
                    answer.raise_for_status()
            stored = (await load(fleet.store, "nightly")).plan
            assert (len(stored), stored.version) == (1 + COMMANDS, COMMANDS), f"not all edits were applied: {stored!r}"
            assert stored["first"].status == "running", f"the plan does not run: {stored!r}"
            await state.close()

    with _home(), tracer:
        asyncio.run(live())


def _quiet_orchestrator(fleet: Fleet) -> DurableOrchestrator:
    return DurableOrchestrator(fleet, local=2, heartbeat=QUIET, takeover_after=3 * QUIET)


def _task_after_first(task: str) -> list[dict[str, Any]]:
    return [
        {"op": "add_task", "task": {"id": task, "call": tasks.ENDLESS}},
        {"op": "add_dependency", "source": "first", "target": task},
    ]


WAYS = {
    way.name: way
    for way in (
        Way("next-task", "A task's end to the start of the next, in memory", next_task, CHAIN - 1),
        Way("next-task-editor", "The same with an editor (which changes nothing)", next_task_with_editor, CHAIN - 1),
        Way(
            "model-cycle",
            "A failed task to the start of the task that a scripted model adds, in memory",
            model_cycle,
            CHAIN - 1,
        ),
        Way("runs-create", "`asterism runs create`: `main()` to the id on standard output", create_run, COMMANDS),
        Way(
            "device", "The device's half: an idle device to the run's completion in the store", run_on_device, COMMANDS
        ),
        Way("durable-end", "A durable task's end to its journal record, given to the store", durable_end, CHAIN - 1),
        Way("durable-commit", "The same, and the store's commit of it (SQLite)", durable_commit, CHAIN - 1),
        Way("http-edit", "A client's edit of a plan that the server runs, to its answer", edit_over_http, COMMANDS),
        Way(
            "series-claim",
            "`asterism series claim --remote`: `main()` to the answer on standard output",
            claim_in_series,
            COMMANDS,
        ),
    )
}
