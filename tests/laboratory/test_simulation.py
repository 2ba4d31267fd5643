"""Simulations: a seed is one world in every process, and the replay command of a broken world replays it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.core.plan.journal import Edit, Step
from asterism.durable.fleet_device import FleetDevice, PlanRuns
from asterism.durable.journal_writer import JournalWriter
from asterism.peers.record_decisions import BatchDecisions
from asterism.store.protocol import Write
from tests.laboratory.simulator import peer_world, simulate
from tests.laboratory.simulator.__main__ import main
from tests.laboratory.simulator.file_world import FileWorld
from tests.laboratory.simulator.fleet_world import (
    BatteryWorld,
    FleetWorld,
    LimitWorld,
    MoveWorld,
    ScheduleWorld,
    WallClockWorld,
)
from tests.laboratory.simulator.gateway_world import GatewayWorld
from tests.laboratory.simulator.peer_world import ForgetfulWorld, JumpingWorld, PeerWorld, PutBackWorld
from tests.laboratory.simulator.plan_world import CancelWorld, PlanWorld, RetryWorld
from tests.laboratory.simulator.simulation import COMMAND, WORLDS, Deadlock, replay_line, world_named

pytestmark = pytest.mark.slow

ABLATED = 60
"""The number of worlds in which a missing safeguard has to show."""


def words_of(line: str) -> list[str]:
    """Return the words of a command line as a shell splits it, without the command itself."""
    assert line.startswith(f"{COMMAND} ")
    return shlex.split(line.removeprefix(COMMAND), comments=True)


def broken_in(play: Callable[[int], Any]) -> str:
    """Return the message of the first world that breaks a promise or fails."""
    for seed in range(ABLATED):
        try:
            play(seed)
        except Exception as error:
            return "\n".join([str(error), *getattr(error, "__notes__", ())])
    raise AssertionError("no world breaks a promise")


def replays(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that the command in this message plays a world with the same message."""
    _, _, line = message.rpartition("\nreplay with: ")
    capsys.readouterr()
    assert main(words_of(line)) == 1
    output = capsys.readouterr().out
    assert output.rstrip().endswith(message), output[-2000:]
    assert len(output.splitlines()) > 10, "there is no log"


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not record edits."""
    record: Callable[..., Any] = JournalWriter.record

    def all_but_edits(self: JournalWriter, step: Step) -> None:
        if not isinstance(step, Edit):
            record(self, step)

    monkeypatch.setattr(JournalWriter, "record", all_but_edits)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("arguments", [{}, {"steps": 5, "faults": ("crash",)}], ids=["as usual", "with terms"])
@pytest.mark.long
def test_the_command_of_a_plan_world_replays_it(arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    replays(broken_in(lambda seed: simulate(seed, **arguments, world=PlanWorld)), capsys)


@pytest.mark.long
def test_the_command_of_an_orchestrator_that_dies_at_a_commit_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def anew(self: FleetDevice, work: Any, plan: PlanRuns) -> Any:
        work.epoch += 1000
        return await self._place(await self._new_run(work, plan), work, plan)

    monkeypatch.setattr(FleetDevice, "_resumed_run", anew)
    message = broken_in(lambda number: simulate(1, dies_at=number // 2 + 1, after=bool(number % 2), world=PlanWorld))
    assert '"dies_at"' in message
    replays(message, capsys)


@pytest.mark.long
def test_the_command_of_a_peer_world_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nothing(*_: Any) -> list[Write]:
        return []

    monkeypatch.setattr(BatchDecisions, "_loss_writes", nothing)  # losers are not notified
    replays(
        broken_in(lambda seed: simulate(seed, world=PeerWorld, splits=peer_world.schedules(3)[seed * 7 % 512], runs=5)),
        capsys,
    )
    replays(broken_in(lambda seed: simulate(seed, world=PeerWorld)), capsys)
    replays(broken_in(lambda seed: simulate(seed, world=JumpingWorld)), capsys)


OWN = """
from tests.laboratory.simulator import simulate
from tests.laboratory.simulator.plan_world import PlanWorld


class Hasty(PlanWorld):
    def __init__(self, seed, *, words="", **terms):
        super().__init__(seed, **terms)
        self.words = words

    async def play(self):
        self.boot("m0")
        self.checker.broken(f"nothing was done: {self.words} {self.chance.random()}")


