"""Jobs 1, 2, 3, 6 and 8: what failed and why, retries, parameters and lists, failures that are handled, secrets."""

from __future__ import annotations

from tests.jobs.desk import Desk


def test_01_which_of_40_tasks_failed_and_all_that_it_printed(desk: Desk) -> None:
    desk.write(
        "tables.yaml",
        """\
tasks:
  load:
    foreach: {range: [1, 40]}
    shell: for row in 1 2 3; do echo "table $item row $row" >&2; done; test "$item" -ne 17 || exit 3
""",
    )
    said = desk.sh("run tables.yaml --id nightly --plain", code=2)
    assert "load[17] failed: the command exited with 3" in said
    failed = desk.sh("plan show nightly --failed")
    assert "load[17]" in failed
    assert "load[18]" not in failed
    assert desk.sh("plan logs nightly 'load[17]'").splitlines() == [f"table 17 row {row}" for row in (1, 2, 3)]


def test_02_retry_from_the_failure_with_another_command(desk: Desk) -> None:
    desk.write(
        "etl.yaml",
        """\
tasks:
  extract: {shell: "echo once >> extracted; echo 42"}
  load: {shell: "echo no table >&2; exit 1", after: extract}
  report: {shell: 'echo "loaded $rows"', inputs: {rows: {from: load}}, after: load}
""",
    )
    desk.sh("run etl.yaml --id nightly --plain", code=2)
    change = "--set 'load.shell=echo 42 rows' --reason 'the table has another name'"
    said = desk.sh(f"plan retry nightly {change} --plain")
    assert "report" in said
    assert "loaded 42 rows" in said
    assert (desk.folder / "extracted").read_text() == "once\n"
    assert "the table has another name" in desk.sh("plan story nightly load")


def test_03_parameters_files_and_joined_results(desk: Desk) -> None:
    for name in ("b.txt", "a.txt"):
        desk.write(f"in/{name}", f"{name} has a line\n")
    desk.write(
        "count.yaml",
        """\
params:
  unit: {description: what is counted, choices: [l, w]}
tasks:
  count: {foreach: {files: "in/*.txt"}, argv: [sh, -c, 'wc -{params.unit} < "$0"', "{item}"]}
  join: {argv: [echo, "{counts}"], inputs: {counts: {from: count}}, after: count}
""",
    )
    assert desk.sh("run count.yaml --set unit=w --id words --result join") == '["4", "4"]\n'
    assert desk.sh("run count.yaml --set unit=l --id lines --result join") == '["1", "1"]\n'
    desk.sh("run count.yaml --set unit=pages", code=64)
    assert "count.yaml:3: parameter 'unit': must be one of 'l', 'w'" in desk.said
    desk.sh("run count.yaml", code=64)
    assert "--set unit=" in desk.said


def test_06_handlers_cleanups_timeouts_and_retries(desk: Desk) -> None:
    desk.write(
        "deploy.yaml",
        """\
tasks:
  machine: {shell: echo m-7}
  flaky:
    shell: echo try >> tries; test "$(wc -l < tries)" -eq 3
    after: machine
    retries: 2
    backoff: 10ms
  hang: {shell: sleep 600, after: machine, timeout: 100ms}
  by-hand: {shell: echo by hand, handles: hang}
  publish: {shell: echo published, after: [hang, by-hand, flaky], join: any}
  release: {shell: 'echo "$name is free"', inputs: {name: {from: machine}}, teardown: machine}
""",
    )
    said = desk.sh("run deploy.yaml --id deploy --plain")
    assert "State                repaired" in said
    assert (desk.folder / "tries").read_text().count("try") == 3
    assert "hang failed, handled by by-hand" in said
    assert "it exceeded" in said
    assert "m-7 is free" in said
    assert said.index("publish completed") < said.index("release started")


def test_08_secrets_are_not_shown(desk: Desk) -> None:
    desk.write(
        "upload.yaml",
        """\
tasks:
  upload: {shell: 'echo "using $TOKEN" >&2; test "${#TOKEN}" -eq 13', env: {TOKEN: {secret: UPLOAD_TOKEN}}}
""",
    )
    desk.sh("check upload.yaml")
    assert "env.TOKEN needs 'UPLOAD_TOKEN', which is not in the environment now" in desk.said
    said = desk.sh("run upload.yaml --id upload --plain", UPLOAD_TOKEN="a-long-secret")
    seen = said + desk.sh("plan logs upload upload") + desk.sh("plan show upload --json")
    assert "using [secret]" in seen
    assert "a-long-secret" not in seen
    files = [path for path in desk.folder.rglob("*") if path.is_file()]
    # a result is data, which is not masked; what it prints on standard error is text
    assert any(b"using [secret]" in path.read_bytes() for path in files)
    assert not [path for path in files if b"a-long-secret" in path.read_bytes()]
