"""Jobs 25 to 27: a nightly ETL in Python, the tests of each push, and a file of two thousand commands."""

from __future__ import annotations

import csv
import os
import signal

import pytest

from tests.cli.cli_scenes import read_until
from tests.jobs.desk import Desk
from tests.process_scenes import ended, soon

ETL = """\
from asterism import Constellation

plan = Constellation("nightly_etl")


@plan.task
def extract(tick: str) -> list[int]:
    with open("extracted", "a") as lines:
        lines.write(f"{tick.date}\\n")
    return [len(tick.date), int(tick.date[-2:])]


@plan.task(timeout=60)
def load(extract: list[int]) -> float:
    return 100 / (extract[1] - 5)


@plan.task
def report(load: float, tick: str) -> str:
    return f"{load:.0f} rows of {tick.date}"
"""


def test_25_a_nightly_etl_in_python(desk: Desk) -> None:
    """Ten days are made up for. One of them fails, is mended in the module, and goes on from the task that failed."""
    desk.write("nightly_etl.py", ETL)
    assert desk.apart("run nightly_etl:plan --tick 2026-11-17 --id by-hand --result report") == "8 rows of 2026-11-17\n"
    desk.apart("schedule add etl --cron '0 3 * * *' --timezone Europe/Berlin --plan nightly_etl:plan")
    with desk.beside("monitor --every 100ms", "device join worker --slots 4") as [_, worker]:
        desk.apart("schedule backfill etl --from 2026-11-01 --to 2026-11-10 --parallel 4", code=1)
        ticks = desk.json("schedule", "ticks", "etl", "--from", "2026-11-01", "--to", "2026-11-10")["items"]
        assert [tick["state"] for tick in ticks] == [*["succeeded"] * 4, "failed", *["succeeded"] * 5]
        [failed] = [tick["work"] for tick in ticks if tick["state"] == "failed"]
        assert "ZeroDivisionError" in desk.sh(f"plan show {failed} --failed")
        desk.write("nightly_etl.py", ETL.replace("extract[1] - 5", "max(1, extract[1] - 5)"))
        assert desk.apart(f"plan retry {failed} --no-local --result report") == "100 rows of 2026-11-05\n"
        assert worker.poll() is None
    ticks = desk.json("schedule", "ticks", "etl", "--from", "2026-11-01", "--to", "2026-11-10")["items"]
    assert [tick["state"] for tick in ticks] == ["succeeded"] * 10
    days = sorted((desk.folder / "extracted").read_text().split())
    assert days == [*(f"2026-11-{day:02}" for day in range(1, 11)), "2026-11-17"]  # each once


CI = """\
overlap: {key: "ci-{params.ref}", policy: replace}
params:
  repository: {description: the git repository, type: text}
  ref: {description: the branch, type: text}
tasks:
  checkout:
    argv: [git, clone, --quiet, --branch, "{params.ref}", "{params.repository}", tree]
    outputs: {tree: tree}
  lint:
    shell: sh -n tree/tests/*.sh
    inputs: {tree: {files_from: checkout.tree}}
  build:
    shell: tar czf star.tgz -C tree src && wc -c < star.tgz
    inputs: {tree: {files_from: checkout.tree}}
    outputs: {package: star.tgz}
  test:
    matrix: {suite: [unit, api], python: ["3.11", "3.14"]}
    shell: tar xzf star.tgz; sh "tree/tests/$suite.sh" "$python" > "$suite-$python.xml"
    inputs: {tree: {files_from: checkout.tree}, package: {files_from: build.package}}
    outputs: {junit: "{matrix.suite}-{matrix.python}.xml"}
  docs:
    shell: cp tree/README manual.txt; echo manual
    inputs: {tree: {files_from: checkout.tree}}
    outputs: {manual: manual.txt}
  summary:
    shell: 'echo "$(cat *.xml | grep -c "<failure") of $(ls *.xml | wc -l) suites failed"'
    inputs: {junit: {files_from: test.junit}}
    after: {test: completion}
  publish:
    shell: wc -c < star.tgz
    inputs: {package: {files_from: build.package}, manual: {files_from: docs.manual}}
    after: [lint, test]
  notify:
    shell: echo "$ref is tested"
    inputs: {ref: "{params.ref}"}
    after: {lint: always, docs: always, publish: always, summary: always}
"""

SUITE = 'echo "<testsuite name=\\"$1\\"/>"\n'
FAILURE = f'if test "$1" = 3.11; then echo "<failure>$1 is too old</failure>"; exit 1; fi\n{SUITE}'


def repository(desk: Desk) -> str:
    """The options with which a push starts the plan of a new repository. Its branch ``main`` passes."""
    for name, text in {"README": "stars\n", "src/star.py": "", "tests/unit.sh": SUITE, "tests/api.sh": SUITE}.items():
        desk.write(f"source/{name}", text)
    desk.write("ci.yaml", CI)
    desk.git("source", "init", "--quiet", "--initial-branch=main")
    commit(desk)
    return f"run ci.yaml --store {desk.url} --plain --set repository={desk.folder}/source"


