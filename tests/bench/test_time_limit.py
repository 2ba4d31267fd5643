"""A part of the benchmarks that hangs is ended, with the processes that it started."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.time_limit import TimeLimitExceeded, time_limit

ROOT = Path(__file__).parents[2]

STUBBORN = """
import signal, subprocess
from bench.time_limit import time_limit

child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
with time_limit("stubborn", 600.0):
    try:
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.raise_signal(signal.SIGALRM)  # the grace has passed, too, and this still runs
        print("it goes on", flush=True)
"""


def test_whatever_blocks_is_ended() -> None:
    told = r"a sleeper took longer than its limit of 0\.01 s"
    with pytest.raises(TimeLimitExceeded, match=told), time_limit("a sleeper", 0.01):
        time.sleep(600)


def test_a_loop_that_waits_is_ended_with_what_it_started() -> None:
    ended: list[int] = []

    async def hang() -> None:
        process = await asyncio.create_subprocess_exec("sleep", "600")
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # its time is up
            await asyncio.sleep(600)
        finally:
            process.terminate()
            ended.append(await process.wait())

    with pytest.raises(TimeLimitExceeded), time_limit("a loop", 600.0):
        asyncio.run(hang())
    assert ended == [-15]


def test_what_is_in_time_is_not_disturbed_afterwards() -> None:
    with time_limit("a quick part", 600.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_part_that_does_not_even_end_then_is_killed_with_its_processes() -> None:
    ended = subprocess.run([sys.executable, "-c", STUBBORN], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "stubborn took longer than its limit of 600 s" in ended.stderr
    assert not _runs(int(ended.stdout))


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_part_that_fails_or_hangs_writes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unproved() -> str:
        raise AssertionError("one task too few")

    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setitem(command.PARTS, "unproved", unproved)
    monkeypatch.setitem(command.PAGES, "unproved", ({"unproved": unproved}, "# Head", "page.md"))
    with pytest.raises(AssertionError, match="one task too few"):
        command.main(["unproved"])
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(command, "TIME_LIMIT", 0.01)
    monkeypatch.setitem(command.PARTS, "unproved", lambda: time.sleep(600))
    with pytest.raises(TimeLimitExceeded, match="unproved took longer"):
        command.main(["unproved"])
    assert not list(tmp_path.iterdir())
