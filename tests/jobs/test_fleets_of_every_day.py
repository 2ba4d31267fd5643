"""Jobs 4, 7, 9, 10, 13, 15, 22, 30 and 33: several machines, plans of other processes, why nothing moves, backups."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.cli_scenes import heard, read_until
from tests.cli.command_scenes import pids_in
from tests.cli.server_thread import server_thread
from tests.cli.stored_plan_scenes import Trace
from tests.jobs.desk import ROOT, Desk
from tests.process_scenes import PATIENCE, ended, gone, soon

FILM = """\
tasks:
  render:
    foreach: [castle, moor]
    shell: echo "picture of $item on $ASTERISM_DEVICE" > "$item.txt"
    outputs: {picture: "{item}.txt"}
    device: {needs: [gpu]}
  pack:
    shell: cat *.txt; echo "packed on $ASTERISM_DEVICE"
    inputs: {pictures: {files_from: render.picture}}
    outputs: {album: "*.txt"}
    device: disk
"""


@pytest.mark.parametrize("jobs", [60, pytest.param(500, marks=pytest.mark.long)])
def test_04_many_shell_jobs_on_three_machines_and_only_the_failed_ones_again(desk: Desk, jobs: int) -> None:
    """The lines of examples/shell-jobs, by the commands of its README; the first ones in ``make test``."""
    lines = (ROOT / "examples/shell-jobs/jobs.txt").read_text().splitlines()
    assert len(lines) == 500
    desk.write("jobs.txt", "".join(f"{line}\n" for line in lines[:jobs]))
    failing = [f"{n:03}" for n in range(7, jobs, 50)]
    desk.sh("workflow add line --argv 'sh -c {line}'")
    with desk.beside(*(f"device join {name} --slots 2" for name in ("ant", "bee", "cat"))):
        desk.sh("runs create line --each jobs.txt --as line --batch nightly --label '{line}'")
        assert "Follow them with: asterism batch wait nightly" in desk.said
        said = desk.sh("batch wait nightly", code=1)
        assert f"100 % of {jobs} runs: {jobs - len(failing)} completed, {len(failing)} failed" in said
        for n in failing:
            assert f"missing/{n}.txt" in said
            desk.write(f"missing/{n}.txt", f"picture {n}\n")
        assert desk.sh("batch retry nightly --failed") == f"{len(failing)} runs retried.\n"
        assert f"100 % of {jobs} runs: {jobs} completed" in desk.sh("batch wait nightly")
    rows = list(csv.DictReader(io.StringIO(desk.sh("batch results nightly --csv"))))
    assert {row["device"] for row in rows} <= {"ant", "bee", "cat"}
    expected = [f"picture {n:03} is small" for n in range(1, jobs + 1)]
    assert sorted(row["output"].splitlines()[-1] for row in rows) == expected  # each once


def test_07_files_between_tasks_on_different_machines(desk: Desk) -> None:
    desk.write("film.yaml", FILM)
    desk.sh("store init")
    with desk.beside("device join desktop --can gpu", "device join disk"):
        soon(lambda: desk.sh("device list").count("ready") == 2)
        said = desk.sh("run film.yaml --id film --no-local --result pack")
    assert said.splitlines() == ["picture of castle on desktop", "picture of moor on desktop", "packed on disk"]
    assert "render[castle].picture" in desk.sh("plan files film render")
    desk.sh("plan get film pack album -o album")
    assert sorted(path.name for path in (desk.folder / "album").iterdir()) == ["castle.txt", "moor.txt"]


def test_09_and_10_pause_kill_resume_and_cancel_a_plan_of_another_process(desk: Desk) -> None:
    trace = Trace(desk)
    with desk.process(*trace.words) as process:
        trace.pids.read_text()
        assert "paused" in desk.sh("plan pause nightly --reason 'disk full'")
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process)[0] == -signal.SIGKILL
    assert "at rest" in desk.sh("plan list")
    with desk.process("resume", "nightly", "--plain") as process:
        trace.pids.read_text()
        trace.open()
        code, said, _ = ended(process)
    assert (code, trace.lines()) == (0, ["one", "two", "three"])
    assert "nightly ended: completed" in said
    with desk.process(*trace.words[:-1], "--id", "again", "--plain") as process:
        pids = pids_in(trace.pids)
        desk.sh("plan cancel again --reason 'wrong day'")
        assert ended(process)[0] == 130
        assert gone(pids)
    assert "cancelled" in desk.sh("plan list --name again")
    assert "wrong day" in desk.sh("plan story again")


def test_13_a_machine_joins_with_an_invitation_and_is_revoked(desk: Desk) -> None:
    desk.sh("workflow add hello --shell 'echo hello'")
    with server_thread(desk.url) as server:
        line = desk.sh(f"device invite --name lab-1 --server {server.url}").strip().splitlines()[-1]
        assert line.startswith("asterism device join lab-1")
        with desk.process(*line.split()[1:]) as device:
            run = desk.sh("runs create hello").strip()
            desk.sh(f"runs wait {run}")
            assert desk.sh(f"runs output {run}") == "hello\n"
            desk.sh("device revoke lab-1 --reason sold")
            later = desk.sh("runs create hello").strip()
            code, _, errors = ended(device)
    assert code != 0
    assert "revoked" in errors
    assert desk.json("runs", "show", later)["status"] == "created"


TRACED = """\
import contextlib

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from asterism.cli.main import commands

spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
with contextlib.suppress(SystemExit):
    commands(["run", "hello.yaml", "--id", "hello", "--plain", "--result", "hello"])
[trace_id] = {span.context.trace_id for span in spans.get_finished_spans()}
print(sorted(span.name for span in spans.get_finished_spans() if span.name.split()[0] in ("plan", "task")))
print(format(trace_id, "032x"))
"""


def test_15_metrics_and_traces(desk: Desk) -> None:
    """A scrape over HTTP, and one trace of the plan, its task and the command."""
    desk.write("hello.yaml", "tasks:\n  hello: {shell: echo $TRACEPARENT}\n")
    command = [sys.executable, "-c", TRACED]
    done = subprocess.run(command, env={**os.environ, **desk.env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *_, parent, names, trace_id = done.stdout.splitlines()
    assert names == "['plan hello', 'task hello']"
    assert parent.split("-")[1] == trace_id
    with desk.process("monitor", "hub", "--listen", "127.0.0.1:0") as monitor:
        [*_, line] = heard(monitor, "metrics at ")
        with urllib.request.urlopen(line.split("metrics at ")[1].strip(), timeout=PATIENCE) as answer:
            metrics = answer.read().decode()
    assert metrics.rstrip().endswith("# EOF")
    assert 'asterism_plans{state="completed"} 1' in metrics


def test_22_backup_restore_and_check(desk: Desk) -> None:
    desk.write("film.yaml", FILM.replace("device: {needs: [gpu]}", "").replace("device: disk", ""))
    desk.sh("run film.yaml --id film --plain")
    desk.sh("store backup nightly.gz")
    other = f"--store sqlite:///{desk.folder}/other.db"
    desk.sh(f"store restore nightly.gz {other}")
    desk.sh(f"store check {other}")
    desk.sh(f"plan get film pack album -o album {other}")
    assert (desk.folder / "album/castle.txt").read_text().startswith("picture of castle")
    [damaged, *_] = [path for path in Path(f"{desk.folder}/other.db.files").rglob("*") if path.is_file()]
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    desk.sh(f"store check {other}", code=64)
    assert damaged.name in desk.said


CAMERA = """\
tasks:
  scan:
    shell: echo "castle, seen by $ASTERISM_DEVICE" > scan.txt
    outputs: {scan: scan.txt}
    device: {needs: [camera]}
  render:
    shell: 'echo $ASTERISM_DEVICE > FOLDER/begun; test $ASTERISM_DEVICE = quick || sleep 600; cat scan.txt > film.txt'
    inputs: {scan: {files_from: scan.scan}}
    outputs: {film: film.txt}
    device: {needs: [gpu]}
  burn:
    shell: 'cat film.txt; echo "burnt by $ASTERISM_DEVICE"'
    inputs: {film: {files_from: render.film}}
    device: {needs: [disk]}
