"""Patterns of files: what they match, and that each folder is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.base.file_patterns import matching_paths

FILES = ("a.c", "b.h", "src/c.c", "src/deep/d.c", "src/deep/e.h", ".hidden/f.c", "src/.g.c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "src" / "link").symlink_to("deep")
    return tmp_path


def matches(pattern: str, folder: Path, hidden: bool = False) -> list[str]:
    return list(matching_paths(pattern, str(folder), lambda: None, hidden=hidden))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.c", ["a.c"]),
        ("**/*.c", ["a.c", "src/c.c", "src/deep/d.c"]),
        ("**/deep/**/*.c", ["src/deep/d.c"]),
        ("src/*/d.c", ["src/deep/d.c", "src/link/d.c"]),
        ("src/link/*", ["src/link/d.c", "src/link/e.h"]),
        ("src/**", ["src", "src/c.c", "src/deep", "src/deep/d.c", "src/deep/e.h"]),
        ("**/", ["", "src/", "src/deep/"]),
        ("s?c/", ["src/"]),
        ("[ab].?", ["a.c", "b.h"]),
        (".hidden/*", [".hidden/f.c"]),
        ("a.c/*", []),
        ("none/**/x", []),
        ("a.c", ["a.c"]),
        ("src/../*.h", ["src/../b.h"]),
    ],
)
def test_what_a_pattern_matches(folder: Path, pattern: str, found: list[str]) -> None:
    assert matches(pattern, folder) == found


def test_an_absolute_pattern_and_hidden_files(folder: Path) -> None:
    assert matches(f"{folder}/*.h", Path("/elsewhere")) == [f"{folder}/b.h"]
    assert matches("**/*.c", folder, hidden=True) == [".hidden/f.c", "a.c", "src/.g.c", "src/c.c", "src/deep/d.c"]


def test_each_folder_is_read_once_and_each_path_told_once(folder: Path) -> None:
    looked = list[int]()
    inner = folder / "d"
    for _ in range(50):
        inner.mkdir()
        inner /= "d"
    for pattern in ("**/d/**/d/**/d", "**/**/d", "**/*/**/d"):
        looked.clear()
        paths = list(matching_paths(pattern, str(folder), lambda: looked.append(1)))
        assert len(paths) == len({*paths}) > 40
        assert len(looked) < 400


@pytest.mark.parametrize("pattern", ["loop/*.c", "l*p/*.c"])
def test_a_folder_that_cannot_be_read_is_told(folder: Path, pattern: str) -> None:
    (folder / "loop").symlink_to("loop")  # nobody can read it, not even root
    told = list[str]()
    assert [*matching_paths(pattern, str(folder), lambda: None, unreadable=lambda path, _: told.append(path))] == []
    assert told == [f"{folder}/loop"]
