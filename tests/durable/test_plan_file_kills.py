"""Processes that are killed with -9 while a stored plan makes and takes files. A collection that spares nothing comes
before each commit. No file is half there, and none is lost after the end of its task was acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.plan_submissions import submit_plan
from asterism.fleet import kept_files
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import FILE_USES
from tests.watched_commits import commits, watched_process

PARTS, FILES = 4, 3


def write_parts(folder: Path, number: int) -> None:
    for name in range(FILES):
        (folder / f"{number}-{name}").write_bytes(content(number, name))


def content(number: int, name: int) -> bytes:
    return random.Random(number * FILES + name).randbytes(50_000)


def pack_parts(folder: Path) -> int:
    parts = sorted(folder.iterdir())
    (folder / "film").write_bytes(b"".join(part.read_bytes() for part in parts))
    return len(parts)


def film() -> Constellation:
    plan = Constellation("film")
    for number in range(PARTS):
        plan.add(Task(f"part{number}", call=write_parts, inputs={"number": number}, outputs={"parts": f"{number}-*"}))
    taken = {f"parts{number}": {"files_from": f"part{number}.parts"} for number in range(PARTS)}
    plan.add(Task("pack", call=pack_parts, inputs=taken, outputs={"film": "film"}))
    return plan


async def prepare(url: str) -> None:
    async with await Fleet.open(url) as fleet:
        await submit_plan(fleet, film())


async def carry_on(pinned: bool, url: str, tell: int) -> None:
    """Carry the plan on until it has ended. Writes a byte before each commit, and before each file gets its name. A
    collection comes before each commit, also before that of an end, whose files nothing refers to yet."""
    kept_files.CONTENT_AGE = 0.0
    if not pinned:
        kept_files.OPEN = ""
    replace = Path.replace

    def telling_replace(self: Path, target: Any) -> Path:
        os.write(tell, b".")
        return replace(self, target)

    Path.replace = telling_replace  # type: ignore[method-assign]
    async with await Fleet.open(url) as fleet:
        commit = fleet.store.commit

        async def telling(writes: Any) -> None:
            os.write(tell, b".")
            await fleet.collect_files()
            await commit(writes)

        fleet.store.commit = telling  # type: ignore[method-assign]
        await DurableOrchestrator(fleet, local=2).run_stored("film")


async def problems(url: str) -> list[str]:
    """Files that are damaged, and files that are missing although a record of the store names them."""
    async with await Fleet.open(url) as fleet:
        place = await fleet.artifacts()
        lost = list(kept_files.problems(place, await kept_files.manifests(fleet.store)))
        return lost + [name for name in place.names() if _hash(place.open(name)) not in (None, name)]


def _hash(file: Any) -> str | None:
    if file is None:
        return None
    with file:
        return hashlib.sha256(file.read()).hexdigest()


async def check(url: str) -> None:
    async with await Fleet.open(url) as fleet:
        result = await DurableOrchestrator(fleet, local=2).run_stored("film")
        assert (result.state, result["pack"].value) == ("completed", PARTS * FILES), [task.error for task in result]
        whole = b"".join(content(number, name) for number in range(PARTS) for name in range(FILES))
        assert result["pack"].files["film"][0].read() == whole
        assert len(await fleet.store.registers(FILE_USES)) == PARTS + 1


def kill_repeatedly(folder: Path, kills: int, seed: int, *, pinned: bool = True) -> list[str]:
    """Returns what was wrong after any of the kills, and in the end."""
    url, chance, wrong = f"sqlite:///{folder}/fleet.db", random.Random(seed), list[str]()
    asyncio.run(prepare(url))
    for kill in range(kills + 1):
        with watched_process(partial(carry_on, pinned, url)) as (child, told):
            if kill < kills and commits(told, chance.randint(1, 12)):
                os.kill(child, signal.SIGKILL)
        wrong += asyncio.run(problems(url))
    return wrong


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.hunt(few=1, many=20)
def test_no_file_is_half_there_or_lost_after_its_end(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert kill_repeatedly(folder, 3 + seed % 5, seed) == []
        asyncio.run(check(f"sqlite:///{folder}/fleet.db"))


def test_ablation_without_the_pin_files_are_lost(tmp_path: Path) -> None:
    assert any("it was removed there" in text for text in kill_repeatedly(tmp_path, 0, 0, pinned=False))
