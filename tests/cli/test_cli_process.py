"""`asterism run` as a process: signals, pipes, and its child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_scenes import ASTERISM, heard, read_until, started, write
from tests.process_scenes import PATIENCE, alive, ended, gone

OBEDIENT = "shell: 'sleep 1000 & echo $$ $! > {pids}; wait'"
PATIENT = """
from asterism import LocalDevice, Orchestrator
for kind in (LocalDevice, Orchestrator):
    kind.__init__.__kwdefaults__["grace"] = 1e6
"""
"""A process that waits for this task to stop waits forever."""
STUBBORN = "shell: \"trap '' TERM; sleep 1000 & echo $$ $! > {pids}; while :; do wait; done\""


def pipe(path: Path) -> Path:
    """A place where a task can leave the ids of its processes, and the reader waits until they are there."""
    os.mkfifo(path)
    return path


def pids_in(path: Path) -> list[int]:
    pids = [int(word) for word in path.read_text().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    return pids


@pytest.mark.long
def test_a_run_prints_plain_lines_without_a_terminal(tmp_path: Path) -> None:
    path = write(tmp_path, "tasks:\n  a: {shell: echo 1}\n")
    with started("run", path, command=ASTERISM) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert errors == ""
    assert "\x1b" not in output
    assert [line[10:].split(" after ")[0] for line in output.splitlines()[:4]] == [
        "plan started with 1 task",
        f"a started on {os.uname().nodename}",
        "a completed",
        "plan ended: completed, version 0",
    ]


def test_a_letter_that_the_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    path = write(tmp_path, "tasks:\n  größe: {shell: echo 1}\n")
    done = subprocess.run(
        [*ASTERISM, "show", path],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        encoding="latin-1",
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u25cb größe" in done.stdout


def test_ctrl_c_asks_everything_to_stop_and_reports(tmp_path: Path) -> None:
    child, page = pipe(tmp_path / "pids"), tmp_path / "report.html"
    path = write(tmp_path, f"tasks:\n  a: {{{OBEDIENT.format(pids=child)}}}\n  b: {{shell: x, after: a}}\n")
    with started("run", path, "--report", str(page)) as process:
        read_until(process, "a started on")
        pids = pids_in(child)
        process.send_signal(signal.SIGINT)
        code, output, errors = ended(process)
    assert code == 130
    assert "Cancelling; press Ctrl-C again to stop without waiting." in errors
    assert "plan is being cancelled" in output
    assert "b cancelled: the constellation was cancelled" in output
    assert gone(pids)
    assert "cancelled" in page.read_text("utf-8")


@pytest.mark.long
def test_a_second_ctrl_c_does_not_wait_for_a_task_that_will_not_stop(tmp_path: Path) -> None:
    child = pipe(tmp_path / "pids")
    path = write(tmp_path, f"tasks:\n  a: {{{STUBBORN.format(pids=child)}}}\n")
    with started("run", path, "--json", command=[sys.executable, "-c", PATIENT + ASTERISM[-1]]) as process:
        pids = pids_in(child)
        process.send_signal(signal.SIGINT)
        heard(process, "is being cancelled")
        process.send_signal(signal.SIGINT)
        code, output, errors = ended(process)
    assert code == 130
    assert "Traceback" not in errors
    told = json.loads(output)
    assert (told["state"], told["exit_code"]) == ("cancelled", 130)
    assert gone(pids)


def test_sigterm_is_heard_like_ctrl_c(tmp_path: Path) -> None:
    child = pipe(tmp_path / "pids")
    path = write(tmp_path, f"tasks:\n  a: {{{OBEDIENT.format(pids=child)}}}\n")
    with started("run", path) as process:
        pids = pids_in(child)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert gone(pids)


def test_children_do_not_outlive_a_run_that_is_killed(tmp_path: Path) -> None:
    pipes = [pipe(tmp_path / name) for name in "ab"]
    path = write(
        tmp_path,
        "devices: {laptop: {slots: 2}}\n"
        f"tasks:\n  a: {{{OBEDIENT.format(pids=pipes[0])}}}\n  b: {{{STUBBORN.format(pids=pipes[1])}}}\n",
    )
    with started("run", path) as process:
        pids = [pid for path_of_pids in pipes for pid in pids_in(path_of_pids)]
        process.kill()
        process.wait(PATIENCE)
        assert gone(pids)


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    os.mkfifo(gate)
    path = write(
        tmp_path, f"tasks:\n  a: {{shell: 'cat {gate}'}}\n  b: {{shell: 'echo x > {trace}; exit 3', after: a}}\n"
    )
    with started("run", path) as process:
        read_until(process, "a started on")
        assert process.stdout is not None
        process.stdout.close()
        gate.write_text("go on\n")
        assert process.wait(PATIENCE) == 2
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert trace.exists()


def test_a_drawing_whose_reader_goes_away_is_no_error(tmp_path: Path) -> None:
    tasks = "".join(f"  a{n}: {{shell: echo {n}, description: '{'x' * 50}'}}\n" for n in range(3000))
    path = write(tmp_path, f"tasks:\n{tasks}")
    with started("show", path, "--mermaid") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_the_installed_command_is_this_one(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("asterism")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert result.stdout.startswith("asterism ")
