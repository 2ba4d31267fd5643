"""Mistakes of newcomers: each is reported early, in clear words, with advice that helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import asterism as package
from tests.cli.cli_scenes import asterism, write
from tests.cli.command_scenes import Scene

SOURCES = Path(package.__file__).parent


# -- files that are going to be written ----------------------------------------------------------------------------


def impossible(folder: Path) -> list[tuple[str, str]]:
    (folder / "file").write_text("x")
    return [
        (str(folder / "absent" / "report.html"), "there is no directory"),
        (str(folder), "it is a directory"),
        (str(folder / "file" / "report.html"), "there is no directory"),
        (str(folder / ("x" * 300)), "File name too long"),
    ]


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    plan = write(tmp_path, f"tasks: {{a: {{argv: [touch, {marker}]}}}}")
    for path, why in impossible(tmp_path):
        result = asterism("run", plan, "--plain", "--report", path)
        assert result.exit_code == 64
        assert "cannot be written" in result.stderr
        assert why in result.stderr
        assert result.stdout == ""
    assert not marker.exists()
    assert asterism("run", plan, "--plain", "--report", str(tmp_path / "report.html")).exit_code == 0
    assert marker.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("resume", "nightly", "--report"),
        ("plan", "standby", "nightly", "--report"),
        ("store", "backup"),
    ],
    ids=" ".join,
)
def test_so_is_every_other_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    scene = Scene(tmp_path).made()
    for path, why in impossible(tmp_path):
        result = scene.run(*words, path)
        assert result.exit_code == 64
        assert why in result.stderr or "is a directory" in result.stderr  # click's own words


# -- plans ---------------------------------------------------------------------------------------------------------


def test_show_finds_the_modules_that_check_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "module_beside_the_plan.py").write_text("def f(): ...")
    (elsewhere / "module_in_the_folder.py").write_text("def f(): ...")
    tasks = "{a: {call: 'module_beside_the_plan:f'}, b: {call: 'module_in_the_folder:f'}}"
    plan = write(tmp_path, f"tasks: {tasks}")
    monkeypatch.chdir(elsewhere)
    for command in ("show", "check"):  # show first: check must not be what makes them known
        result = asterism(command, plan)
        assert (result.exit_code, result.stderr) == (0, ""), command
    missing = write(tmp_path, "tasks: {a: {call: 'module_nowhere:f'}}", "missing.yaml")
    for command in ("show", "check"):
        warned = asterism(command, missing).stderr
        assert "call is 'module_nowhere:f', but no module 'module_nowhere' can be found" in warned, command


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("htp://example.org/x", "a URL begins with http:// or https://, not 'htp://example.org/x'"),
        ("example.org/x", "a URL begins with http:// or https://"),
        ("ftp://ann:hunter2@example.org/x", "not 'ftp://ann:***@example.org/x'"),
        ("http:///x", "has no host"),
        ("https://", "has no host"),
    ],
)
def test_a_url_to_which_nothing_can_be_sent_is_a_mistake_with_its_line(tmp_path: Path, url: str, why: str) -> None:
    plan = write(tmp_path, f"tasks:\n  a:\n    http:\n      method: GET\n      url: {url}\n")
    result = asterism("check", plan)
    assert result.exit_code == 64
    assert f"{plan}:6: task 'a': http.url: " in result.stderr
    assert why in result.stderr

    file = tmp_path / "workflow.yaml"
    file.write_text(f"name: fetch\nhttp:\n  url: {url}\n")
    scene = Scene(tmp_path).made()
    result = scene.run("workflow", "add", "--file", str(file))
    assert result.exit_code == 64
    assert f"{file}:3: http.url: " in result.stderr
    assert why in result.stderr

    result = scene.run("workflow", "add", "fetch", "--http", url)
    assert result.exit_code == 64
    assert why in result.stderr


@pytest.mark.parametrize("url", ["{base}/x", "{scheme}://example.org", "HTTPS://example.org", "http://{host}/"])
def test_a_url_that_inputs_complete_is_none(tmp_path: Path, url: str) -> None:
    text = f'tasks: {{a: {{http: {{url: "{url}"}}, inputs: {{base: b, scheme: http, host: h}}}}}}'
    assert asterism("check", write(tmp_path, text)).exit_code == 0


# -- addresses and advice ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:/ann:hunter2@127.0.0.1",
        "postgresql:ann:hunter2@127.0.0.1",
        "postgresql//ann:hunter2@127.0.0.1/fleet",
        "postgresql:///ann:hunter2@127.0.0.1",
        "postgresql://ann:hunter2@127.0.0.1:1/fleet",
        "postgresql://ann:hun/ter2@hunter2@127.0.0.1:1/fleet",
        "postgresql://127.0.0.1:1/fleet?user=ann&password=hunter2",
        "mysql://ann:hunter2@db/fleet",
        "sqlite:ann:hunter2@db",
        "sqlite:/ann:hunter2@db",
        "memory:ann:hunter2@db",
        "//ann:hunter2@db/fleet",
        "ann:hunter2@db/fleet",
    ],
)
def test_no_address_of_a_store_shows_its_password(tmp_path: Path, url: str) -> None:
    device = ("device", "join", "laptop", "--store-wait", "0s")
    for words in (("runs", "list"), ("store", "info"), device, ("series", "status")):
        result = Scene(tmp_path).run(*words, "--store", url)
        assert result.exit_code != 0
        assert "hunter2" not in result.output


def test_no_other_address_does(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    scene.ok("fleet", "set", "--notify-url", "https://ann:hunter2@example.org/x?token=hunter2")
    scene.ok("workflow", "add", "fetch", "--http", "https://ann:hunter2@example.org/x")
    plan = write(tmp_path, "tasks: {a: {http: {url: 'https://ann:hunter2@example.org/x'}}}")
    for words in (("fleet", "show"), ("workflow", "list"), ("workflow", "show", "fetch"), ("show", plan)):
        told = scene.ok(*words)
        assert "example.org/x" in told, words
        assert "hunter2" not in told, words
    for words in (
        ("series", "status", "--remote", "ssh://ann:hunter2@127.0.0.1:1/x"),
        ("peer", "accept", "htps://a:hunter2@b#x.y.z"),
    ):
        assert "hunter2" not in scene.run(*words).output, words


def test_advice_about_extras_names_no_package_of_an_index() -> None:
    indexed_package = re.compile(r"pip install\s+(?!'\.\[)|asterism\[[a-z]")
    places = [
        f"{path.relative_to(SOURCES)}:{number}"
        for path in SOURCES.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if indexed_package.search(line)
    ]
    assert places == []
