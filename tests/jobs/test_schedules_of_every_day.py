"""Jobs 5 and 21: a nightly schedule with catch-up, pause and backfill; a series on a git remote."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

from tests.jobs.desk import Desk
from tests.process_scenes import soon

SALES = """\
tasks:
  extract: {shell: echo "rows of $ASTERISM_TICK_DATE"}
  load: {argv: [echo, "{rows}, since {tick.previous}"], inputs: {rows: {from: extract}}, after: extract}
"""


def test_05_a_nightly_schedule_with_a_pause_and_a_backfill(desk: Desk) -> None:
    """Catching up after a coordinator was away takes days: test_scheduled_plans.py has it in virtual time."""
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
