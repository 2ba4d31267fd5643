"""The extension of fleets by peers: every fleet has it, and the fleet package does not import it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.fleet import monitor as monitor_module
from asterism.fleet import run_explanation
from asterism.fleet.extensions import extensions
from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import Monitor
from asterism.fleet.run_explanation import Reason, explain_run
from asterism.peers import takeover
from asterism.store.memory import MemoryStore
from asterism.testing.virtual_time import run as run_virtually


def test_peers_are_the_extension_of_every_fleet() -> None:
    assert extensions() == [takeover]


@pytest.mark.parametrize("statement", ["import asterism", "import asterism.fleet.extensions"])
def test_an_extension_is_imported_when_it_is_first_used(statement: str) -> None:
    loaded = "[name for name in sys.modules if name.startswith(('asterism.peers', 'asterism.fleet.fleet'))]"
    program = f"import sys; {statement}; print({loaded})"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_a_monitor_runs_the_passes_of_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[Session]] = []

    async def note(sessions: Sequence[Session]) -> None:
        seen.append(sessions)

    made: list[Any] = []
    extension = SimpleNamespace(monitor_pass=lambda fleet: made.append(fleet) or note)
    monkeypatch.setattr(monitor_module, "extensions", lambda: [extension])

    async def scenario() -> None:
        async with Fleet(MemoryStore()) as fleet:
            monitor = Monitor(fleet, "kitchen")
            await monitor.run_pass()
            await monitor.run_pass()
            assert made == [fleet]

    run_virtually(scenario())
    assert seen == [[], []]


def test_an_extension_explains_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Reason("left", "attic", "the attic decides")

    async def nothing(fleet: Fleet, run: Any) -> None:
        return None

    async def explain(fleet: Fleet, run: Any) -> Reason:
        return reason

    asked = [SimpleNamespace(explain=nothing), SimpleNamespace(explain=explain)]
    monkeypatch.setattr(run_explanation, "extensions", lambda: asked)

    async def scenario() -> None:
        async with Fleet(MemoryStore()) as fleet:
            run = await fleet.create(Workflow("build", argv=("true",)))
            assert (await explain_run(fleet, run.id)).reasons == (reason,)

    run_virtually(scenario())
