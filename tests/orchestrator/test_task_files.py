"""Files between tasks of a plan in memory: working folders, inputs at their paths, outputs, failures."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.execution import artifacts
from asterism.execution.artifacts import ArtifactProblem, Artifacts, matching_files
from asterism.orchestrator.devices import LocalDevice, Work
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.orchestrator.result import Result

FRAMES = {"frames": {"files_from": "render.frames"}}
RENDER = "mkdir out; echo one > out/1.png; echo two > out/2.png; chmod 755 out/2.png"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def film(*tasks: Task) -> Constellation:
    plan = Constellation("film")
    plan.add(Task("render", shell=RENDER, outputs={"frames": "out/*.png"}))
    for task in tasks:
        plan.add(task)
    return plan


async def run(plan: Constellation, **options: Any) -> Result:
    device = LocalDevice("here")
    try:
        return await Orchestrator([device], **options).run(plan)
    finally:
        device.close()


def make_text(folder: Path) -> str:
    (folder / "text.txt").write_text("made")
    return "ok"


async def read_all(frames: Path, folder: Path) -> list[str]:
    assert frames == folder
    return sorted(f"{path.relative_to(frames)} {path.stat().st_mode & 0o777:o}" for path in frames.glob("**/*.png"))


async def test_files_lie_at_their_paths_in_a_clean_folder(tmp_path: Path) -> None:
    result = await run(
        film(
            Task("shell", shell='ls -R "$frames"; pwd', inputs=FRAMES),
            Task("words", argv=("cat", "{frames}/out/1.png"), inputs=FRAMES),
            Task("function", call=read_all, inputs=FRAMES),
            Task("plain", shell="pwd"),
        )
    )
    lines = result["shell"].value.splitlines()
    assert lines[0] == f"{lines[-1]}:"
    assert lines[1:-1] == ["out", "", f"{lines[-1]}/out:", "1.png", "2.png"]
    assert result["words"].value == "one"
    assert result["function"].value == ["out/1.png 644", "out/2.png 755"]
    assert result["plain"].value == os.getcwd()


async def test_a_function_has_outputs() -> None:
    plan = film(Task("make", call=make_text, outputs={"text": "*.txt"}))
    plan.add(Task("use", shell="cat text.txt", inputs={"text": {"files_from": "make.text"}}))
    result = await run(plan)
    assert (result["make"].value, result["use"].value) == ("ok", "made")
    (file,) = result["make"].files["text"]
    assert (file.path, file.size, file.read()) == ("text.txt", 4, b"made")


async def test_a_task_may_change_its_inputs() -> None:
    plan = film(Task("spoil", shell="echo no > out/1.png", inputs=FRAMES))
    plan.add(Task("read", shell="cat out/1.png", inputs=FRAMES), after="spoil")
    assert (await run(plan))["read"].value == "one"


async def test_a_missing_output_fails_the_task_and_names_the_pattern() -> None:
    plan = Constellation("film")
    plan.add(Task("render", shell="echo one > 1.jpg", outputs={"frames": "*.png"}))
    result = await run(plan)
    assert result["render"].status == "failed"
    assert "the task ended without its output 'frames': no file matches '*.png'" in result["render"].reason
    assert result["render"].files == {}


async def test_files_of_a_task_that_failed_are_missing() -> None:
    plan = Constellation("film")
    plan.add(Task("render", shell="false", outputs={"frames": "*.png"}))
    plan.add(Task("pack", shell="true", inputs=FRAMES), after={"render": "failure"})
    assert "task 'render' has no files, since it has not completed" in (await run(plan))["pack"].reason


async def test_a_task_that_failed_keeps_the_outputs_that_exist() -> None:
    plan = Constellation("tests")
    plan.add(Task("test", shell="echo report > r.xml; exit 3", outputs={"junit": "r.xml", "log": "*.log"}))
    plan.add(
        Task("report", shell="cat r.xml", inputs={"r": {"files_from": "test.junit"}}), after={"test": "completion"}
    )
    plan.add(Task("log", shell="true", inputs={"l": {"files_from": "test.log"}}), after={"test": "completion"})
    plan.add(Task("half", shell="echo one > 1.txt", outputs={"one": "1.txt", "two": "2.txt"}))
    result = await run(plan)
    assert "exited with 3" in result["test"].reason
    assert [file.read() for file in result["test"].files["junit"]] == [b"report\n"]
    assert result["report"].value == "report"
    assert "the input 'l' has no files: nobody has made the output 'log'" in result["log"].reason
    assert "the task ended without its output 'two'" in result["half"].reason
    assert [file.read() for file in result["half"].files["one"]] == [b"one\n"]


async def test_a_task_keeps_the_files_of_its_last_attempt(tmp_path: Path) -> None:
    line = f"echo more >> {tmp_path}/tries; cp {tmp_path}/tries r.xml; exit 3"
    plan = Constellation("tests")
    plan.add(Task("test", shell=line, outputs={"junit": "r.xml"}, retries=1, backoff=0.01))
    [file] = (await run(plan))["test"].files["junit"]
    assert file.read() == b"more\nmore\n"


async def test_a_group_that_fails_in_part_has_the_files_of_the_elements_that_made_some() -> None:
    plan = Constellation("tests")
    for name, line in {"a": "echo a > a.xml", "b": "echo b > b.xml; false", "c": "false"}.items():
        plan.add(Task(f"test[{name}]", shell=line, outputs={"junit": "*.xml"}))
    elements = ["test[a]", "test[b]", "test[c]"]
    plan.add(Task("test", foreach={"of": elements, "outputs": ["junit"]}), dict.fromkeys(elements, "completion"))
    plan.add(
        Task("report", shell="cat *.xml", inputs={"r": {"files_from": "test.junit"}}), after={"test": "completion"}
    )
    assert (await run(plan))["report"].value == "a\nb"


async def test_a_task_that_exceeds_its_timeout_keeps_the_outputs_that_exist() -> None:
    begun = asyncio.Event()

    async def test(folder: Path) -> None:
        (folder / "r.xml").write_text("report")
        begun.set()
        await asyncio.Event().wait()

    for timeout in (0.25, 1, 4, 16, 64):  # until it has begun in time
        plan = Constellation("tests")
        plan.add(Task("test", call=test, outputs={"junit": "r.xml"}, timeout=timeout))
        plan.add(
            Task("report", shell="cat r.xml", inputs={"r": {"files_from": "test.junit"}}), after={"test": "completion"}
        )
        result = await run(plan)
        if begun.is_set():
            break
    assert "took longer than its timeout" in result["test"].reason
    assert [file.read() for file in result["test"].files["junit"]] == [b"report"]
    assert result["report"].value == "report"


class Stopped(Exception):
    pass


def test_a_search_visits_each_folder_once_and_hears_that_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, folder = [0], tmp_path
    for _ in range(200):
        folder /= "d"
        folder.mkdir()
        (folder / "f").touch()

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stopped

    for pattern in ("**/*", "**/d/**/*", "d/**"):
        left[0] = 5000
        assert len(matching_files(tmp_path, "all", pattern, check)) == 200
    left[0] = 100
    with pytest.raises(Stopped):
        matching_files(tmp_path, "all", "**/*.png", check)
    monkeypatch.setattr(artifacts, "MOST_FILES", 199)
    with pytest.raises(ArtifactProblem, match="the output 'all' has more than 199 files: pack them into an archive"):
        matching_files(tmp_path, "all", "**/*")
    monkeypatch.setattr(artifacts, "MOST_SEARCHED", 100)
    with pytest.raises(ArtifactProblem, match="has looked at 100 paths: name it more closely"):
        matching_files(tmp_path, "all", "**/*.png")


async def test_two_inputs_with_one_path_must_be_the_same_file() -> None:
    plan = film(Task("same", shell=RENDER, outputs={"frames": "out/*.png"}))
    plan.add(Task("other", shell="mkdir out; echo x > out/1.png", outputs={"frames": "out"}))
    both = {"same": {"files_from": "same.frames"}, **FRAMES}
    plan.add(Task("fine", shell="cat out/1.png", inputs=both))
    plan.add(Task("bad", shell="true", inputs={"other": {"files_from": "other.frames"}, **FRAMES}))
    result = await run(plan)
    assert result["fine"].value == "one"
    assert "the inputs 'other' and 'frames' both have a file 'out/1.png', and the two differ" in result["bad"].reason


async def test_a_file_and_a_folder_of_one_name_are_refused() -> None:
    plan = Constellation("films")
    plan.add(Task("one", shell="echo 1 > film", outputs={"film": "film"}))
    plan.add(Task("two", shell="mkdir film; echo 2 > film/part", outputs={"film": "film"}))
    inputs = {name: {"files_from": f"{name}.film"} for name in ("one", "two")}
    plan.add(Task("three", shell="true", inputs=inputs))
    plan.add(Task("four", shell="true", inputs=dict(reversed(inputs.items()))))
    result = await Orchestrator([LocalDevice("here")]).run(plan)
    for task in ("three", "four"):
        assert "cannot be written: another input file, or its folder, has this name" in str(result[task].error)


async def test_a_damaged_file_fails_the_task_that_takes_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def damage() -> None:
        for path in kept.glob("??/*"):
            if path.read_bytes() == b"one\n":
                path.write_bytes(b"0ne\n")

    plan = film(Task("damage", call=damage))
    plan.connect("render", "damage")
    plan.add(Task("pack", shell="true", inputs=FRAMES), after="damage")
    result = await run(plan, artifacts=kept)
    assert "the file 'out/1.png' is damaged" in result["pack"].reason


async def test_folders_are_removed_after_the_end_whatever_it_is(temporary: Path) -> None:
    plan = film(
        Task("fails", shell="echo a > a; false", outputs={"a": "a"}),
        Task("slow", shell="sleep 600", outputs={"a": "a"}, timeout=0.05),
    )
    result = await run(plan)
    assert [path.name[:15] for path in temporary.iterdir()] == ["asterism-files-"]
    assert len(result["render"].files["frames"]) == 2
    del result, plan
    gc.collect()
    assert list(temporary.iterdir()) == []


async def test_files_are_made_anew_by_a_retry() -> None:
    result = await run(
        film(Task("pack", shell='test "$ASTERISM_ATTEMPT" = 2 && echo a > a', outputs={"a": "a"}, retries=1, backoff=0))
    )
    assert result["pack"].files["a"][0].size == 2


async def test_a_plan_that_is_cancelled_stops_to_copy(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping, loop = asyncio.Event(), asyncio.get_running_loop()

    def endless(self: Artifacts, root: Path, outputs: Any, check: Any) -> str:
        loop.call_soon_threadsafe(keeping.set)
        while True:
            check()

    monkeypatch.setattr(Artifacts, "keep_outputs", endless)
    job = asyncio.create_task(run(film()))
    await keeping.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert not any(temporary.glob("asterism-*/work"))


async def test_a_device_that_keeps_no_files_fails_the_task() -> None:
    class Bare:
        id, can, slots = "bare", frozenset[str](), 1

        async def execute(self, work: Work) -> Any:
            return 1

    result = await Orchestrator([Bare()]).run(film())
    assert "device 'bare' does not keep files, and the task has outputs" in result["render"].reason


async def test_a_retried_plan_has_its_files(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    device = LocalDevice("here")
    orchestrator = Orchestrator([device])
    plan = film(Task("pack", shell=f"test -f {flag} && cat out/*.png", inputs=FRAMES))
    first = await orchestrator.run(plan)
    assert first["pack"].status == "failed"
    flag.touch()
    second = await orchestrator.retry(first)
    device.close()
    assert second["pack"].value == "one\ntwo"


def grouped(output: str) -> Constellation:
    """A task takes the files of all elements of a group, which are known while the plan runs."""
    template = {"shell": "echo $index > $name.txt", "env": {"name": output}, "outputs": {"text": "*.txt"}}
    plan = Constellation("film")
    plan.add(Task("scenes", call=lambda: ["castle", "moor"]))
    plan.add(Task("render", foreach={"from": "scenes", "template": template}), after="scenes")
    plan.add(Task("pack", shell="cat *.txt", inputs={"text": {"files_from": "render.text"}}))
    return plan


async def test_a_task_takes_the_files_of_all_elements_of_a_group() -> None:
    result = await run(grouped("{item}"))
    assert (result["pack"].status, result["pack"].value) == ("completed", "0\n1")


async def test_elements_with_different_files_of_one_path_are_refused() -> None:
    reason = (await run(grouped("scene")))["pack"].reason
    assert "two elements in the input 'text' have a file 'scene.txt', and the two differ" in reason
    assert "name it after the element" in reason
