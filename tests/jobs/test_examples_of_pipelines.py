"""Job 23: the pipelines of other tools in examples/moved, and the plan files that replace them.

The originals run beside the plans, and the results are compared, if their tool is at hand: a shell, xargs and make
always, GNU parallel if it is installed. Of the DAG of Airflow, the flow of Prefect and the workflow of GitHub, only the
syntax is checked, and the names of the tasks; ``bench/pipelines`` runs the flow.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

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


def test_23_the_names_of_a_dag_of_airflow_are_those_of_the_plan(examples: Path) -> None:
    """Airflow is not installed."""
    dag = ast.parse((examples / "airflow/sales_dag.py").read_text())
    words = [word for node in ast.walk(dag) if isinstance(node, ast.Call) for word in node.keywords]
    names = {word.value.value for word in words if word.arg == "task_id" and isinstance(word.value, ast.Constant)}
    assert names == set(yaml.safe_load((examples / "airflow/sales.yaml").read_text())["tasks"])


def test_23_a_workflow_of_github(desk: Desk, examples: Path) -> None:
    """A matrix, files of one job in another, a secret, and a notice of any failure."""
    source = desk.folder / "source"
    for name, text in {"src/star.py": "", "tests/unit.sh": "echo unit", "tests/api.sh": "echo api"}.items():
        desk.write(f"source/{name}", text)
    desk.git("source", "init", "--quiet")
    desk.git("source", "add", ".")
    desk.git("source", "commit", "--quiet", "--message=first")
    desk.git("source", "tag", "v1")
    plan = f"run {examples}/github-actions/release.yaml --set repository={source} --plain"
    said = desk.sh(f"{plan} --set tag=v1 --id one --result publish", RELEASE_TOKEN="a-long-secret")
    assert said == "v1 released with 1 file\n"
    assert "notify cancelled: not needed" in desk.said
    desk.sh("plan get one test report -o reports")
    assert len(list((desk.folder / "reports").iterdir())) == 4
    desk.write("source/tests/api.sh", "exit 3")
    desk.git("source", "commit", "--quiet", "--all", "--message=second")
    desk.git("source", "tag", "v2")
    said = desk.sh(f"{plan} --set tag=v2 --id two", code=2, RELEASE_TOKEN="a-long-secret")
    assert "v2 was not released" in said
    assert "publish cancelled" in said
    desk.sh("plan get two test report -o failed")
    assert len(list((desk.folder / "failed").iterdir())) == 4


def test_23_the_jobs_of_a_workflow_of_github_are_those_of_the_plan(examples: Path) -> None:
    """GitHub alone can run it."""
    workflow = yaml.safe_load((examples / "github-actions/release.yml").read_text())
    plan = yaml.safe_load((examples / "github-actions/release.yaml").read_text())
    assert set(plan["tasks"]) == {*workflow["jobs"], "checkout"}
    assert plan["tasks"]["test"]["matrix"] == workflow["jobs"]["test"]["strategy"]["matrix"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_23_a_makefile(desk: Desk, examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has changed is made again."""
    monkeypatch.chdir(examples / "make")
    subprocess.run(["make"], check=True, capture_output=True)
    made = contents(examples / "make/build")
    shutil.rmtree(examples / "make/build")
    first = desk.sh("run site.yaml --plain")
    assert contents(examples / "make/build") == made
    assert "unchanged" not in first
    assert (examples / "make/build/index.html").read_text() == (
        "<h1>Stars</h1>\n<p>Vega</p>\n<h1>Stars</h1>\n<p>Deneb</p>\n"
    )
    (examples / "make/pages/swan.txt").write_text("<p>Albireo</p>\n")
    again = desk.sh("run site.yaml --plain")
    assert again.count("is unchanged") == 1
    assert "page[pages/lyra.txt] is unchanged" in again
    assert "Albireo" in (examples / "make/build/index.html").read_text()


def test_23_a_night_of_cron(desk: Desk, examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same backups, at the same time; and what the script leaves undone when a database cannot be read."""
    folder = examples / "cron"
    monkeypatch.chdir(folder)
    old = folder / "backups/orders-2026-11-01.gz"

    def an_old_copy() -> None:
        old.parent.mkdir()
        old.touch()
        os.utime(old, (0, 0))

    an_old_copy()
    subprocess.run(["sh", "backup.sh", "2026-11-17"], check=True)
    packed = contents(folder / "backups")
    assert packed.keys() == {"orders-2026-11-17.gz", "users-2026-11-17.gz"}
    shutil.rmtree(folder / "backups")
    an_old_copy()
    desk.sh("run backup.yaml --tick 2026-11-17")
    assert contents(folder / "backups") == packed

    *variables, line = [line for line in (folder / "crontab").read_text().splitlines() if not line.startswith("#")]
    zone = dict(variable.split("=") for variable in variables)["CRON_TZ"]
    desk.sh("store init")
    desk.sh(f"schedule add backup --cron '{' '.join(line.split()[:5])}' --timezone {zone} --plan backup.yaml")
    assert desk.sh("schedule next backup -n 1").split()[1:3] == ["03:15:00", "CET"]

    orders = (folder / "orders.db").rename(folder / "away.db")
    assert subprocess.run(["sh", "backup.sh", "2026-11-18"], check=False, stderr=subprocess.DEVNULL).returncode == 1
    assert not (folder / "backups/users-2026-11-18.gz").exists()
    plan = folder / "backup.yaml"
    plan.write_text(plan.read_text().replace("backoff: 1m", "backoff: 10ms"))
    said = desk.sh("run backup.yaml --tick 2026-11-18 --id night --plain", code=2)
    assert "no backup of 2026-11-18" in said
    assert (folder / "backups/users-2026-11-18.gz").exists()
    orders.rename(folder / "orders.db")
    said = desk.sh("plan retry night --plain")
    assert "pack[orders] started" in said
    assert "pack[users] started" not in said


@pytest.mark.parametrize("original", ["with-xargs.sh", "with-parallel.sh"])
def test_23_a_command_for_each_line(desk: Desk, examples: Path, monkeypatch: pytest.MonkeyPatch, original: str) -> None:
    folder = examples / "parallel"
    monkeypatch.chdir(folder)
    subprocess.run(["sh", "-n", original], check=True)
    if original == "with-parallel.sh" and shutil.which("parallel") is None:
        return  # not installed: only its syntax is checked
    said = subprocess.run(["sh", original], check=True, capture_output=True, text=True).stdout
    small = contents(folder / "small")
    assert small["castle.txt"] == b"castle as "
    shutil.rmtree(folder / "small")
    assert desk.sh("run pictures.yaml --result count").strip() == said.strip() == "3"
    assert contents(folder / "small") == small


def test_23_a_flow_of_prefect(desk: Desk, examples: Path) -> None:
    """An alarm in both, if an element fails."""
    compile((examples / "prefect/sales_flow.py").read_text(), "sales_flow.py", "exec")
    plan = examples / "prefect/sales.yaml"
    assert desk.sh(f"run {plan} --set shops=3 --id day --result report") == "3\n"
    desk.sh("plan get day report report -o out")
    assert (desk.folder / "out/report.txt").read_text() == "3\n"
    broken = plan.with_name("broken.yaml")
    broken.write_text(
        plan.read_text().replace("retries: 2", "retries: 0").replace("shell: echo", "shell: exit 3; echo")
    )
    said = desk.sh(f"run {broken} --set shops=3 --plain", code=2)
    assert "no report of 2026-11-17" in said


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
