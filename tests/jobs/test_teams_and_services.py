"""Jobs 28, 29, 31, 32 and 34: two people on one plan, a worker of one's own, a gate, a web service, a backup."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from asterism import Constellation, LocalDevice, Orchestrator, Task, TaskEvent
from tests.cli.server_thread import server_thread
from tests.cli.stored_plan_scenes import Trace
from tests.jobs.desk import Desk
from tests.process_scenes import PATIENCE, ended, soon

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


RELEASE = """\
tasks:
  build: {shell: echo built}
  staging: {shell: echo staged, after: build, approval: {by: ann}}
  deploy: {shell: echo deployed, after: staging, approval: {by: [ann, release-*], timeout: 4h, else: fail}}
  mail: {shell: echo mailed, after: deploy}
"""


def answered(url: str, token: str, **body: str) -> int:
    """The status of a POST, as the page sends it."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def waits(desk: Desk, name: str, approval: int) -> bool:
    return f"approval {approval}:" in desk.run("plan", "approvals", name).stdout


def test_31_a_person_opens_a_gate_from_the_terminal_and_from_the_page(desk: Desk) -> None:
    desk.write("release.yaml", RELEASE)
    desk.sh("store init")
    bob, ann = (desk.sh(f"token create --scope operate --for {name}").strip() for name in ("bob", "ann"))
    with desk.process("run", "release.yaml", "--id", "release", "--plain") as process:
        soon(lambda: waits(desk, "release", 1))
        assert "1 approval waits" in desk.sh("plan list")
        assert "approval 1 by ann" in desk.sh("plan why release")
        desk.sh("plan approve release 1 --by bob", code=64)
        assert "ann" in desk.said
        desk.sh("plan approve release 1 --by ann --reason 'staging is free'")
        soon(lambda: waits(desk, "release", 2))
        with server_thread(desk.url) as server:
            gate = f"{server.url}/api/v1/plans/release/approvals/2/approve"
            assert answered(gate, bob, author="ann") == 403  # the credential says who a person is
            assert answered(gate, ann, reason="the tests are green") == 200
            assert answered(gate, ann) == 404  # it is decided
        assert ended(process)[0] == 0
    story = desk.sh("plan story release")
    assert "by ann: staging is free" in story
    assert "by ann: the tests are green" in story


def test_31_a_gate_that_nobody_opens_is_told_again_and_fails_at_its_timeout(desk: Desk) -> None:
    desk.write("release.yaml", RELEASE.replace("timeout: 4h", "timeout: 4s").replace(", approval: {by: ann}", ""))
    desk.sh("store init")
    desk.sh("run release.yaml --id release --plain --approval-escalation 100ms", code=2)
    assert "deploy" in desk.sh("plan show release --failed")
    assert "nobody approved it in time" in desk.sh("plan story release deploy")
    told = [notice["message"] for notice in desk.json("notice", "list") if notice["kind"] == "approval"]
    assert len(told) == 2
    assert [" still " in message for message in told] == [False, True]
    assert all("waits for approval 1 by ann or release-*" in message for message in told)


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
