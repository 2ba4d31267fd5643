"""A killed ``series`` command: its git processes end too, and no lock stays on the remote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process_scenes import PATIENCE, alive, gone, soon
from tests.series.register_openers import bare_repository

COMMAND = "from asterism.cli.main import main; main()"
UNGUARDED = (
    "from asterism.execution import guard_main, process_guard; guard_main.enter = lambda *words: None; "
    "process_guard.Guard._order = lambda guard, *words: process_guard._fork(guard.pipe(), *words); "
    f"{COMMAND}"
)


class Push:
    """A claim whose push hangs in a hook of the remote, with the ref locked."""

    def __init__(self, folder: Path, program: str = COMMAND) -> None:
        self.remote, self.noted = folder / "remote.git", folder / "noted"
        address = bare_repository(self.remote)
        hook = self.remote / "hooks" / "reference-transaction"
        hook.parent.mkdir(exist_ok=True)
        notes = f"sleep 1000 & echo $$ $PPID $! > {self.noted}.new; mv {self.noted}.new {self.noted}; wait"
        hook.write_text(f'#!/bin/sh\nif [ "$1" = prepared ]; then {notes}; fi\n')
        hook.chmod(0o755)
        words = ["series", "claim", "RFC-093", "--issue", "1", "--remote", address]
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        soon(self.noted.exists)

    @property
    def children(self) -> list[int]:
        """The hook, the git that runs it, and what the hook has started."""
        return [int(word) for word in self.noted.read_text().split()]

    @property
    def locks(self) -> list[Path]:
        return list(self.remote.rglob("*.lock"))


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_git_ends_with_the_command_however_that_ends(tmp_path: Path, how: signal.Signals) -> None:
    push = Push(tmp_path)
    assert push.locks
    assert all(map(alive, push.children))
    push.process.send_signal(how)
    push.process.wait(PATIENCE)
    assert gone(push.children)
    assert push.locks == []


def test_without_the_guard_git_stays_behind(tmp_path: Path) -> None:
    """The ablation."""
    push = Push(tmp_path, UNGUARDED)
    push.process.kill()
    push.process.wait(PATIENCE)
    try:
        assert all(map(alive, push.children))
        assert push.locks
    finally:
        os.killpg(os.getpgid(push.children[0]), signal.SIGKILL)
    assert gone(push.children)