"""


def test_30_one_plan_on_three_machines_and_one_is_killed(desk: Desk) -> None:
    """Each can do something else, and files go from one to the next; another one takes over what a dead one did."""
    os.mkfifo(desk.folder / "begun")
    desk.write("film.yaml", CAMERA.replace("FOLDER", str(desk.folder)))
    desk.sh("store init")
    join = "--every 200ms --heartbeat 200ms"
    machines = {"eye": "camera", "shelf": "disk", "slow": "gpu --heartbeat-timeout 5s"}
    with desk.beside(*(f"device join {name} --can {can} {join}" for name, can in machines.items())) as [*_, slow]:
        soon(lambda: desk.sh("device list").count("ready") == 3)
        with desk.process("run", "film.yaml", "--id", "film", "--no-local", "--plain", "--result", "burn") as plan:
            assert (desk.folder / "begun").read_text() == "slow\n"
            slow.kill()
            slow.wait()
            with desk.beside(f"device join quick --can gpu {join}"):
                assert (desk.folder / "begun").read_text() == "quick\n"
                code, said, errors = ended(plan)
    assert code == 0, errors
    assert said.splitlines() == ["castle, seen by eye", "burnt by shelf"]
    run = next(run for run in desk.json("runs", "list") if "render" in run["shown_label"])
    record = desk.json("runs", "show", run["id"])
    assert (record["device"], record["epoch"], record["losses"], record["failures"]) == ("quick", 2, 1, 0)
    [before] = record["previous_assignments"]
    assert (before["device"], before["reason"]) == ("slow", "timeout")
    silent, _ = before["detail"].removeprefix("slow was not heard of for ").split()
    assert int(silent) < record["heartbeat_timeout"] == 90  # that of the device counted


HANGS = """\
tasks:
  prepare: {shell: echo ready}
  train: {foreach: [big, small], shell: echo "$item", after: prepare, device: {needs: [gpu]}}
  report: {shell: echo report, after: train}
  paid: {wait_for: {event: payment}, after: prepare}
  ship: {shell: echo shipped, after: paid}
  load: {shell: echo loaded, after: prepare, uses: {warehouse: 1}}
  index: {shell: echo indexed, after: load}
"""


def test_33_why_a_plan_does_not_go_on(desk: Desk) -> None:
    """For three reasons at once. Each is named with the tasks that it holds, and is gone once somebody acts on it."""
    desk.write("hangs.yaml", HANGS)
    desk.sh("limit set warehouse 0")
    with desk.process("run", "hangs.yaml", "--id", "hangs", "--plain", "--local=2") as process:
        read_until(process, "prepare completed")
        soon(lambda: len(desk.json("plan", "why", "hangs")["causes"]) == 3)
        why = desk.sh("plan why hangs")
        assert "train[big], train[small], and 2 tasks behind: it needs a device with 'gpu'" in why
        assert "asterism device join NAME --can gpu" in why
        assert "paid, and 1 task behind: it waits for event 'payment'" in why
        assert "load, and 1 task behind: limit 'warehouse' is 0" in why
        assert "nothing moves: train[big]" in desk.sh("plan show hangs")
        desk.sh("limit set warehouse 1")
        desk.sh("event send payment")
        soon(lambda: len(desk.json("plan", "why", "hangs")["causes"]) == 1)
        with desk.beside("device join lab --can gpu"):
            assert ended(process)[0] == 0