def commit(desk: Desk, branch: str = "main", **files: str) -> None:
    """Commit scripts of ``tests/`` on a branch, which is a new one from ``main`` unless it is there."""
    desk.git("source", "checkout", "--quiet", "-B", branch)
    for name, text in files.items():
        desk.write(f"source/tests/{name}.sh", text)
    desk.git("source", "add", ".")
    desk.git("source", "commit", "--quiet", "--message=more")


def test_26_a_workflow_of_github_with_eight_jobs(desk: Desk) -> None:
    """A matrix, the reports of tests that fail, and a job that runs always."""
    push = repository(desk)
    said = desk.sh(f"{push} --set ref=main --id good")
    assert "publish completed" in said
    assert "0 of 4 suites failed" in desk.sh("plan show good --json")
    commit(desk, "new", api=FAILURE)
    said = desk.sh(f"{push} --set ref=new --id bad --result notify", code=2)
    assert said == "new is tested\n"
    assert "test failed: 1 of 4 elements failed: test[api,3.11]" in desk.said
    document = {task["id"]: task for task in desk.json("plan", "show", "bad")["tasks"]}
    assert document["summary"]["result"] == "1 of 4 suites failed"
    assert document["publish"]["status"] == "cancelled"
    assert "test[api,3.11]" in desk.sh("plan show bad --failed")
    desk.sh("plan get bad test[api,3.11] junit -o junit")
    [report] = (desk.folder / "junit").iterdir()
    assert "3.11 is too old" in report.read_text()
    desk.sh("plan get bad test junit -o all")
    assert len(list((desk.folder / "all").iterdir())) == 4


def test_26_a_push_replaces_the_tests_of_its_branch_and_of_no_other(desk: Desk) -> None:
    push = repository(desk)
    for branch in ("slow", "other"):
        os.mkfifo(desk.folder / branch)
        hangs = f'test "$1" != 3.11 || cat {desk.folder}/{branch}'
        commit(desk, branch, unit=f"{hangs}\n{SUITE}")
        desk.git("source", "checkout", "--quiet", "main")
    [first, other] = ((*push.split(), "--set", f"ref={branch}", "--id", f"{branch}-1") for branch in ("slow", "other"))
    with desk.process(*first) as replaced, desk.process(*other) as kept:
        for process in (replaced, kept):
            read_until(process, "test[unit,3.11] started")
        desk.git("source", "checkout", "--quiet", "slow")
        commit(desk, "slow", unit=SUITE)
        assert "slow is tested" in desk.sh(f"{push} --set ref=slow --id slow-2")
        assert ended(replaced)[0] == 130
        (desk.folder / "other").write_text("go on\n")
        assert ended(kept)[0] == 0
    assert "slow-1" in desk.sh("plan list --state cancelled")


JOB = """\
echo "$1" >> begun
test "$1" -le 12 || test -e open || read word < gate
test -e fixed || test $(($1 % 50)) -ne 7 || exit 3
echo "picture $1"
"""


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.long)])
def test_27_two_thousand_commands_eight_at_a_time(desk: Desk, count: int) -> None:
    """Stopped with Ctrl-C while the thirteenth to the twentieth wait, resumed, and what failed is done again."""
    failing = [f"each[sh job {number}]" for number in range(7, count + 1, 50)]
    desk.write("job", JOB)
    desk.write("commands.txt", "".join(f"sh job {number}\n" for number in range(1, count + 1)))
    desk.write("jobs.yaml", f"tasks:\n  each: {{foreach: {{lines: commands.txt, max: {count}}}, shell: $item}}\n")
    os.mkfifo(desk.folder / "gate")
    begun = desk.folder / "begun"
    with desk.terminal("run", "jobs.yaml", "--id", "jobs", "--store", desk.url, "--concurrency", "8") as terminal:
        terminal.shows(r"\d+ %, about .* left")
        soon(lambda: begun.exists() and len(begun.read_text().split()) == 20)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait() == 130
    assert "at rest" in desk.sh("plan list")
    (desk.folder / "open").touch()
    desk.sh("resume jobs --plain --concurrency 8", code=2)
    assert f"{len(failing)} of {count} elements failed" in desk.said
    failed = desk.sh("plan show jobs --failed")
    assert all(name in failed for name in failing)
    (desk.folder / "fixed").touch()
    desk.sh("plan retry jobs --plain --concurrency 8")
    assert len(begun.read_text().split()) == count + 8 + len(failing)  # no other command was begun twice
    rows = list(csv.DictReader(desk.sh("plan show jobs --csv").splitlines()))
    assert {row["status"] for row in rows if row["id"] != "each"} == {"completed"}
    assert len(rows) == count + 1
    [each] = [task for task in desk.json("plan", "show", "jobs")["tasks"] if task["id"] == "each"]
    assert each["result"] == [f"picture {number}" for number in range(1, count + 1)]
