"""Where a fleet keeps files: beside a SQLite store, in a part of a shared folder, or nowhere yet, and what to set."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.execution.artifacts import ArtifactProblem
from asterism.fleet.artifact_place import open_place, place_problem
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore


async def test_files_are_beside_a_sqlite_store(tmp_path: Path) -> None:
    async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        assert (await fleet.artifacts()).location == f"{tmp_path}/fleet.db.files"


async def test_stores_have_parts_of_their_own_in_a_shared_folder(tmp_path: Path) -> None:
    shared = tmp_path / "our files"
    shared.mkdir()
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("a", "b")]
    async with await Fleet.open(urls[0]) as fleet, await Fleet.open(urls[1]) as other:
        places = []
        for one in (fleet, other):
            await one.configure(artifacts=shared.as_uri())
            places.append(await one.artifacts())
        names = [place.put([b"the same"]).name for place in places]
        assert names[0] == names[1]
        places[0].remove(names[0], float("inf"))
        assert places[0].open(names[0]) is None
        file = places[1].open(names[1], 4)
        assert file is not None
        with file:
            assert file.read() == b"same"
        await fleet.configure(artifacts=None)
        assert (await fleet.artifacts()).location == f"{tmp_path}/a.db.files"


async def test_a_store_without_a_folder_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "files_folder", None)
    with pytest.raises(ArtifactProblem, match="'asterism fleet set --artifacts file:///shared/folder'"):
        await Fleet(MemoryStore()).artifacts()


def test_a_shared_folder_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    place = open_place(f"file://{tmp_path}/away", "id", lambda: 0.0)
    with pytest.raises(FileNotFoundError, match="away for files is not there: mount it, or make it"):
        place.put([b"lost"])
    assert not (tmp_path / "away").exists()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://host/x", "'ftp://host/x' is not an address for files"),
        ("/shared", "'/shared' is not an address for files"),
        ("file://shared/x", "is file:/// and its path from the root"),
        ("file:///", "is file:/// and its path from the root"),
        ("s3:///x", "is s3:// and its name"),
        ("s3://key:secret@bucket/x", "without a password"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, problem: str) -> None:
    assert problem in (place_problem(url) or "")
    with pytest.raises(ArtifactProblem):
        open_place(url, "id", lambda: 0.0)
