"""``asterism limit``: the same on a SQLite file, on PostgreSQL and on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asterism.core.limits import SERIES_LIMIT, Limit, Rate
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.stored_limits import read_limits, set_limit
from tests.cli.command_scenes import create_later, enter_device, started, write_steps
from tests.cli.system_scenes import Names, Row, SystemScene, rows_and_systems, run_everywhere


def admitted_by(device: str) -> Any:
    def step(run: Run, now: float) -> Run:
        return transitions.take(transitions.admit(run), Owner(device, f"session-{device}"), now)

    return step


def in_use(scene: SystemScene) -> Names:
    """Three limits; one run holds the warehouse, and one waits for it."""

    async def fill(fleet: Fleet) -> list[str]:
        for limit in (Limit("warehouse", 1), Limit("mail", 2, Rate(10, 60.0)), Limit("account/*", 1)):
            await set_limit(fleet.store, limit)
        uses = {"warehouse": 1, "account/{customer}": 1}
        await fleet.workflows.add(Workflow("load", argv=("load", "{customer}"), uses=uses))
        await enter_device(fleet, "laptop")
        runs = [await create_later(fleet, "load", input={"customer": number}) for number in (7, 8)]
        await write_steps(fleet, runs[0].id, admitted_by("laptop"), started)
        return [run.id for run in runs]

    return dict(zip(("holds", "waits"), scene.ask(fill), strict=True))


def limits(scene: SystemScene, names: Names) -> Any:
    found = scene.ask(lambda fleet: read_limits(fleet.store)).values()
    return sorted((limit for limit in found if limit != SERIES_LIMIT), key=lambda limit: limit.name)


KEPT = [Limit("account/*", 1), Limit("mail", 2, Rate(10, 60.0))]

LIMITS = (
    Row("limit list", "No limits are set. Set one with: asterism limit set NAME SIZE"),
    Row("limit list", "account/7: 1", in_use),
    Row("limits list --json", '"used": {{"account/7": 1}}, "waiting": 1', in_use),
    Row("limit show warehouse", "1 at a time; 1 run waiting", in_use),
    Row("limit show warehouse --json", '"next_runs": [{{"id": "', in_use),
    Row("limit show nothing", "no limit 'nothing' is set; 'asterism limit list' shows those that are", in_use, code=64),
    Row("limit set disk 4", "Limit disk: 4 at a time.", state=limits, left=[Limit("disk", 4)]),
    Row(
        "limit set warehouse 3 --rate 100/1h --reason busy",
        "Limit warehouse: 3 at a time, 100 within 1 h 00 min.",
        in_use,
        limits,
        [*KEPT, Limit("warehouse", 3, Rate(100, 3600.0))],
    ),
    Row("limit set warehouse", "Give the SIZE of the limit, --rate, or both.", in_use, code=64),
    Row("limit set warehouse --rate often", "'often' is not a valid rate (examples: 10/1m, 2/1s, 1000/1d).", code=64),
    Row("limit set 'a b' 1", "is not a name of a limit (examples: warehouse, account/7)", code=64),
    Row("limit remove warehouse", "1 run that use it wait until it is set again.", in_use, limits, KEPT),
    Row("limit remove nothing", "no limit 'nothing' is set", in_use, code=64),
    Row("runs why {waits}", "of limit 'warehouse' (1) 0 is free: run {holds} (load) on laptop holds it", in_use),
    Row("runs list", "uses account/8, warehouse", in_use),
    Row("runs show {waits}", "account/8: 1, warehouse: 1", in_use),
    Row("runs list --waiting limit --json", '"uses": {{"account/8": 1, "warehouse": 1}}', in_use),
    Row(
        "workflow add w --shell true --uses warehouse --uses mail=2 --json",
        '"uses": {{"warehouse": 1, "mail": 2}}',
        in_use,
    ),
    Row("workflow add w --shell true --uses mail=two", "is not a valid use of a limit", in_use, code=64),
    Row(
        'runs create load --input \'{{"customer": "7 8"}}\'',
        "'account/7 8' is not a name of a limit",
        in_use,
        code=64,
    ),
)


@rows_and_systems(LIMITS, others=pytest.mark.long)
def test_limits(row: Row, systems: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_everywhere(row, systems, tmp_path, request)
