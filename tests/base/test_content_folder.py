"""Artifacts: content-addressed, streamed, verified; whatever kills the writer leaves nothing half there."""

from __future__ import annotations

import hashlib
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.base import content_folder
from asterism.base.content_folder import ContentFolder
from asterism.execution import artifacts
from asterism.execution.artifacts import ArtifactProblem, Artifacts

OUTPUTS = {"frames": "out/*.png", "log": "render.log"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "1.png").write_bytes(b"one")
    (folder / "out" / "2.png").write_bytes(b"two")
    (folder / "out" / "3.png").write_bytes(b"one")
    (folder / "render.log").write_text("done")
    (folder / "render.log").chmod(0o755)
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> Artifacts:
    return Artifacts(ContentFolder(tmp_path / "kept", time.time))


def file_of(kept: Artifacts, name: str) -> Path:
    assert isinstance(kept.content, ContentFolder)
    return kept.content.path(name)


def damaged(folder: Path) -> list[Path]:
    """The files under a final name whose content does not match it."""
    files = [path for path in folder.glob("??/*") if path.is_file()]
    return [path for path in files if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]


def test_a_manifest_lists_every_file_and_restores_it(kept: Artifacts, work: Path, tmp_path: Path) -> None:
    manifest = kept.manifest(kept.keep_outputs(work, OUTPUTS))
    assert [(entry.path, entry.size) for entry in manifest["frames"]] == [
        ("out/1.png", 3), ("out/2.png", 3), ("out/3.png", 3)
    ]  # fmt: skip
    assert manifest["log"][0] == ("render.log", 4, hashlib.sha256(b"done").hexdigest(), 0o755)
    for entry in (*manifest["frames"], *manifest["log"]):
        kept.place(entry, tmp_path / "again")
    assert (tmp_path / "again/out/2.png").read_bytes() == b"two"
    assert (tmp_path / "again/render.log").stat().st_mode & 0o777 == 0o755


def test_the_same_content_is_stored_once(kept: Artifacts, work: Path) -> None:
    first = kept.keep_outputs(work, OUTPUTS)
    count = len(list(kept.content.names()))
    assert count == 4  # two pictures, the log, the manifest
    assert kept.keep_outputs(work, OUTPUTS) == first
    assert len(list(kept.content.names())) == count


def test_other_content_under_the_same_name_is_another_version(kept: Artifacts, work: Path) -> None:
    first = kept.keep_outputs(work, OUTPUTS)
    (work / "render.log").write_text("again")
    second = kept.keep_outputs(work, OUTPUTS)
    assert kept.stored_files(first)["log"][0].read() == b"done"
    assert kept.stored_files(second)["log"][0].read() == b"again"


def test_a_folder_stands_for_all_files_in_it(kept: Artifacts, work: Path) -> None:
    (work / "out" / "deep").mkdir()
    (work / "out" / "deep" / "a").write_text("a")
    files = kept.stored_files(kept.keep_outputs(work, {"all": "out"}))["all"]
    assert [file.path for file in files] == ["out/1.png", "out/2.png", "out/3.png", "out/deep/a"]


def test_two_stars_stand_for_all_files(kept: Artifacts, work: Path) -> None:
    files = kept.stored_files(kept.keep_outputs(work, {"all": "**/*"}))["all"]
    assert [file.path for file in files] == ["out/1.png", "out/2.png", "out/3.png", "render.log"]


def test_a_missing_output_names_its_pattern(kept: Artifacts, work: Path) -> None:
    with pytest.raises(ArtifactProblem, match=r"its output 'film': no file matches '\*\.mp4'"):
        kept.keep_outputs(work, {**OUTPUTS, "film": "*.mp4"})


