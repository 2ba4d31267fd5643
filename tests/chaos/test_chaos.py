"""A short fire on each store; ``make chaos`` lights a long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.fire import STRIKES, Fire, problems
from tests.chaos.plan import PlanFire


def burns_well(store: str, folder: Path) -> None:
    fire = Fire(store, folder, runs=300, seconds=6.0)
    made, runs = asyncio.run(fire.play())
    assert problems(fire, made, runs) == []
    assert len(runs) == 300
    assert fire.killed + fire.stopped >= STRIKES


def test_a_fleet_on_sqlite_keeps_every_promise_under_fire(tmp_path: Path) -> None:
    burns_well(f"sqlite:///{tmp_path}/fleet.db", tmp_path)


def test_a_fleet_on_postgresql_keeps_every_promise_under_fire(tmp_path: Path, postgres_url: str) -> None:
    burns_well(postgres_url, tmp_path)


def outlives_everybody(fire: PlanFire) -> None:
    kept = asyncio.run(fire.play())
    assert asyncio.run(fire.problems(kept)) == []
    assert fire.killed.total() >= fire.kills - 1
    assert {name.partition("-")[0] for name in fire.killed} == {"boss", "device"}


def test_a_plan_of_500_commands_outlives_every_process(tmp_path: Path) -> None:
    outlives_everybody(PlanFire(f"sqlite:///{tmp_path}/fleet.db", tmp_path, tasks=500, kills=30))


def test_a_plan_on_postgresql_outlives_every_process(tmp_path: Path, postgres_url: str) -> None:
    outlives_everybody(PlanFire(postgres_url, tmp_path, tasks=80, kills=8))
