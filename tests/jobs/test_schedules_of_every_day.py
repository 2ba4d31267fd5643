"""Jobs 5, 21 and 36: a nightly schedule with catch-up, pause and backfill; series on a git remote and in a store."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from operator import itemgetter

import pytest

from asterism import Fleet
from asterism.planfile import load
from asterism.store.sqlite import SqliteStore
from tests.jobs.desk import Desk
from tests.process_scenes import PATIENCE, ended, soon

SALES = """\
tasks:
  extract: {shell: echo "rows of $ASTERISM_TICK_DATE"}
  load: {argv: [echo, "{rows}, since {tick.previous}"], inputs: {rows: {from: extract}}, after: extract}
"""


def test_05_a_nightly_schedule_with_a_pause_and_a_backfill(desk: Desk) -> None:
    desk.write("sales.yaml", SALES)
    added = "schedule add sales --cron '0 3 * * *' --timezone Europe/Berlin --plan sales.yaml --catch-up all"
    desk.sh("store init")
    desk.sh(f"{added} --after-previous success")
    assert desk.sh("schedule next sales -n 1").strip().split()[1] == "03:00:00"
    assert "moving" in desk.sh("schedule pause sales --reason 'moving the database'")
    assert "moving the database" in desk.sh("schedule show sales")
    desk.sh("schedule resume sales")
    with desk.beside("monitor --every 100ms", "device join here"):
        soon(lambda: desk.sh("device list").count("ready") == 1)
        said = desk.sh("schedule backfill sales --from 2026-10-24 --to 2026-10-26")
    assert "3 of 3 ticks done: 3 succeeded" in said
    ticks = desk.json("schedule", "ticks", "sales", "--from", "2026-10-24", "--to", "2026-10-26")
    assert [tick["state"] for tick in ticks["items"]] == ["succeeded"] * 3
    document = desk.json("plan", "show", "sales-20261026T020000Z")
    [load] = [task for task in document["tasks"] if task["id"] == "load"]
    # the clocks were set back in the night before
    assert load["result"] == "rows of 2026-10-26, since 2026-10-25T03:00:00+01:00"


DAY = 24 * 3600


def test_05_a_coordinator_that_was_away_for_13_nights_drops_no_tick(desk: Desk) -> None:
    """Added thirteen days ago, by the clock of its store. All that was missed runs, one after the other."""
    plan = desk.write("sales.yaml", SALES)

    async def add() -> None:
        async with Fleet(await SqliteStore.open(desk.file, clock=lambda: time.time() - 13 * DAY)) as fleet:
            stored = load(plan, scheduled=True).constellation
            noon = datetime.now(UTC) + timedelta(hours=12)  # no tick is near
            await fleet.schedules.add("sales", plan=stored, cron=f"{noon:%M %H} * * *", catch_up="all")

    asyncio.run(add())
    assert "queue" in desk.sh("schedule list")
    with desk.beside("monitor --every 100ms", "device join here"):
        soon(lambda: desk.sh("plan list --state completed").count("sales-") == 13)
    history = desk.json("schedule", "history", "sales")
    assert [decision["outcome"] for decision in history] == ["created"] * 13


def test_21_series_on_a_bare_git_remote_two_processes_at_once(desk: Desk) -> None:
    subprocess.run(["git", "init", "--bare", "--quiet", desk.folder / "series.git"], check=True)
    remote = f"--remote {desk.folder}/series.git"

    def claim(issue: int) -> int:
        with desk.process("series", "claim", "RFC-093", "--issue", str(issue), *remote.split()) as process:
            return process.wait()

    with ThreadPoolExecutor() as people:
        codes = sorted(people.map(claim, (1, 2)))
    assert codes == [0, 75]
    active = desk.json("series", "status", "RFC-093", *remote.split())
    first, [second] = active["active_issue"], active["queue"]
    said = desk.sh(f"series release RFC-093 --issue {first} {remote}")
    assert f"#{second} is now active" in said


@pytest.mark.parametrize("register", ["--remote series.git", "--store sqlite:///series.db"])
def test_36_four_agents_take_the_issues_of_a_repository(desk: Desk, register: str) -> None:
    """Each takes an issue of a series that nobody has, works on it, releases it, and takes the next one."""
    subprocess.run(["git", "init", "--bare", "--quiet", desk.folder / "series.git"], check=True)
    begun, worked = threading.Barrier(4), []

    def command(*words: str) -> tuple[int, str]:
        with desk.process("series", *words, *register.split(), "--json") as process:
            return ended(process)[:2]

    desk.sh("store init --store sqlite:///series.db")
    for number in range(4):
        desk.sh(f"series rebuild RFC-{number} --issue {number + 10} --issue {number + 20} {register}")

    def agent(name: str) -> None:
        while (taken := command("next", "--by", name, "--wait"))[0] == 0:
            issue, series = itemgetter("issue", "series")(json.loads(taken[1]))
            if len(worked) < 4:
                begun.wait(PATIENCE)  # four have one, each of another series
            worked.append((issue, series, name))
            assert command("next", series, "--by", f"not-{name}")[0] == 75
            assert command("release", series, "--issue", str(issue), "--by", f"not-{name}")[0] == 75
            assert command("release", series, "--issue", str(issue), "--by", name)[0] == 0

    names = ("ann", "bot", "cat", "dan")
    with ThreadPoolExecutor() as agents:
        list(agents.map(agent, names))
    assert sorted(issue for issue, *_ in worked) == [10, 11, 12, 13, 20, 21, 22, 23]
    assert {name for *_, name in worked[:4]} == set(names)