@pytest.mark.parametrize("pattern", ["link", "folder/*", "folder"])
def test_a_link_that_leaves_the_folder_is_refused(kept: Artifacts, work: Path, tmp_path: Path, pattern: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("key")
    (work / "link").symlink_to(tmp_path / "secret" / "key")
    (work / "folder").symlink_to(tmp_path / "secret")
    with pytest.raises(ArtifactProblem, match="which leaves the working folder"):
        kept.keep_outputs(work, {"a": pattern})
    assert list(kept.content.names()) == []


def test_a_link_inside_the_folder_is_its_file(kept: Artifacts, work: Path) -> None:
    (work / "last").symlink_to("out/2.png")
    assert kept.stored_files(kept.keep_outputs(work, {"a": "last"}))["a"][0].read() == b"two"


def test_a_pipe_is_refused(kept: Artifacts, work: Path) -> None:
    os.mkfifo(work / "pipe")
    with pytest.raises(ArtifactProblem, match="'pipe', which is not a file"):
        kept.keep_outputs(work, {"a": "pipe"})


def test_a_damaged_file_is_one_sentence(kept: Artifacts, work: Path, tmp_path: Path) -> None:
    name = kept.keep_outputs(work, OUTPUTS)
    entry = kept.manifest(name)["log"][0]
    file_of(kept, entry.sha256).write_text("d0ne")
    with pytest.raises(ArtifactProblem, match=r"the file 'render\.log' is damaged: .* restore it from a backup"):
        kept.place(entry, tmp_path / "again")
    assert not (tmp_path / "again/render.log").exists()
    file_of(kept, name).write_text("{}")
    with pytest.raises(ArtifactProblem, match="the list of the files of a task is damaged"):
        kept.manifest(name)


def test_a_file_that_is_gone_is_one_sentence(kept: Artifacts, work: Path, tmp_path: Path) -> None:
    entry = kept.manifest(kept.keep_outputs(work, OUTPUTS))["log"][0]
    file_of(kept, entry.sha256).unlink()
    with pytest.raises(ArtifactProblem, match="it was removed there"):
        kept.place(entry, tmp_path / "again")
    with pytest.raises(ArtifactProblem, match="leaves its folder"):
        kept.place(entry._replace(path="../a"), tmp_path / "again")
    with pytest.raises(ArtifactProblem, match="is not in"):
        kept.manifest("no hash")


def test_memory_does_not_grow_with_the_file(kept: Artifacts, work: Path, tmp_path: Path) -> None:
    size = 64 << 20
    with (work / "large").open("wb") as file:
        file.truncate(size)
    tracemalloc.start()
    try:
        entry = kept.manifest(kept.keep_outputs(work, {"a": "large"}))["a"][0]
        kept.place(entry, tmp_path / "again")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert entry.size == size
    assert peak < 8 * artifacts.CHUNK


# -- kill -9 at every step ---------------------------------------------------------------------------------------------

CALLS = ((os, "fsync"), (os, "utime"), (Path, "replace"), (Path, "mkdir"), (Path, "open"), (Path, "unlink"))
"""The steps that change the disk."""


def keep_and_die(folder: Path, work: Path, step: int, told: int) -> None:
    """In a child: keep the outputs, and be killed before this step; ``told`` gets the manifest once it is kept."""
    left = [step]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return real(*args, **options)

        return call

    for owner, name in CALLS:
        setattr(owner, name, dying(getattr(owner, name)))
    os.write(told, Artifacts(ContentFolder(folder, time.time)).keep_outputs(work, OUTPUTS).encode())
    os._exit(0)


def kill_at_every_step(tmp_path: Path, work: Path) -> tuple[list[str], int]:
    """What is wrong after a kill at each step, until the writer survives; and how many steps there were."""
    wrong: list[str] = []
    for step in range(200):
        folder = tmp_path / f"kept-{step}"
        folder.mkdir()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            keep_and_die(folder, work, step, writer)
        os.close(writer)
        with open(reader, "rb") as pipe:
            acknowledged = pipe.read().decode()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        kept = Artifacts(ContentFolder(folder, time.time))
        wrong += [f"step {step}: {path} is half there" for path in damaged(folder)]
        if acknowledged and not all(file.read() for file in kept.stored_files(acknowledged)["frames"]):
            wrong.append(f"step {step}: lost after it was acknowledged")
        kept.content.sweep(float("inf"))
        wrong += [f"step {step}: {path} stays" for path in folder.glob(".*")]
        if kept.manifest(kept.keep_outputs(work, OUTPUTS)).keys() != OUTPUTS.keys():
            wrong.append(f"step {step}: cannot be kept again")
        if code == 0:
            assert acknowledged
            return wrong, step
    raise AssertionError("it never ended")


def test_a_kill_at_any_step_leaves_nothing_half_there(tmp_path: Path, work: Path) -> None:
    wrong, steps = kill_at_every_step(tmp_path, work)
    assert wrong == []
    assert steps > 15


def test_ablation_without_a_temporary_name_a_kill_leaves_a_half_file(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_in_place(self: ContentFolder, chunks: Any) -> content_folder.Content:
        data = b"".join(chunks)
        path = self.path(hashlib.sha256(data).hexdigest())
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data[:1])
            file.flush()
            os.fsync(file.fileno())
            file.write(data[1:])
        return content_folder.Content(path.name, len(data))

    monkeypatch.setattr(ContentFolder, "put", put_in_place)
    wrong, _ = kill_at_every_step(tmp_path, work)
    assert any("half there" in text for text in wrong)
