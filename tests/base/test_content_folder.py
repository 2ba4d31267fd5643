"""Artifacts: content-addressed, streamed, verified; whatever kills the writer leaves nothing half there."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asterism.base import content_store
from asterism.base.content_store import ContentFolder
from asterism.execution import artifacts
from asterism.execution.artifacts import ArtifactProblem, Artifacts
from asterism.execution.working_folder import remove_folder

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
        Artifacts(kept.content).manifest(name)


def test_a_file_that_is_gone_is_one_sentence(kept: Artifacts, work: Path, tmp_path: Path) -> None:
    entry = kept.manifest(kept.keep_outputs(work, OUTPUTS))["log"][0]
    file_of(kept, entry.sha256).unlink()
    with pytest.raises(ArtifactProblem, match="it was removed there"):
        kept.place(entry, tmp_path / "again")
    with pytest.raises(ArtifactProblem, match="is not in"):
        kept.manifest("no hash")


@pytest.mark.parametrize("name", ["a\nb", "a\u00a0b", "fam\u200dily", "two**stars", " ", "...", "-rf", "a\\b"])
def test_a_file_may_have_any_name(kept: Artifacts, tmp_path: Path, name: str) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / name).write_text("odd")
    [entry] = kept.manifest(kept.keep_outputs(tmp_path / "work", {"all": "**/*"}))["all"]
    kept.place(entry, tmp_path / "again")
    assert (tmp_path / "again" / name).read_text() == "odd"


def test_a_name_that_is_not_utf_8_is_refused(kept: Artifacts, work: Path) -> None:
    (work / "\udcff.png").write_text("odd")
    with pytest.raises(ArtifactProblem, match=r"the output 'all' has '\\udcff\.png', whose name is not UTF-8"):
        kept.keep_outputs(work, {"all": "**/*"})


NAME = "0" * 64
PATHS = ("../x", "/x", "a/../../x", ".", "", "a\\u0000b", "\\udcff")


@pytest.mark.parametrize(
    "text",
    [
        *("5", "null", "[]", "no JSON", '{"a": 1}', '{"a": [5]}', '{"a": [["x", 1]]}', "[" * 100_000),
        *(f'{{"a": [["{path}", 1, "{NAME}", 420]]}}' for path in PATHS),
        *(f'{{"a": [["x", {size}, "{name}", {mode}]]}}' for size, name, mode in (
            (-1, NAME, 420), ("1.5", NAME, 420), (1, "../x", 420), (1, NAME, -1), (1, NAME, "null"), ("true", NAME, 1)
        )),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(kept: Artifacts, text: str) -> None:
    name = kept.content.put([text.encode()]).name
    with pytest.raises(ArtifactProblem, match=f"{name} in .* is not the list of the files of a task"):
        kept.manifest(name)


def test_a_list_of_files_that_is_too_long_is_refused_before_any_is_kept(
    kept: Artifacts, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "LARGEST_MANIFEST", 3 * artifacts.ENTRY_SIZE)
    with pytest.raises(ArtifactProblem, match=r"the task has 4 output files, whose list .*: pack them into an archive"):
        kept.keep_outputs(work, OUTPUTS)
    assert not list(kept.content.names())
    monkeypatch.setattr(artifacts, "LONGEST_READ", artifacts.CHUNK)
    name = kept.content.put([b"{" + b" " * artifacts.CHUNK + b"}"]).name
    with pytest.raises(ArtifactProblem, match="is not the list of the files"):
        kept.manifest(name)


def test_a_link_to_a_folder_stands_for_its_files(kept: Artifacts, work: Path) -> None:
    (work / "all").mkdir()
    (work / "all" / "latest").symlink_to("../out")
    files = kept.stored_files(kept.keep_outputs(work, {"all": "all"}))["all"]
    assert [file.path for file in files] == ["all/latest/1.png", "all/latest/2.png", "all/latest/3.png"]


@pytest.mark.parametrize("target", ["..", "/etc"])
def test_a_link_in_a_folder_that_leaves_it_or_has_no_end_is_refused(kept: Artifacts, work: Path, target: str) -> None:
    (work / "out" / "deep").mkdir()
    (work / "out" / "deep" / "link").symlink_to(target)
    why = "to a folder around it" if target == ".." else "which leaves the working folder"
    with pytest.raises(ArtifactProblem, match=f"the output 'all' has the link 'out/deep/link',? {why}"):
        kept.keep_outputs(work, {"all": "out"})


@contextmanager
def folder_of_a_user() -> Iterator[Path]:
    """A folder of a user other than root; the process acts as this user until the end."""
    folder, user = Path(tempfile.mkdtemp()), os.geteuid()
    os.chown(folder, user or 65534, -1)
    os.seteuid(user or 65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        remove_folder(folder)


@pytest.mark.parametrize("pattern", ["out", "**/*", "out/*/a", "out/**/a"])
def test_files_that_cannot_be_read_are_not_left_out_in_silence(kept: Artifacts, pattern: str) -> None:
    with folder_of_a_user() as folder:
        (folder / "out" / "closed").mkdir(parents=True)
        (folder / "out" / "open").mkdir()
        (folder / "out" / "open" / "a").write_text("a")
        (folder / "out" / "closed").chmod(0)
        with pytest.raises(ArtifactProblem, match="the folder 'out/closed' cannot be read"):
            kept.keep_outputs(folder, {"all": pattern})


def test_a_folder_that_may_not_be_written_is_removed() -> None:
    with folder_of_a_user() as folder:
        (folder / "work" / "deep").mkdir(parents=True)
        (folder / "work" / "deep" / "a").write_text("a")
        (folder / "work" / "link").symlink_to("/etc")
        for path in (folder / "work" / "deep", folder / "work"):
            path.chmod(0o555)
        remove_folder(folder / "work")
        assert list(folder.iterdir()) == []


def test_who_may_set_others_rights_is_not_kept(kept: Artifacts, work: Path) -> None:
    (work / "render.log").chmod(0o4755)
    assert kept.manifest(kept.keep_outputs(work, OUTPUTS))["log"][0].mode == 0o755


def test_a_put_mends_what_was_damaged(kept: Artifacts, work: Path) -> None:
    name = kept.keep_outputs(work, OUTPUTS)
    file_of(kept, name).write_text("damaged")
    assert kept.keep_outputs(work, OUTPUTS) == name
    assert kept.manifest(name).keys() == OUTPUTS.keys()


def test_what_is_put_while_two_collect_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    store = ContentFolder(tmp_path, lambda: clock[0])
    name, kept_at, calls = store.put([b"content"]).name, content_store._kept_at, list[Path]()

    def overtaken(path: Path) -> float:
        at = kept_at(path)
        calls.append(path)
        if len(calls) == 1:  # between the look at the file and its removal
            clock[0] = 2000.0
            store.put([b"content"])
            store.remove(name, 1500.0)
        return at

    monkeypatch.setattr(content_store, "_kept_at", overtaken)
    store.remove(name, 1500.0)
    file = store.open(name)
    assert file is not None
    with file:
        assert file.read() == b"content"
    assert len(calls) > 1


@pytest.mark.long
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
    def put_in_place(self: ContentFolder, chunks: Any) -> content_store.Content:
        data = b"".join(chunks)
        path = self.path(hashlib.sha256(data).hexdigest())
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data[:1])
            file.flush()
            os.fsync(file.fileno())
            file.write(data[1:])
        return content_store.Content(path.name, len(data))

    monkeypatch.setattr(ContentFolder, "put", put_in_place)
    wrong, _ = kill_at_every_step(tmp_path, work)
    assert any("half there" in text for text in wrong)
