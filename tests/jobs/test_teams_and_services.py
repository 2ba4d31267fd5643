"""Jobs 28, 29, 32 and 34: two people on one plan, a worker of one's own, a web service, a backup while a plan runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

from asterism import Constellation, LocalDevice, Orchestrator, Task, TaskEvent
from tests.cli.stored_plan_scenes import Trace
from tests.jobs.desk import Desk
from tests.process_scenes import ended, soon

EDITOR = """\
from asterism import Task, edits


def add_mail(view, events):
    if any(event.task_id == "one" for event in events) and "mail" not in view:
        return [edits.AddTask(Task("mail", shell="echo mailed")), edits.AddDependency("three", "mail")]
"""


def test_28_an_editor_and_a_person_rewire_a_plan_while_it_runs(desk: Desk) -> None:
    desk.write("mend.py", EDITOR)
    trace = Trace(desk)
    with desk.process(*trace.words, "--editor", "mend:add_mail") as process:
        trace.pids.read_text()  # the second task runs
        soon(lambda: "mail" in desk.sh("plan show nightly"))
        add = """--add '{"id": "audit", "shell": "echo audited", "after": "two"}'"""
        desk.sh(f"plan edit nightly {add} --reason 'the auditor is here'")
        desk.sh("""plan edit nightly --add '{"id": "party", "shell": "echo hurray"}' --reason fun --dry-run""")
        desk.sh("""plan edit nightly --add '{"id": "cake", "shell": "echo sweets", "after": "two"}' --reason fun""")
        desk.sh("plan undo nightly --reason 'no cake at night'")
        trace.open()
        assert ended(process)[0] == 0
    done = {task["id"] for task in desk.json("plan", "show", "nightly")["tasks"]}
    assert done == {"one", "two", "three", "mail", "audit"}
    history = desk.sh("plan history nightly")
    for words in ("the auditor is here", "fun", "no cake at night", "ann", "add_mail"):
        assert words in history
    assert "sweets" in desk.sh("plan history nightly 3")
    assert "sweets" not in desk.sh("plan history nightly 4")


WORKER = """\
import asyncio
import sys
import time

from asterism import DeviceAgent, Fleet


def read(run, book):
    run.report(1, 2)
    while sys.argv[2] == "slow":
        time.sleep(0.01)
    return f"{book}, read by {sys.argv[2]} after {run.progress}"


async def main():
    async with await Fleet.open(sys.argv[1], by="ann") as fleet:
        await DeviceAgent(fleet, sys.argv[2], heartbeat=0.1, heartbeat_timeout=2, monitor_every=0.2).run()


if __name__ == "__main__":
    sys.modules["worker"] = sys.modules["__main__"]
    asyncio.run(main())
"""


def test_29_a_worker_of_ones_own_dies_and_another_takes_over(desk: Desk) -> None:
    """In Python. It joins, takes runs, reports and completes through the library."""
    desk.write("worker.py", WORKER)
    desk.sh("workflow add read --call worker:read --heartbeat 100ms --heartbeat-timeout 2s")

    def worker(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "worker.py", desk.url, name], cwd=desk.folder)

    with contextlib.ExitStack() as ends:
        slow = worker("slow")
        ends.callback(slow.kill)
        soon(lambda: "slow" in desk.sh("device list"))
        run = desk.sh("""runs create read --input '{"book": "Emma"}'""").strip()
        soon(lambda: desk.json("runs", "show", run)["progress"] is not None)
        os.kill(slow.pid, signal.SIGKILL)
        slow.wait()
        quick = worker("quick")
        ends.callback(quick.kill)
        desk.sh(f"runs wait {run}")
        quick.kill()
        quick.wait()
    record = desk.json("runs", "show", run)
    assert record["output"].startswith("Emma, read by quick after")
    assert (record["epoch"], record["losses"], record["failures"]) == (2, 1, 0)
    assert [before["device"] for before in record["previous_assignments"]] == ["slow"]


async def test_32_a_web_service_streams_events_and_cancels_with_its_client() -> None:
    """The handler of a request runs a plan, sends its events, and is cancelled when the client disconnects."""
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    sent: list[str] = []

    async def handle_request() -> None:
        plan = Constellation("request")
        plan.add(Task("quick", call=lambda: 1))
        plan.add(Task("endless", call=endless), after="quick")
        orchestrator = Orchestrator([LocalDevice("service")])
        async with orchestrator.events.listen(TaskEvent) as events, asyncio.TaskGroup() as group:
            group.create_task(orchestrator.run(plan))
            async for event in events:
                sent.append(f"{event.task_id} {event.kind}")

    request = asyncio.create_task(handle_request())
    await begun.wait()
    request.cancel()  # the client disconnects
    with contextlib.suppress(asyncio.CancelledError):
        await request
    assert stopped.is_set()
    assert any(line.startswith("quick") for line in sent)


def test_34_a_backup_while_a_plan_runs_is_restored_elsewhere_and_goes_on(desk: Desk) -> None:
    trace = Trace(desk)
    with desk.process(*trace.words) as process:
        trace.pids.read_text()
        desk.sh("store backup night.gz")
        os.kill(process.pid, signal.SIGKILL)
        ended(process)
    other = f"--store sqlite:///{desk.folder}/other.db"
    desk.sh(f"store restore night.gz {other}")
    desk.sh(f"store check {other}")
    assert "at rest" in desk.sh(f"plan list {other}") or "gone" in desk.said
    with desk.process("resume", "nightly", "--plain", *other.split()) as process:
        trace.pids.read_text()
        trace.open()
        code, said, _ = ended(process)
    assert code == 0, said
    assert trace.lines() == ["one", "two", "three"]  # what had completed was not done again
