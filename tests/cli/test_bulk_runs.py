"""`asterism runs create --each`: a run for each line, and labels in every list."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from asterism.cli.run import bulk_runs
from asterism.core.run.run import Run
from asterism.store.protocol import Query
from tests.cli.command_scenes import Scene, completed, started, taken_by
from tests.cli.test_hostile_text import in_terminal
from tests.forked_commands import ForkedCommand


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.workflow("transcode", argv=("ffmpeg", "-i", "{file}"))
    return scene


def lines_of(count: int) -> str:
    return "".join(f'{{"file": "v{number}.mp4", "n": {number}}}\n' for number in range(count))


def runs_in(scene: Scene) -> list[Run]:
    return scene.ask(lambda fleet: fleet.runs(Query()))


def written(scene: Scene, text: str, name: str = "files.jsonl") -> str:
    path = scene.folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_of_json_lines_makes_a_run_of_each(scene: Scene) -> None:
    path = written(scene, "\ufeff" + lines_of(3) + "\n" + '{"file": "last.mp4"}')
    result = scene.run("runs", "create", "transcode", "--each", path, "--label", "{file}", "--priority", "3")
    assert result.exit_code == 0, result.output
    runs = runs_in(scene)
    assert result.stdout.split() == [run.id for run in runs]
    assert [(run.label, run.priority) for run in runs] == [
        *(("v0.mp4", 3), ("v1.mp4", 3), ("v2.mp4", 3)),
        ("last.mp4", 3),
    ]
    assert result.stderr.splitlines() == ["4 runs created.", "Follow them with: asterism runs watch"]


def test_plain_lines_are_the_value_of_one_input(scene: Scene) -> None:
    stdin = "a.mp4\r\n\n{b}.mp4\nc d.mp4"
    asked = ("--each", "-", "--as", "file", "--input", '{"rate": 25, "file": "x"}', "--key", "{file}")
    scene.ok("runs", "create", "transcode", *asked, stdin=stdin)
    assert [(run.input, run.key) for run in runs_in(scene)] == [
        ({"rate": 25, "file": name}, name) for name in ("a.mp4", "{b}.mp4", "c d.mp4")
    ]


def test_as_json_each_run_is_an_object_on_a_line(scene: Scene) -> None:
    asked = ("--each", "-", "--label", "{n}", "--key", "{file}", "--json")
    told = [
        json.loads(line) for line in scene.ok("runs", "create", "transcode", *asked, stdin=lines_of(2)).splitlines()
    ]
    assert told == [
        {"id": run.id, "label": str(number), "key": f"v{number}.mp4"} for number, run in enumerate(runs_in(scene))
    ]


def test_keys_that_are_taken_are_counted(scene: Scene) -> None:
    path = written(scene, lines_of(3))
    scene.create("transcode", {"file": "v1.mp4"}, key="v1.mp4")
    result = scene.run("runs", "create", "transcode", "--each", path, "--key", "{file}")
    assert "2 runs created.\n1 line had the key of a run that exists." in result.stderr
    assert len(set(result.stdout.split())) == 3
    assert len(runs_in(scene)) == 3


def test_the_same_command_creates_anew_once_it_has_ended(scene: Scene) -> None:
    path = written(scene, lines_of(2))
    for _ in range(2):
        scene.ok("runs", "create", "transcode", "--each", path)
    assert len(runs_in(scene)) == 4


@pytest.mark.parametrize(
    ("line", "options", "why"),
    [
        ('{"file": "a"', (), "it is not JSON: Expecting ',' delimiter, column 13"),
        ("a.mp4", (), "it is not JSON: Expecting value, column 1; for plain lines, name the input with --as"),
        ("[1]", (), 'it is a list, not a JSON object (example: {"n": 1})'),
        ('{"file": NaN}', (), "NaN is not JSON"),
        ("[" * 100_000, (), "it is nested too deep"),
        ('{"file": %s}' % ("1" * 5000), (), "it has a whole number with too many digits"),
        ('{"fil": "a"}', (), "workflow 'transcode' needs file, and the input does not have it"),
        ('{"file": "a"}', ("--label", "{nam}"), "'{nam}' names {nam}, but the input has no such field: it has file"),
        ('{"file": "a\\nb"}', ("--key", "{file}"), "key must be a text of 1 to 500 printable characters"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_nothing_is_created(
    scene: Scene, line: str, options: tuple[str, ...], why: str
) -> None:
    path = written(scene, f'{{"file": "v.mp4", "nam": 1}}\n\n{line}\n')
    result = scene.run("runs", "create", "transcode", "--each", path, *options)
    assert result.exit_code == 64
    assert result.stderr.startswith(f"Error: {path}, line 3: {why}")
    assert result.stderr.endswith(". Nothing was created\n")
    assert runs_in(scene) == []


def test_bytes_that_are_no_text_are_named_too(scene: Scene) -> None:
    result = scene.run("runs", "create", "transcode", "--each", "-", "--as", "file", stdin=b"a\n\xff\n")
    assert "standard input, line 2: it is not text in UTF-8. Nothing was created" in result.stderr


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_runs, "LONGEST_LINE", 1_000_000)
    long = f"a\n{'b' * 900_000}\n"
    scene.ok("runs", "create", "transcode", "--each", written(scene, long), "--as", "file")
    assert len(runs_in(scene)) == 2
    path = written(scene, long + "c" * 1_300_000)
    result = scene.run("runs", "create", "transcode", "--each", path, "--as", "file")
    assert result.exit_code == 64
    assert result.stderr == f"Error: {path}, line 3: it is longer than 1,000,000 bytes. Nothing was created\n"
    assert len(runs_in(scene)) == 2


def test_after_a_bad_line_a_repeat_with_keys_creates_what_is_missing(scene: Scene) -> None:
    good = lines_of(1500)
    path = written(scene, good.replace('"n": 1200}', '"n": 1200'))
    words = ("runs", "create", "transcode", "--each", path)
    result = scene.run(*words, "--key", "{file}")
    assert result.exit_code == 64
    assert result.stderr.startswith(
        "1,000 runs created, of lines 1 to 1,000. Repeat the command to create only the runs that are missing.\n"
        f"Error: {path}, line 1,201: it is not JSON"
    )
    assert len(runs_in(scene)) == 1000
    written(scene, good)
    result = scene.run(*words, "--key", "{file}")
    assert "500 runs created.\n1,000 lines had the key of a run that exists." in result.stderr
    assert Counter(run.input["n"] for run in runs_in(scene)) == Counter(range(1500))


def test_without_keys_the_lines_that_are_done_are_named(scene: Scene) -> None:
    result = scene.run("runs", "create", "transcode", "--each", written(scene, lines_of(1000) + "\n{"))
    assert "Repeat the command with the lines after them. (With --key it could be repeated as it is.)" in result.stderr
    assert len(runs_in(scene)) == 1000


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("transcode", "--each", "gone.jsonl"), "gone.jsonl cannot be read: No such file or directory"),
        (("unknown", "--each", "-"), "there is no workflow 'unknown'"),
        (("transcode", "--each", "-", "--wait"), "asterism runs watch --until-done"),
        (("transcode", "--each", "-", "--key", "k"), "'k' gives every run the same key"),
        (("transcode", "--each", "-", "--label", "{"), "'{' is not a valid template"),
        (("transcode", "--as", "file"), "--as belongs to --each"),
        (("transcode", "--input", '{"file": "a"}', "--label", "{n}"), "the input has no such field: it has file"),
    ],
)
def test_mistakes_are_explained(scene: Scene, words: tuple[str, ...], why: str) -> None:
    result = scene.run("runs", "create", *words, stdin="")
    assert result.exit_code != 0
    assert why in result.stderr
    assert runs_in(scene) == []


def test_no_lines_are_no_error(scene: Scene) -> None:
    result = scene.run("runs", "create", "transcode", "--each", "-", stdin="\n\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "standard input has no lines, so no run was created." in result.stderr


def test_a_workflow_may_come_from_a_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = written(scene, "workflows:\n  copy:\n    argv: [cp, '{file}', x]\n", "flows.yaml")
    scene.ok("runs", "create", "--file", path, "--each", "-", "--as", "file", stdin="a\nb\n")
    assert [run.workflow for run in runs_in(scene)] == ["copy", "copy"]


def test_a_terminal_shows_a_bar_and_the_total_and_no_ids(scene: Scene) -> None:
    path = written(scene, lines_of(1200))
    shown, code = in_terminal(scene, ["runs", "create", "transcode", "--each", path], None)
    text = shown.decode()
    assert code == 0, text
    assert "Creating runs" in text
    assert "1,200 runs created." in text
    assert "·[" not in text, "an escape sequence of the bar was cleaned away"
    assert not any(run.id in text for run in runs_in(scene))


# -- interruptions -----------------------------------------------------------------------------------------------------


def kill_often(scene: Scene, kills: int) -> None:
    """Kill the command again and again, at a commit or while it waits for lines, and let it end at last."""
    lines = lines_of(1000 * kills + 500).splitlines(keepends=True)
    words = ["runs", "create", "transcode", "--each", "-", "--label", "{file}", "--key", "{file}"]
    for kill in range(kills):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with ForkedCommand(words, cwd=scene.folder, env=scene.env, **streams) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("".join(lines[1000 * max(0, kill - 1) : 1000 * (kill + 1)]))
            process.stdin.flush()
            if kill % 2:
                process.stdout.readline()  # something is written
            process.kill()
    before = len(runs_in(scene))
    assert before % 1000 == 0, "a batch is written wholly or not at all"
    result = scene.run(*words, stdin="".join(lines))
    assert result.exit_code == 0, result.output
    assert Counter(run.label for run in runs_in(scene)) == Counter(f"v{number}.mp4" for number in range(len(lines)))
    assert f"{len(lines) - before:,} runs created." in result.stderr


def test_three_kills_neither_lose_nor_double_a_run(scene: Scene) -> None:
    kill_often(scene, 3)


@pytest.mark.long
def test_fifty_kills_neither_lose_nor_double_a_run(scene: Scene) -> None:
    kill_often(scene, 50)


@pytest.mark.long
def test_ten_thousand_runs_in_one_go(scene: Scene) -> None:
    result = scene.run("runs", "create", "transcode", "--each", written(scene, lines_of(10_000)), "--label", "{file}")
    assert len(set(result.stdout.split())) == 10_000
    assert "10,000 runs created." in result.stderr


# -- labels in lists ---------------------------------------------------------------------------------------------------


def test_labels_are_listed_and_searched_for(scene: Scene) -> None:
    scene.ok("runs", "create", "transcode", "--input", '{"file": "Straße.mp4"}', "--label", "my {file}")
    scene.ok("runs", "create", "transcode", "--input", '{"file": "b.mp4", "n": 3}')
    first, second = scene.ok("runs", "list").splitlines()[1:]
    assert "my Straße.mp4" in first
    assert "b.mp4, 3" in second
    assert [run["label"] for run in scene.json("runs", "list", "--search", "straße")] == ["my Straße.mp4"]
    assert [run["input"]["n"] for run in scene.json("runs", "list", "--search", "B.MP4")] == [3]
    assert "No run matches." in scene.run("runs", "list", "--search", "nothing").stderr


def test_a_label_is_shown_with_the_run_and_with_its_end(scene: Scene) -> None:
    run = scene.create("transcode", {"file": "a"}, label="the first")
    assert "label    the first" in scene.ok("runs", "show", run.id).replace("label      ", "label    ")
    scene.device("laptop")
    scene.step(run, taken_by("laptop"), started, completed(1))
    assert f"{run.id[-8:]} (the first) completed on laptop" in scene.ok("runs", "wait", run.id)


def test_a_secret_in_an_input_is_not_listed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow("send", argv=("true",), env={"TOKEN": {"secret": "TOKEN"}})
    scene.create("send", {"token": "s3cret-value"})
    assert "s3cret-value" not in scene.ok("runs", "list", TOKEN="s3cret-value")
