"""A short fire on each store; ``make chaos`` lights a long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.laboratory.chaos.failover_fire import FailoverFire
from tests.laboratory.chaos.fire import STRIKES, Fire, problems
from tests.laboratory.chaos.gateway_fire import GatewayFire
from tests.laboratory.chaos.plan import PlanFire
from tests.store.postgres_cluster import Cluster

either = pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.long)])


def burns_well(store: str, folder: Path) -> None:
    fire = Fire(store, folder, runs=300, seconds=6.0)
    made, runs = asyncio.run(fire.play())
    assert problems(fire, made, runs) == []
    assert len(runs) == fire.runs
    assert fire.killed + fire.stopped >= STRIKES


@pytest.mark.long
def test_a_fleet_on_sqlite_keeps_every_promise_under_fire(tmp_path: Path) -> None:
    burns_well(f"sqlite:///{tmp_path}/fleet.db", tmp_path)


@pytest.mark.long
def test_a_fleet_on_postgresql_keeps_every_promise_under_fire(tmp_path: Path, postgres_url: str) -> None:
    burns_well(postgres_url, tmp_path)


@pytest.mark.long
@pytest.mark.slow
@either
def test_a_fleet_outlives_the_primary_of_its_database(tmp_path: Path, short: bool) -> None:
    """The primary is killed, its standby promoted, and the killed server comes back as a standby. No process of the
    fleet is started again."""
    with Cluster() as cluster:
        fire = FailoverFire(cluster.url(), tmp_path, 0, 0.0, kills=2 if short else 8, cluster=cluster)
        _, runs = asyncio.run(fire.play())
        assert fire.faults(runs) == []
        assert fire.killed == fire.kills


def outlives_everybody(fire: PlanFire) -> None:
    kept = asyncio.run(fire.play())
    assert asyncio.run(fire.problems(kept)) == []
    assert fire.killed.total() >= fire.kills - 1
    assert {name.partition("-")[0] for name in fire.killed} == {"boss", "device"}


@either
@pytest.mark.long
def test_a_plan_of_commands_outlives_every_process(tmp_path: Path, short: bool) -> None:
    tasks, kills = (20, 3) if short else (200, 12)
    outlives_everybody(PlanFire(f"sqlite:///{tmp_path}/fleet.db", tmp_path, tasks=tasks, kills=kills))


@pytest.mark.long
def test_a_plan_on_postgresql_outlives_every_process(tmp_path: Path, postgres_url: str) -> None:
    outlives_everybody(PlanFire(postgres_url, tmp_path, tasks=80, kills=8))


@pytest.mark.long
def test_devices_of_a_gateway_keep_every_promise_under_fire(tmp_path: Path) -> None:
    """The server is killed and started again, connections are cut and stalled in each direction, devices are killed
    and frozen; often, and for longer than a lease."""
    store = f"sqlite:///{tmp_path}/fleet.db"
    fire = GatewayFire(store, tmp_path, runs=120, seconds=5.0, devices=4, kills=8)
    made, runs = asyncio.run(fire.play())
    assert problems(fire, made, runs) == []
    assert (len(runs), fire.killed) == (fire.runs, fire.kills)
    assert min(fire.devices_killed, fire.stopped) == fire.kills // 2
