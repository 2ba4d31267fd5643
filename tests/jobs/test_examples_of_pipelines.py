"""Job 23: the Airflow DAG, the GitHub workflow and the Makefile in examples/moved, rewritten."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.cli_scenes import heard, read_until
from tests.jobs.desk import ROOT, Desk
from tests.process_scenes import ended

MOVED = ROOT / "examples" / "moved"


@pytest.fixture(autouse=True)
def examples(desk: Desk, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples, in the folder of the desk."""
    shutil.copytree(MOVED, desk.folder / "moved")
    return desk.folder / "moved"


def test_23_a_dag_of_airflow(desk: Desk, examples: Path) -> None:
    """Dates, a pool, trigger rules, files, and a night by hand; the backfill is in job 5."""
    plan = examples / "airflow" / "sales.yaml"
    desk.sh("store init")
    desk.sh(f"run {plan} --tick 2026-11-17 --plain", code=64)
    assert "no limit 'warehouse' is set" in desk.said
    desk.sh("limit set warehouse 2")
    said = desk.sh(f"run {plan} --tick 2026-11-17 --id monday --result join")
    assert said == "3\n"
    assert "alarm cancelled: not needed" in desk.said
    assert "cleanup completed" in desk.said
    desk.sh("plan get monday join sales -o out")
    shops = (desk.folder / "out/sales-2026-11-17.csv").read_text().splitlines()
    assert shops == ["berlin,2026-11-17,0", "lyon,2026-11-17,1", "porto,2026-11-17,2"]
    broken = plan.with_name("broken.yaml")
    broken.write_text(
        plan.read_text().replace("retries: 2", "retries: 0").replace('echo "$item', 'false && echo "$item')
    )
    said = desk.sh(f"run {broken} --tick 2026-11-17 --plain", code=2)
    assert "no sales of 2026-11-17" in said
    assert "cleanup completed" in said


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=ann", "-c", "user.email=ann@localhost", *words], cwd=folder, check=True)


def test_23_a_workflow_of_github(desk: Desk, examples: Path) -> None:
    """A matrix, files of one job in another, a secret, and a notice of any failure."""
    source = desk.folder / "source"
    for name, text in {"src/star.py": "", "tests/unit.sh": "echo unit", "tests/api.sh": "echo api"}.items():
        desk.write(f"source/{name}", text)
    git(source, "init", "--quiet")
    git(source, "add", ".")
    git(source, "commit", "--quiet", "--message=first")
    git(source, "tag", "v1")
    plan = f"run {examples}/github-actions/release.yaml --set repository={source} --plain"
    said = desk.sh(f"{plan} --set tag=v1 --id one --result publish", RELEASE_TOKEN="a-long-secret")
    assert said == "v1 released with 1 file\n"
    assert "notify cancelled: not needed" in desk.said
    desk.sh("plan get one test report -o reports")
    assert len(list((desk.folder / "reports").iterdir())) == 4
    desk.write("source/tests/api.sh", "exit 3")
    git(source, "commit", "--quiet", "--all", "--message=second")
    git(source, "tag", "v2")
    said = desk.sh(f"{plan} --set tag=v2 --id two", code=2, RELEASE_TOKEN="a-long-secret")
    assert "v2 was not released" in said
    assert "publish cancelled" in said


def test_23_a_makefile(desk: Desk, examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has changed is made again."""
    monkeypatch.chdir(examples / "make")
    first = desk.sh("run site.yaml --plain")
    assert "unchanged" not in first
    assert (examples / "make/build/index.html").read_text() == (
        "<h1>Stars</h1>\n<p>Vega</p>\n<h1>Stars</h1>\n<p>Deneb</p>\n"
    )
    (examples / "make/pages/swan.txt").write_text("<p>Albireo</p>\n")
    again = desk.sh("run site.yaml --plain")
    assert again.count("is unchanged") == 1
    assert "page[pages/lyra.txt] is unchanged" in again
    assert "Albireo" in (examples / "make/build/index.html").read_text()


def test_23_one_release_at_a_time(desk: Desk) -> None:
    """The ``concurrency`` of a GitHub workflow, and its ``cancel-in-progress``."""
    gate = desk.folder / "gate"
    os.mkfifo(gate)
    tasks = "tasks:\n  ship: {shell: 'read word < gate; echo $word'}\n"
    for overlap in ("queue", "skip", "replace"):
        desk.write(f"{overlap}.yaml", f"id: release\noverlap: {overlap}\n{tasks}")
    run = ("--store", desk.url, "--plain", "--id")
    with desk.process("run", "queue.yaml", *run, "first") as first:
        read_until(first, "ship started")
        with desk.process("run", "queue.yaml", *run, "second") as second:
            heard(second, "waits for its turn: plan 'first' of the same file")
            assert "waits for plan first" in desk.sh("plan show second")
            desk.sh(f"run skip.yaml --store {desk.url} --plain --id third", code=64)
            assert "plan 'second' has not ended" in desk.said
            desk.sh("run skip.yaml", code=64, ASTERISM_STORE="memory:")
            assert "are in a store" in desk.said
            with desk.process("run", "replace.yaml", *run, "fourth") as fourth:
                read_until(fourth, "ship started")
                assert [ended(process)[0] for process in (first, second)] == [130, 130]
                gate.write_text("shipped\n")
                assert ended(fourth)[0] == 0
    assert desk.sh("plan list").count("cancelled") == 2
