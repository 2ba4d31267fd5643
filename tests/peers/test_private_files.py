"""The TLS identity and the tokens of a store: private files, and damage is reported."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import ssl
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from asterism.base.https_session import fingerprint
from asterism.base.private_file import UnusableSecret, write_private
from asterism.core.errors import AsterismError
from asterism.peers.private_files import (
    TlsIdentity,
    Token,
    TokenFile,
    tls_identity,
)
from asterism.store.memory import MemoryStore
from asterism.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with asyncio.Runner() as runner:
        store = runner.run(SqliteStore.open(tmp_path / "laptop.db"))
        yield store
        runner.run(store.close())


def certificate_in(identity: TlsIdentity) -> x509.Certificate:
    return x509.load_pem_x509_certificate(identity.path.read_bytes())


# -- the certificate ---------------------------------------------------------------------------------------------------


def test_a_store_gets_one_identity_and_keeps_it(store: SqliteStore) -> None:
    identity = tls_identity(store)
    assert identity.path == store.path.with_name("laptop.db-identity.pem")
    assert stat.S_IMODE(identity.path.stat().st_mode) == 0o600
    assert tls_identity(store) == identity
    certificate = certificate_in(identity)
    der = ssl.PEM_cert_to_DER_cert(identity.path.read_text().partition("-----END PRIVATE KEY-----\n")[2])
    assert identity.fingerprint == fingerprint(der)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=19 * 365) < left < datetime.timedelta(days=21 * 365)


def test_the_identity_is_private_whatever_the_umask(store: SqliteStore) -> None:
    before = os.umask(0)
    try:
        identity = tls_identity(store)
        TokenFile(store).put("kitchen", Token("token"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.glob("laptop.db-*.*")}
    assert {name: modes[name] for name in (identity.path.name, "laptop.db-peers.json")} == {
        "laptop.db-identity.pem": 0o600,
        "laptop.db-peers.json": 0o600,
    }
    assert not list(store.path.parent.glob(".*"))


def test_concurrent_creations_yield_one_identity(store: SqliteStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: tls_identity(store), range(16)))
    assert len(set(made)) == 1


@pytest.mark.parametrize("file", ["laptop.db-identity.pem", "laptop.db-peers.json"])
def test_a_file_that_others_can_read_is_refused(store: SqliteStore, file: str) -> None:
    tls_identity(store)
    TokenFile(store).put("kitchen", Token("token"))
    path = store.path.with_name(file)
    path.chmod(0o640)
    with pytest.raises(UnusableSecret, match=r"other users can read .* \(mode 0640\).*chmod 600"):
        tls_identity(store) if file.endswith("pem") else TokenFile(store).get("kitchen")


@pytest.mark.parametrize("damage", ["empty", "cut", "binary", "another key"])
def test_a_damaged_identity_is_reported_and_not_replaced(store: SqliteStore, damage: str) -> None:
    identity = tls_identity(store)
    good = identity.path.read_bytes()
    identity.path.unlink()
    other = tls_identity(store).path.read_bytes()
    key, _ = good.split(b"-----BEGIN CERTIFICATE-----")
    bad = {
        "empty": b"",
        "cut": good[: len(good) // 2],
        "binary": b"\xff\xfe" + good,
        "another key": key + b"-----BEGIN CERTIFICATE-----" + other.split(b"-----BEGIN CERTIFICATE-----")[1],
    }[damage]
    write_private(identity.path, bad, replace=True)
    with pytest.raises(UnusableSecret, match="is damaged"):
        tls_identity(store)
    assert identity.path.read_bytes() == bad


def test_a_store_without_a_file_has_no_peers() -> None:
    with pytest.raises(AsterismError, match="only a SQLite file such as"):
        tls_identity(MemoryStore())


def test_a_missing_package_is_named_with_its_extra(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(AsterismError, match="peers need cryptography: install the extra 'peers'"):
        tls_identity(store)
    assert not list(store.path.parent.glob("*.pem"))


def test_an_existing_identity_needs_no_package(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = tls_identity(store)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert tls_identity(store) == identity


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_are_kept_by_the_name_of_the_peer(store: SqliteStore) -> None:
    tokens = TokenFile(store)
    assert tokens.get("kitchen") is None
    tokens.put("kitchen", Token("one"))
    tokens.put("attic", Token("two"))
    tokens.put("kitchen", Token("three"))
    tokens.remove("absent")
    assert (TokenFile(store).get("kitchen"), TokenFile(store).get("attic")) == (Token("three"), Token("two"))
    tokens.remove("attic")
    assert json.loads(store.path.with_name("laptop.db-peers.json").read_text()) == {"kitchen": "three"}


def test_concurrent_writes_of_tokens_lose_none(store: SqliteStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: TokenFile(store).put(f"peer {number}", Token("token")), range(24)))
    assert all(TokenFile(store).get(f"peer {number}") == Token("token") for number in range(24))


@pytest.mark.parametrize("text", ["", "[]", '{"kitchen": 5}', "{", pytest.param("[" * 100_000, id="deep")])
def test_damaged_tokens_are_reported(store: SqliteStore, text: str) -> None:
    write_private(store.path.with_name("laptop.db-peers.json"), text.encode(), replace=True)
    with pytest.raises(UnusableSecret, match="is damaged"):
        TokenFile(store).get("kitchen")
