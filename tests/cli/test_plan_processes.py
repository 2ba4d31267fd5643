"""Plans in a store that processes run: stopped, killed, resumed, taken over, and edited meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.task import Task
from asterism.durable.plan_actor import NotAnswered, edit_plan
from asterism.fleet.fleet import Fleet
from tests.cli.cli_scenes import heard, read_until, write
from tests.cli.command_scenes import Scene, pids_in
from tests.cli.stored_plan_scenes import Trace, keeping, owned
from tests.forked_commands import ForkedCommand
from tests.process_scenes import PATIENCE, ended, gone

QUICK = ("--takeover-after", "5")  # longer than a busy machine holds up one that lives


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)  # where tasks leave their traces
    return Scene(tmp_path)


def resumed(scene: Scene, *words: str) -> dict[str, Any]:
    with scene.process("resume", "nightly", "--json", *words) as process:
        code, output, errors = ended(process)
    assert code == 0, errors
    told: dict[str, Any] = json.loads(output)
    return told


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_stops_a_plan_and_resume_continues_it(scene: Scene, number: signal.Signals) -> None:
    trace = Trace(scene)
    with scene.process(*trace.words) as process:
        pids = pids_in(trace.pids)
        process.send_signal(number)
        code, output, errors = ended(process)
    assert code == 130
    assert f"Stopped 'nightly'. Resume it with: asterism resume nightly --store {scene.url}\n" in errors
    assert "failed" not in output
    assert gone(pids)
    told = scene.json("plan", "list")[0]
    assert (told["state"], told["owner"], told["counts"]["queued"]) == ("at_rest", None, 1)
    assert "nightly is at rest, version 0: 1 of 3 tasks done" in scene.ok("plan", "show", "nightly")
    with scene.process("resume", "nightly") as process:
        trace.pids.read_text()
        trace.open()
        code, output, errors = ended(process)
    assert code == 0, errors
    assert "one started" not in output
    assert trace.lines() == ["one", "two", "three"]


def test_a_second_signal_leaves_at_once(scene: Scene) -> None:
    trace = Trace(scene, stubborn=True)
    with scene.process(*trace.words) as process:
        pids = pids_in(trace.pids)
        process.send_signal(signal.SIGINT)
        heard(process, "Stopping; press Ctrl-C again to stop at once.")
        process.send_signal(signal.SIGINT)
        code, _, errors = ended(process)
    assert code == 130
    assert "Stopped 'nightly'. Resume it with: asterism resume nightly" in errors
    assert "Traceback" not in errors
    assert gone(pids)
    assert scene.json("plan", "list")[0]["state"] == "at_rest"


def test_after_a_sudden_death_resume_does_nothing_again_that_had_finished(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process(*trace.words) as process:
        pids = pids_in(trace.pids)
        process.kill()
        process.wait(PATIENCE)
        assert gone(pids)
    with scene.process("resume", "nightly", "--json") as process:
        trace.pids.read_text()
        trace.open()
        code, output, errors = ended(process)
    assert code == 0, errors
    assert json.loads(output)["state"] == "completed"
    assert trace.lines() == ["one", "two", "three"]


class Editors:
    """Two clients that edit a plan, each 50 ms after its last edit. ``added`` are the tasks of acknowledged edits."""

    def __init__(self, url: str) -> None:
        self._url, self.added, self.busy, self._over = url, set[str](), Event(), Event()

    async def _edit(self, client: int) -> None:
        async with await Fleet.open(self._url, by=f"client {client}") as fleet:
            for number in itertools.count():
                if self._over.is_set():
                    return
                name = f"c{client}-{number}"
                with contextlib.suppress(NotAnswered):  # while the owner that was killed still counts as alive
                    await edit_plan(fleet, "nightly", EditBatch((AddTask(Task(name, shell="true")),), fleet.by))
                    self.added.add(name)
                if len(self.added) > 10:
                    self.busy.set()
                await asyncio.sleep(0.05)

    async def _edit_together(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for client in range(2):
                clients.create_task(self._edit(client))

    def stop(self) -> None:
        self._over.set()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(asyncio.run, self._edit_together())
            try:
                assert self.busy.wait(PATIENCE)
                yield
            finally:
                self.stop()
            job.result(PATIENCE)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_after_a_sudden_death_a_plan_is_resumed_while_clients_edit_it(
    scene: Scene, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "postgres":
        scene.url = scene.env["ASTERISM_STORE"] = request.getfixturevalue("postgres_url")
    trace = Trace(scene)
    with scene.process(*trace.words, *QUICK) as process:
        pids = pids_in(trace.pids)
        process.kill()
        process.wait(PATIENCE)
        assert gone(pids)
    editors = Editors(scene.url)
    with editors.at_work(), scene.process("resume", "nightly", "--json") as process:
        trace.pids.read_text()
        editors.stop()
        trace.open()
        code, output, errors = ended(process)
    assert code == 0, errors
    assert set(json.loads(output)["tasks"]) == {"one", "two", "three", *editors.added}
    assert trace.lines() == ["one", "two", "three"]


def test_a_standby_takes_over_when_the_first_is_killed(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process(*trace.words, *QUICK) as first:
        pids = pids_in(trace.pids)
        with scene.process("plan", "standby", "nightly", *QUICK) as second:
            standing_by = heard(second, "Standing by: ")[-1]
            assert re.search(r"Standing by: nightly@.+ runs 'nightly'\.", standing_by)
            first.kill()
            first.wait(PATIENCE)
            assert gone(pids)
            read_until(second, "nightly resumed")
            trace.pids.read_text()
            trace.open()
            code, output, errors = ended(second)
    assert code == 0, errors
    assert "three completed" in output
    assert trace.lines() == ["one", "two", "three"]


def test_a_standby_stops_on_a_signal(scene: Scene) -> None:
    owned(keeping(scene))
    with scene.process("plan", "standby", "nightly") as process:
        heard(process, "Standing by: nightly@elsewhere runs 'nightly'.")
        process.send_signal(signal.SIGINT)
        code, output, errors = ended(process)
    assert (code, output) == (130, "")
    assert "Stopped standing by for 'nightly'." in errors


def test_a_constellation_that_runs_here_is_refused_to_others_and_paused_from_elsewhere(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process(*trace.words) as process:
        trace.pids.read_text()
        second = scene.run("resume", "nightly")
        assert second.exit_code == 64
        assert (
            "is run by another process on this machine; to take over when it ends, use: asterism plan standby nightly"
            in second.stderr
        )
        scene.ok("plan", "pause", "nightly", "--reason", "lunch")
        read_until(process, "nightly paused")
        trace.open()
        read_until(process, "two completed")
        assert "Plan 'nightly' is resumed; nightly@" in scene.ok("resume", "nightly")
        read_until(process, "three completed")
        code, _, errors = ended(process)
    assert code == 0, errors
    assert trace.lines() == ["one", "two", "three"]


@pytest.mark.long
def test_tasks_on_other_devices_continue_while_no_process_runs_the_plan(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process("device", "join", "kitchen-pc") as device:
        heard(device, "joined as kitchen-pc")
        with scene.process(*trace.words) as process:
            trace.pids.read_text()
            process.send_signal(signal.SIGINT)
            code, _, errors = ended(process)
        assert code == 130
        assert "No device is joined" not in errors
        trace.open()
        heard(device, "finished run")
        heard(device, "finished run")
        assert trace.lines() == ["one", "two"]
        assert resumed(scene)["state"] == "completed"
    assert trace.lines() == ["one", "two", "three"]
    assert "on kitchen-pc" in scene.ok("plan", "story", "nightly", "three")


def test_a_task_that_an_edit_cancels_at_rest_is_stopped_where_it_runs(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process("device", "join", "kitchen-pc") as device:
        heard(device, "joined as kitchen-pc")
        with scene.process(*trace.words) as process:
            pids = pids_in(trace.pids)
            process.send_signal(signal.SIGINT)
            assert ended(process)[0] == 130
        batch = {"edits": [{"op": "cancel_task", "task_id": "two", "reason": "not tonight"}]}
        told = scene.run("plan", "edit", "nightly", "--edits", "-", stdin=json.dumps(batch))
        assert told.stdout.splitlines() == [
            "cancel task 'two': not tonight",
            "stop task 'two'",
            "Plan 'nightly' changed: version 0 -> 1.",
            f"No process runs the plan. Resume it with: asterism resume nightly --store {scene.url}",
        ]
        heard(device, "stopped run")
        assert gone(pids)
    assert trace.lines() == ["one"]


def test_an_editor_and_a_report_and_a_named_capability_work_as_without_a_store(scene: Scene) -> None:
    (scene.folder / "helping.py").write_text(
        "from asterism import Task\nfrom asterism.core.plan.edits import AddTask\n"
        "async def editor(view, events):\n"
        "    if 'repair' not in view:\n"
        "        return [AddTask(Task('repair', shell='echo fixed'))]\n"
    )
    tasks = "devices: {box: {can: [gpu]}}\ntasks:\n  a: {shell: exit 3, device: {needs: [gpu]}}\n"
    path = write(scene.folder, tasks)
    words = ["--editor", "helping:editor", "--report", "report.html", "--json", "--local=1", "--lock-policy", "global"]
    with scene.process("run", path, "--store", scene.url, *words) as process:
        code, output, errors = ended(process)
    assert code == 2, errors
    told = json.loads(output)
    assert told["tasks"]["repair"]["value"] == "fixed"
    assert told["summary"]["edits_accepted"] == 1
    assert "repair" in (scene.folder / "report.html").read_text("utf-8")


@pytest.mark.long
def test_the_live_view_shows_a_constellation_from_taking_it_up_to_leaving_it(scene: Scene) -> None:
    """In a terminal, where it is drawn before the first step and after the last."""
    trace = Trace(scene)
    for words in (trace.words[:-1], ("resume", "nightly")):
        leader, follower = os.openpty()
        around = {**os.environ, **scene.env, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        process = ForkedCommand([*words], stdout=follower, stderr=subprocess.PIPE, cwd=scene.folder, env=around)
        os.close(follower)
        trace.pids.read_text()
        process.send_signal(signal.SIGINT)
        drawn = b""
        while chunk := _read(leader):
            drawn += chunk
        _, errors = process.communicate(timeout=PATIENCE)
        os.close(leader)
        assert process.returncode == 130, errors
        assert "Stopped 'nightly'." in errors
        assert "Traceback" not in errors
        assert b"nightly" in drawn
        assert b"failed" not in drawn.lower().replace(b"0 failed", b"")


def _read(leader: int) -> bytes:
    """What a terminal shows; nothing once nobody writes to it any more."""
    try:
        return os.read(leader, 65_536)
    except OSError:
        return b""


def test_a_plan_whose_process_was_killed_is_known_to_be_at_rest_and_edited_at_once(scene: Scene) -> None:
    """Long before its heartbeat times out: its lock is free."""
    trace = Trace(scene)
    with scene.process(*trace.words, "--takeover-after", "1h") as process:
        pids = pids_in(trace.pids)
        process.kill()
        process.wait(PATIENCE)
        assert gone(pids)
    listed = scene.ok("plan", "list").splitlines()[1]
    assert re.search(r"^nightly  at rest +1/3  nightly@.+ \(gone\)", listed)
    shown = scene.ok("plan", "show", "nightly")
    assert re.search(r"^no process runs it: nightly@.+ is gone, and was last heard .+ ago$", shown, re.M)
    assert "1 queued" in shown
    assert (scene.json("plan", "show", "nightly")["orphaned"]) == ["two"]
    told = scene.json("plan", "edit", "nightly", "--remove", "three")
    assert (told["accepted"], told["applied_by"]) == (True, None)


def test_a_plan_that_a_process_runs_is_edited_undone_paused_and_explained_from_elsewhere(scene: Scene) -> None:
    trace = Trace(scene)
    four = json.dumps({"id": "four", "shell": f"echo four >> {trace.log}", "after": "three"})
    with scene.process(*trace.words) as process:
        pids_in(trace.pids)
        told = scene.ok("plan", "edit", "nightly", "--add", four, "--reason", "they asked")
        assert re.search(r"changed: version 0 -> 1\. Applied by nightly@.+, which runs it\.$", told)
        assert "Applied by nightly@" in scene.ok("plan", "undo", "nightly")
        assert "Applied by nightly@" in scene.ok("plan", "edit", "nightly", "--add", four)
        bad = scene.run("plan", "edit", "nightly", "--remove", "two", "--remove", "fly")
        assert bad.exit_code == 1
        assert "[immutable]" in bad.stderr
        assert "[unknown_task]" in bad.stderr
        assert "Answered by nightly@" in scene.ok("plan", "why", "nightly", "four")
        assert ", which runs it, starts no more tasks." in scene.ok("plan", "pause", "nightly")
        assert "is resumed; nightly@" in scene.ok("resume", "nightly")
        trace.open()
        code, output, errors = ended(process)
    assert code == 0, errors
    assert trace.lines() == ["one", "two", "three", "four"]
    assert "edit by ann applied: add task 'four'" in output
    late = scene.run("plan", "edit", "nightly", "--remove", "four")
    assert late.exit_code == 1
    assert "plan 'nightly' has ended (completed)" in late.stderr