if __name__ == "__main__":
    from own import Hasty
    simulate(7, world=Hasty, words="it's \\"late\\" & $HOME; exit")
"""


@pytest.mark.long
def test_the_command_of_a_custom_world_replays_it_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    checkout = Path(__file__).parents[2]
    around = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
    first = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, env=around, capture_output=True, text=True)
    what, line = (text.partition(": ")[2] for text in first.stderr.splitlines()[-2:])
    command = f"{shlex.quote(sys.executable)}{line.removeprefix('python')}"
    again = subprocess.run(command, shell=True, cwd=tmp_path, env=around, capture_output=True, text=True)
    assert again.returncode == 1, again.stderr
    assert 'it\'s "late" & $HOME; exit' in what
    assert again.stdout.splitlines()[-2:] == [f"seed 7: {what}", f"replay with: {line}"]


def test_another_exception_of_a_world_has_the_replay_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Deadlock) as raised:
        simulate(3, world=Stuck)
    assert raised.value.__notes__ == [f"replay with: {COMMAND} --seed 3 --world {__name__}:Stuck"]
    assert main(["--seeds", "2", "--first", "3", "--world", f"{__name__}:Stuck"]) == 1
    output = capsys.readouterr().out
    assert f"replay with: {COMMAND} --seed 4 --world {__name__}:Stuck" in output
    assert "2 broke a promise" in output


class Stuck(FleetWorld):
    async def play(self) -> None:
        raise Deadlock("nothing can happen any more")


def test_every_world_is_found_by_its_name() -> None:
    worlds = [
        FleetWorld,
        GatewayWorld,
        BatteryWorld,
        WallClockWorld,
        ScheduleWorld,
        MoveWorld,
        LimitWorld,
        FileWorld,
        PlanWorld,
        RetryWorld,
        CancelWorld,
        PeerWorld,
        ForgetfulWorld,
        JumpingWorld,
        PutBackWorld,
    ]
    assert [world_named(name) for name in WORLDS] == worlds
    assert replay_line(1, FleetWorld, {}) == f"{COMMAND} --seed 1"
    assert replay_line(1, PlanWorld, {"dies_at": 3, "after": True}) == (
        f'{COMMAND} --seed 1 --world plans --arguments \'{{"dies_at": 3, "after": true}}\''
    )


def test_an_argument_that_a_shell_cannot_pass_is_named_behind_the_command() -> None:
    line = replay_line(1, PeerWorld, {"make_exchange": print, "runs": 2})
    assert line.endswith("  # without make_exchange, which only a program can pass")
    assert words_of(line) == ["--seed", "1", "--world", "peers", "--arguments", '{"runs": 2}']


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--world", "moon"], "unknown world 'moon'"),
        (["--world", "tests.laboratory.simulator:simulate"], "is not a class of worlds"),
        (
            ["--world", "no.such.module:FleetWorld"],
            "use fleet, gateway, batteries, wall-clocks, schedules, moves, limits, files, plans",
        ),
        (["--arguments", "[]"], "--arguments must be a JSON object"),
        (["--arguments", "{"], "Expecting property name"),
    ],
)
def test_invalid_arguments_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err


# -- one seed, one world -----------------------------------------------------------------------------------------------

PLAYED = """
import hashlib, logging
from tests.laboratory.simulator import FleetWorld, simulate
from tests.laboratory.simulator.fleet_world import MoveWorld
from tests.laboratory.simulator.peer_world import PeerWorld
from tests.laboratory.simulator.plan_world import PlanWorld
logging.getLogger("asterism").setLevel(logging.CRITICAL)
for kind, seeds in ((FleetWorld, 4), (PlanWorld, 2), (PeerWorld, 1)):
    for seed in range(seeds):
        world = simulate(seed, world=kind)
        log = getattr(world, "log", world.checker.log)  # of a plan: without the shutdown
        assert len(log) > 10
        print(kind.__name__, seed, hashlib.sha256("\\n".join(log).encode()).hexdigest())
"""


@pytest.mark.long
def test_a_seed_is_the_same_world_in_every_process() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PLAYED],
            env={**os.environ, "PYTHONHASHSEED": str(order)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for order in (1, 2)
    ]
    output = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert output[0] == output[1]
