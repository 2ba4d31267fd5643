"""File ownership: files that another user has planted beside a store are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from asterism.base import private_file
from asterism.base.private_file import UnusableSecret, read_private
from asterism.peers.private_files import Token, TokenFile, tls_identity
from asterism.store.sqlite.blob_files import Blobs
from asterism.store.store_errors import StoreUnwritable
from tests.store.sqlite_fixtures import opened

NOBODY = 65534
Give = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Make another user own a file. Only root can; otherwise we pretend to be another user."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        else:
            monkeypatch.setattr(private_file, "trusted_owners", lambda folder: frozenset({0, NOBODY}))

    return give


def blobs(folder: Path) -> Blobs:
    (folder / "fleet.db").touch(mode=0o600)
    return Blobs(folder / "fleet.db.blobs", lambda: 1000.0)


def test_a_planted_folder_of_blobs_is_neither_written_nor_read(tmp_path: Path, give_away: Give) -> None:
    mine = blobs(tmp_path)
    name = mine.keep(b"mine")
    assert mine.read(name) == b"mine"
    give_away(tmp_path / "fleet.db.blobs")
    uses: list[Callable[[], object]] = [
        lambda: mine.keep(b"secret"),
        lambda: mine.read(name),
        lambda: list(mine.names()),
        lambda: mine.sweep(2000.0),
        lambda: mine.remove(name, 2000.0),
    ]
    for use in uses:
        with pytest.raises(StoreUnwritable, match="belongs to another user"):
            use()
    assert len(list((tmp_path / "fleet.db.blobs").glob("??/*"))) == 1


def test_a_planted_link_to_a_folder_is_refused_and_a_link_of_ours_is_not(tmp_path: Path, give_away: Give) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "fleet.db.blobs"
    link.symlink_to(elsewhere)
    mine = blobs(tmp_path)
    assert mine.read(mine.keep(b"mine")) == b"mine"
    give_away(link)
    with pytest.raises(StoreUnwritable, match="belongs to another user"):
        mine.keep(b"secret")


def test_a_folder_of_a_member_of_the_stores_group_is_used(tmp_path: Path, give_away: Give) -> None:
    mine = blobs(tmp_path)
    name = mine.keep(b"ours")
    give_away(tmp_path / "fleet.db.blobs")
    (tmp_path / "fleet.db").chmod(0o660)
    os.chown(tmp_path / "fleet.db", -1, (tmp_path / "fleet.db.blobs").stat().st_gid)
    assert blobs(tmp_path)._store_is_shared()
    mine.check()
    assert name


def test_a_planted_file_in_place_of_a_blob_is_not_followed_and_does_not_hang(tmp_path: Path) -> None:
    mine = blobs(tmp_path)
    name = mine.keep(b"mine")
    file = tmp_path / "fleet.db.blobs" / name[:2] / name
    for plant in (lambda: file.symlink_to(tmp_path / "fleet.db"), lambda: os.mkfifo(file)):
        file.unlink()
        plant()
        with pytest.raises(Exception, match="out of reach") as caught:
            mine.read(name)
        assert type(caught.value).__name__ == "StoreUnavailable"


async def test_a_planted_identity_or_token_file_is_refused(tmp_path: Path, give_away: Give) -> None:
    async with opened(tmp_path / "laptop.db") as store:
        identity = tls_identity(store)
        TokenFile(store).put("kitchen", Token("token"))
        assert tls_identity(store) == identity
        give_away(identity.path)
        with pytest.raises(UnusableSecret, match="belongs to another user"):
            tls_identity(store)
        tokens = tmp_path / "laptop.db-peers.json"
        give_away(tokens)
        with pytest.raises(UnusableSecret, match="belongs to another user"):
            TokenFile(store).get("kitchen")


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"x")
    real.chmod(0o600)
    assert read_private(real) == b"x"
    link.symlink_to(real)
    with pytest.raises(UnusableSecret, match="is a link"):
        read_private(link)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UnusableSecret, match="not a regular file"):
        read_private(tmp_path / "pipe")


def test_without_the_check_the_folder_of_another_user_would_be_used(
    tmp_path: Path, give_away: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation of the check."""
    mine = blobs(tmp_path)
    mine.keep(b"mine")
    give_away(tmp_path / "fleet.db.blobs")
    monkeypatch.setattr(Blobs, "check", lambda self: None)
    mine.keep(b"secret")
    assert len(list((tmp_path / "fleet.db.blobs").glob("??/*"))) == 2
