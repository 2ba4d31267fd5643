"""Sudden death of a device: its processes are killed at its next start at the latest, and no others are touched. With
real processes, killed in earnest."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.fleet.device import process_records
from asterism.fleet.device.membership import DeviceLock, lock_holder
from asterism.fleet.device.process_records import (
    ProcessRecords,
    boot_id,
    is_same_process,
    kill_orphans,
    machine_id,
    read_stat,
    start_time,
    state_directory,
    store_mark,
)
from tests.fleet.device.device_scenes import lines
from tests.process_scenes import alive, soon

KITCHEN, LAPTOP = f"kitchen-{os.getpid()}", f"laptop-{os.getpid()}"
"""Unique names: the whole machine is searched for orphans, and others may be running these tests too."""
STORE = "sqlite:///fleet.db"


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may execute tests of this file at the same time, and all processes of the machine are searched."""
    monkeypatch.setattr(sys.modules[__name__], "STORE", f"sqlite:///fleet-{os.getpid()}.db")


NOWHERE = Path("/no/such/proc")
"""A machine without /proc, as far as the tests can make it one."""

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here")


class Agent:
    """A stand-in for a device's process, which executes one shell line and writes down its own number and its
    guard's."""

    def __init__(self, folder: Path, line: str, **options: Any) -> None:
        count = len(list(folder.iterdir()))
        self.noted, said = folder / f"noted-{count}", folder / f"said-{count}"
        options = {"device": KITCHEN, "session": "s1", "store": STORE, "setting": "", **options}
        setting = options.pop("setting")
        program = f"""
        import asyncio, json, os, sys
        from pathlib import Path
        from asterism.core.run.run import Run
        from asterism.core.run.work import Work
        from asterism.fleet.device.executor import DeviceExecutor, RunWork
        from asterism.fleet.device.process_records import ProcessRecords
        from asterism.fleet.policy.device_policy import DevicePolicy

        async def main():
            made = DeviceExecutor(DevicePolicy.open(), grace=0.1, **{options!r})
            {setting}
            terms = Work(shell={line!r}, env={{"NOTED": {str(self.noted)!r}}})
            work = RunWork(Run("r1", "work", 1, 0.0, "test", terms, epoch=1), {{}}, print, print)
            job = asyncio.create_task(made.execute(work))
            while not made._commands._guard._groups:  # a guard that is killed earlier takes the command with it
                await asyncio.sleep(0)
            Path({str(said)!r}).write_text(f"{{made._commands._guard._process.pid}}\\n")
            await job
        asyncio.run(main())
        """
        self.process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.DEVNULL)
        self.guard = int(soon(lambda: lines(said))[0])

    def numbers(self, count: int) -> list[int]:
        """The process numbers that the shell line has written."""
        return [int(line) for line in soon(lambda: lines(self.noted, count))]

    def kill(self) -> None:
        """Both at once, as far as that can be: the guard first, or it would do its work."""
        os.kill(self.guard, signal.SIGKILL)
        soon(lambda: not alive(self.guard))
        self.process.kill()
        self.process.wait()

    def clean(self) -> None:
        self.process.kill()
        self.process.wait()
        for line in lines(self.noted, 0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []
    (tmp_path / "agents").mkdir()

    def start(line: str, **options: Any) -> Agent:
        made.append(Agent(tmp_path / "agents", line, **options))
        return made[-1]

    yield start
    for started in made:
        started.clean()


def gone(numbers: list[int]) -> bool:
    return not any(map(alive, numbers))


TREE = (
    "echo $$ >> $NOTED; sleep 1000 & echo $! >> $NOTED; "
    "setsid sh -c 'echo $$ >> $NOTED; sleep 1000 & echo $! >> $NOTED; wait' & wait"
)
"""A shell, a child in its group, and two that have left it."""

READY = (
    "guard = made._commands._guard; guard.pipe(); [guard._read_lines(1.0) for _ in iter(lambda: guard._ready, True)]"
)
"""The guard starts the command; otherwise it is being started itself, and the agent forks."""

WITHOUT_DEATH_SIGNAL = "made._records._dies_with_agent = False"


# -- death -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["", pytest.param(READY, marks=linux)], ids=["forked", "cloned"])
def test_if_only_the_agent_dies_its_guard_ends_the_group_at_once(agent: Callable[..., Agent], setting: str) -> None:
    started = agent("trap '' TERM; echo $$ >> $NOTED; sleep 1000 & echo $! >> $NOTED; wait", setting=setting)
    numbers = started.numbers(2)
    started.process.kill()
    started.process.wait()
    soon(lambda: gone(numbers))


@linux
@pytest.mark.parametrize("setting", ["", READY], ids=["forked", "cloned"])
def test_if_both_die_the_command_itself_dies_with_them(agent: Callable[..., Agent], setting: str) -> None:
    first = agent("echo $$ >> $NOTED; exec sleep 1000", setting=setting)
    (leader,) = first.numbers(1)
    first.kill()
    soon(lambda: not alive(leader))


@linux
@pytest.mark.parametrize("setting", ["", READY], ids=["forked", "cloned"])
@pytest.mark.long
def test_without_the_death_signal_it_would_go_on(agent: Callable[..., Agent], setting: str) -> None:
    """The ablation."""
    first = agent("echo $$ >> $NOTED; exec sleep 1000", setting=f"{WITHOUT_DEATH_SIGNAL}; {setting}")
    (leader,) = first.numbers(1)
    first.kill()
    assert alive(leader)


@linux
def test_orphans_are_killed_at_the_next_start_even_outside_their_group(agent: Callable[..., Agent]) -> None:
    first = agent(TREE)
    leader, child, other, grandchild = first.numbers(4)
    first.kill()
    soon(lambda: not alive(leader))
    assert all(map(alive, [child, other, grandchild]))
    assert set(kill_orphans(KITCHEN, STORE, "s2")) == {leader, other}  # the groups are called by their leaders
    soon(lambda: gone([child, other, grandchild]))
    assert kill_orphans(KITCHEN, STORE, "s2") == []


@linux
def test_an_orphan_without_environment_is_found_by_its_group(agent: Callable[..., Agent]) -> None:
    first = agent("echo $$ >> $NOTED; exec env -i sleep 1000", setting=WITHOUT_DEATH_SIGNAL)
    (leader,) = first.numbers(1)
    soon(lambda: b"ASTERISM" not in Path(f"/proc/{leader}/environ").read_bytes())
    first.kill()
    assert alive(leader)
    assert kill_orphans(KITCHEN, STORE, "s2") == [leader]
    soon(lambda: not alive(leader))


def test_where_there_is_no_proc_the_file_of_groups_is_enough(agent: Callable[..., Agent], state: Path) -> None:
    setting = (
        f"made._records = ProcessRecords({KITCHEN!r}, 's1', {STORE!r}, Path({str(NOWHERE)!r})); {WITHOUT_DEATH_SIGNAL}"
    )
    first = agent("echo $$ >> $NOTED; sleep 1000 & echo $! >> $NOTED; wait", setting=setting)
    numbers = first.numbers(2)
    assert kill_orphans(KITCHEN, STORE, "s2", proc=NOWHERE) == []  # its agent is alive
    first.kill()
    assert all(map(alive, numbers))
    assert kill_orphans(KITCHEN, STORE, "s2", proc=NOWHERE) == numbers[:1]
    soon(lambda: gone(numbers))
    assert not list((state / "lives").iterdir())


def test_nothing_is_left_of_a_dead_life(agent: Callable[..., Agent], state: Path) -> None:
    first = agent("echo $$ >> $NOTED; echo 3 > $ASTERISM_PROGRESS; exec sleep 1000")
    first.numbers(1)
    assert [entry.name for entry in (state / "lives").iterdir()] == ["s1"]
    first.kill()
    kill_orphans(KITCHEN, STORE, "s2")
    assert not list((state / "lives").iterdir())


# -- processes that are never touched ----------------------------------------------------------------------------------


@linux
def test_processes_of_others_are_left_alone(agent: Callable[..., Agent]) -> None:
    line = "echo $$ >> $NOTED; exec sleep 1000"
    others = {
        "an agent that is alive": agent(line, session="s1"),
        "another device": agent(line, device=LAPTOP, setting=WITHOUT_DEATH_SIGNAL),
        "another store": agent(line, store="sqlite:///other.db", session="s3", setting=WITHOUT_DEATH_SIGNAL),
        "this session": agent(line, session="s2", setting=WITHOUT_DEATH_SIGNAL),
    }
    numbers = {who: other.numbers(1)[0] for who, other in others.items()}
    for who in ("another device", "another store", "this session"):
        others[who].kill()
    assert kill_orphans(KITCHEN, STORE, "s2") == []
    assert all(map(alive, numbers.values())), {who: alive(number) for who, number in numbers.items()}
    assert kill_orphans(LAPTOP, STORE, "s2") == [numbers["another device"]]


@linux
def test_processes_of_another_user_are_left_alone(agent: Callable[..., Agent], state: Path) -> None:
    first = agent("echo $$ >> $NOTED; exec sleep 1000", setting=WITHOUT_DEATH_SIGNAL)
    (leader,) = first.numbers(1)
    first.kill()
    (state / "lives" / "s1" / "groups").unlink()  # the file of another user is in another directory
    assert kill_orphans(KITCHEN, STORE, "s2", user=os.getuid() + 1) == []
    assert alive(leader)
    assert kill_orphans(KITCHEN, STORE, "s2") == [leader]


@linux
def test_a_store_that_was_not_known_is_no_protection(agent: Callable[..., Agent]) -> None:
    """Its agent is dead."""
    first = agent("echo $$ >> $NOTED; exec sleep 1000", store="", setting=WITHOUT_DEATH_SIGNAL)
    (leader,) = first.numbers(1)
    assert kill_orphans(KITCHEN, STORE, "s2") == []
    first.kill()
    assert kill_orphans(KITCHEN, STORE, "s2") == [leader]


def spares_a_stranger(state: Path, said: Callable[[int], tuple[dict[str, Any], Any]]) -> None:
    """Asserts that a process whose number stands in the file of a life is left alone. ``said`` is what that file says
    of the life and of when the process began, given its number."""
    life = ProcessRecords(KITCHEN, "s1", STORE)
    life.make_directory()
    groups = state / "lives" / "s1" / "groups"
    stranger = subprocess.Popen(["sleep", "1000"], process_group=0)
    try:
        of_the_life, since = said(stranger.pid)
        whose = {**json.loads(groups.read_text()), **of_the_life}
        groups.write_text(f"{json.dumps(whose)}\n+1 {stranger.pid} {since}\n")
        assert kill_orphans(KITCHEN, STORE, "s2") == []
        assert stranger.poll() is None
        assert not groups.exists()
    finally:
        stranger.kill()
        stranger.wait()
        life.close()


@linux
def test_a_number_that_was_given_to_another_process_is_not_mistaken_for_the_old_one(state: Path) -> None:
    # its number is in use, but not by it
    spares_a_stranger(state, lambda pid: ({"agent": pid, "began": 1.0}, 12.0))


@linux
def test_after_the_machine_was_started_anew_no_number_means_anything(state: Path) -> None:
    spares_a_stranger(state, lambda pid: ({"boot": "another"}, start_time(pid)))


def left_by(device: str, state: Path, **of_the_life: Any) -> Path:
    """The file of a life that ended suddenly, as it stands there."""
    life = ProcessRecords(device, f"of-{device}", STORE)
    life.make_directory()
    groups = state / "lives" / f"of-{device}" / "groups"
    said = {**json.loads(groups.read_text()), "began": 1.0, **of_the_life}
    groups.write_text(f"{json.dumps(said)}\n")
    return groups


def test_nothing_is_kept_of_a_dead_life_of_another_device_either(state: Path) -> None:
    groups = left_by(LAPTOP, state)
    assert kill_orphans(KITCHEN, STORE, "s2") == []
    assert not groups.parent.exists()


@linux
def test_orphans_of_another_device_are_left_to_it(state: Path) -> None:
    groups = left_by(LAPTOP, state)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stray:
        try:
            with groups.open("a") as file:
                file.write(f"+1 {stray.pid} {start_time(stray.pid)}\n")
            assert kill_orphans(KITCHEN, STORE, "s2") == []
            assert groups.exists()
            assert kill_orphans(LAPTOP, STORE, "s2") == [stray.pid]
            assert not groups.exists()
        finally:
            stray.kill()


def test_the_id_of_the_machine_is_read_again_if_it_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_records._machine_id.cache_clear()
    monkeypatch.setattr(process_records, "MACHINE_ID", tmp_path / "machine-id")
    assert machine_id() == ""
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    assert machine_id() == "0123456789ab"
    process_records._machine_id.cache_clear()


def test_nothing_is_kept_of_it_after_the_machine_was_started_again_either(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_records, "machine_id", lambda: "this-one")
    groups = left_by(LAPTOP, state, boot="the one before")
    assert kill_orphans(KITCHEN, STORE, "s2") == []
    assert not groups.exists()


@pytest.mark.parametrize(
    "of_the_life",
    [
        *({"space": "pid:[1]"}, {"host": "elsewhere"}, {"began": None}),
        {"machine": "another of this name", "boot": "its own"},
        {"machine": "", "boot": "another"},
    ],
)
def test_records_of_a_possibly_living_agent_are_left_alone(state: Path, of_the_life: dict[str, Any]) -> None:
    groups = left_by(LAPTOP, state, **of_the_life)
    assert kill_orphans(KITCHEN, STORE, "s2") == []
    assert groups.exists()


@pytest.mark.parametrize(
    "text",
    [
        *("", "no json\n", "[]\n", f'{{"device": "{KITCHEN}"}}\n', f'{{"device": "{KITCHEN}", '),
        f'{{"device": "{KITCHEN}", "session": "s9", "store": "", "host": "{socket.gethostname()}", '
        f'"boot": "{boot_id()}", '
        '"agent": 0, "began": 1}\n+1 no number\n',
    ],
    ids=["empty", "no json", "list", "only a device", "cut off", "no number"],
)
def test_a_file_that_is_not_whole_is_left_alone(state: Path, text: str) -> None:
    broken = state / "lives" / "s9"
    broken.mkdir(parents=True)
    (broken / "groups").write_text(text)
    (state / "lives" / "stray-file").write_text("x")
    assert kill_orphans(KITCHEN, STORE, "s2") == []
    assert (broken / "groups").read_text() == text


@linux
def test_marks_that_are_not_whole_are_left_alone() -> None:
    marks = {"ASTERISM_DEVICE": KITCHEN, "ASTERISM_FLEET": store_mark(STORE), "ASTERISM_SESSION": "s1"}
    for agent in ({}, {"ASTERISM_AGENT": ""}, {"ASTERISM_AGENT": "nonsense"}):
        stranger = subprocess.Popen(["sleep", "1000"], env={**os.environ, **marks, **agent}, process_group=0)
        try:
            soon(lambda number=stranger.pid: b"ASTERISM_DEVICE" in Path(f"/proc/{number}/environ").read_bytes())
            assert kill_orphans(KITCHEN, STORE, "s2") == []
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()


@linux
def test_an_orphan_in_the_group_of_another_is_killed_alone() -> None:
    """The group belongs to another process; the orphan has joined it."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    stranger = subprocess.Popen(["sleep", "1000"], process_group=0)
    marks = {"ASTERISM_DEVICE": KITCHEN, "ASTERISM_FLEET": store_mark(STORE), "ASTERISM_SESSION": "s1"}
    environment = {**os.environ, **marks, "ASTERISM_AGENT": f"{dead.pid} 1"}
    stray = subprocess.Popen(["sleep", "1000"], env=environment, process_group=stranger.pid)
    try:
        soon(lambda: b"ASTERISM_DEVICE" in Path(f"/proc/{stray.pid}/environ").read_bytes())
        assert kill_orphans(KITCHEN, STORE, "s2") == [stray.pid]
        assert stray.wait() == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (stray, stranger):
            process.kill()
            process.wait()


@linux
def test_a_device_that_was_started_by_a_run_of_its_own_earlier_life_does_not_end_itself(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    marks = {"ASTERISM_DEVICE": KITCHEN, "ASTERISM_FLEET": store_mark(STORE), "ASTERISM_SESSION": "s1"}
    program = (
        "from asterism.fleet.device.process_records import kill_orphans; "
        f"print(kill_orphans({KITCHEN!r}, {STORE!r}, 's2'))"
    )
    environment = {**os.environ, **marks, "ASTERISM_AGENT": f"{dead.pid} 1"}
    reports = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "{program}"; echo still here'],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        process_group=0,
    )
    assert reports.stdout.split("\n")[:2] == ["[]", "still here"]


# -- telling processes apart -------------------------------------------------------------------------------------------


def test_a_process_is_known_by_when_it_began_also_without_proc() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        for proc in (Path("/proc"), NOWHERE):
            noted = start_time(child.pid, proc)
            assert noted is not None
            assert is_same_process(child.pid, noted, proc)
            assert not is_same_process(child.pid, noted + 100, proc)
    finally:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not buried
        for proc in (Path("/proc"), NOWHERE):
            assert start_time(child.pid, proc) is None
        child.wait()
    assert start_time(child.pid, NOWHERE) is None
    assert read_stat(child.pid) is None


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_a_device_has_one_living_agent_on_a_machine() -> None:
    lock = DeviceLock(STORE, KITCHEN)
    assert lock.acquire()
    assert lock.acquire()
    other = DeviceLock(STORE, KITCHEN)
    assert not other.acquire()
    assert lock_holder(STORE, KITCHEN) == os.getpid()
    others = [DeviceLock(STORE, LAPTOP), DeviceLock("sqlite:///other.db", KITCHEN)]
    assert all(another.acquire() for another in others)
    lock.close()
    assert other.acquire()
    for another in (other, *others):
        another.close()


def test_nothing_is_left_of_a_lock_that_is_given_back(state: Path) -> None:
    lock = DeviceLock(STORE, KITCHEN)
    assert lock.acquire()
    assert len(list((state / "devices").iterdir())) == 1
    lock.close()
    lock.close()
    assert list((state / "devices").iterdir()) == []
    assert lock_holder(STORE, KITCHEN) is None


def test_releasing_a_lock_leaves_the_lock_file_of_another_alone(state: Path) -> None:
    first, second, third = (DeviceLock(STORE, KITCHEN) for _ in range(3))
    assert first.acquire()
    for file in (state / "devices").iterdir():
        file.unlink()
    assert second.acquire()
    first.close()
    assert not third.acquire()
    second.close()
    assert third.acquire()
    third.close()


def test_a_lock_whose_file_cannot_be_removed_is_given_back_all_the_same(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    first, second = (DeviceLock(STORE, KITCHEN) for _ in range(2))
    assert first.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", read_only)
        first.close()
    assert second.acquire()
    second.close()


def test_a_lock_released_during_an_acquire_goes_to_the_other_alone(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is removed between the opening and the locking: to hold that one would mean nothing."""
    first, second, third = (DeviceLock(STORE, KITCHEN) for _ in range(3))
    assert first.acquire()
    flock = fcntl.flock

    def too_late(file: int, how: int) -> None:
        first.close()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    assert second.acquire()
    assert not third.acquire()
    second.close()
    assert third.acquire()
    third.close()


def test_the_lock_goes_with_the_process_however_it_ends() -> None:
    program = f"""
    import sys, signal
    from asterism.fleet.device.membership import DeviceLock
    lock = DeviceLock({STORE!r}, {KITCHEN!r})
    print(lock.acquire(), flush=True)
    signal.pause()
    """
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "True\n"
        lock = DeviceLock(STORE, KITCHEN)
        assert not lock.acquire()
        assert lock_holder(STORE, KITCHEN) == holder.pid
        holder.send_signal(signal.SIGSTOP)
        assert not lock.acquire()  # it is alive
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert lock.acquire()
    lock.close()


def _wait(pipe: Any) -> None:
    pipe.send("here")
    pipe.recv()


def test_a_child_that_is_forked_does_not_keep_the_lock() -> None:
    lock, other = DeviceLock(STORE, KITCHEN), DeviceLock(STORE, KITCHEN)
    assert lock.acquire()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_wait, args=(theirs,), daemon=True)
    child.start()
    try:
        assert ours.recv() == "here"
        assert not other.acquire()  # the child did not give it up for us
        lock.close()
        assert other.acquire()
    finally:
        ours.send(None)
        child.join()
        for held in (ours, theirs, other):
            held.close()


def test_a_lock_registers_nothing_that_stays_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server acquires one for each plan that it runs, and what is called after a fork cannot be taken back."""
    registered: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: registered.append(functions))
    lock = DeviceLock(STORE, KITCHEN)
    assert lock.acquire()
    lock.close()
    assert registered == []


def test_without_a_home_the_directory_for_temporary_files_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = state_directory()
    assert folder == tmp_path / f"asterism-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="belongs to another user"):
        state_directory()


def test_the_home_of_a_user_is_the_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory() == tmp_path / ".local" / "state" / "asterism"
