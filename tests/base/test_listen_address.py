"""A certificate that is renewed while the server runs; a key that others can read."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from pathlib import Path

import pytest

from asterism.base import listen_address
from asterism.base.listen_address import CertificateFiles, ListenAddress, renewed_certificate
from asterism.peers.private_files import _new_identity

log = logging.getLogger("asterism.server")


def written(folder: Path) -> ListenAddress:
    """A certificate and its key in two files."""
    text = _new_identity().decode()
    begin = text.index("-----BEGIN CERTIFICATE")
    first, second = (text[:begin], text[begin:]) if begin else text.split("-----BEGIN", 2)[1:]
    certificate, key = (second, first) if "PRIVATE KEY" in first else (f"-----BEGIN{first}", f"-----BEGIN{second}")
    for name, part in (("cert.pem", certificate), ("key.pem", key)):
        (folder / f"{name}.new").write_text(part)
        (folder / f"{name}.new").chmod(0o600)
        (folder / f"{name}.new").replace(folder / name)
    return ListenAddress("127.0.0.1", 0, str(folder / "cert.pem"), str(folder / "key.pem"))


def context_of(address: ListenAddress) -> ssl.SSLContext:
    context = address.tls_context()
    assert context is not None
    return context


async def shown(context: ssl.SSLContext) -> bytes:
    """The certificate that a new connection gets."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(certificate)


def in_file(address: ListenAddress) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(str(address.certificate)).read_text())


async def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    address = written(tmp_path)
    context = context_of(address)
    files = CertificateFiles(address, context, log)
    before = in_file(address)
    assert not files.look()
    written(tmp_path)
    assert await shown(context) == before
    assert files.look()
    assert await shown(context) == in_file(address) != before
    assert not files.look()


async def test_files_that_do_not_fit_together_leave_the_old_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = written(tmp_path)
    context, before, key = context_of(address), in_file(address), (tmp_path / "key.pem").read_text()
    files = CertificateFiles(address, context, log)
    written(tmp_path)
    new = (tmp_path / "key.pem").read_text()
    (tmp_path / "key.pem").write_text(key)
    assert not files.look()
    assert not files.look()
    assert caplog.text.count("the TLS certificate is not read again") == 1
    assert await shown(context) == before
    (tmp_path / "key.pem").write_text(new)
    os.utime(tmp_path / "key.pem", ns=(1, 1))
    assert files.look()
    assert await shown(context) == in_file(address)
    (tmp_path / "cert.pem").unlink()
    assert not files.look()
    assert "no such file" in caplog.text


async def test_a_hangup_signal_reads_the_files_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_address, "LOOK_INTERVAL", 1e9)
    address, reads = written(tmp_path), asyncio.Event()
    context = context_of(address)
    look = CertificateFiles.look

    def looked(self: CertificateFiles, *, again: bool = False) -> bool:
        reads.set()
        return look(self, again=again)

    monkeypatch.setattr(CertificateFiles, "look", looked)
    async with renewed_certificate(address, context, log):
        written(tmp_path)
        signal.raise_signal(signal.SIGHUP)
        await reads.wait()
        assert await shown(context) == in_file(address)


async def test_without_tls_the_hangup_signal_is_left_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with renewed_certificate(ListenAddress("127.0.0.1", 0), None, log):
        assert signal.getsignal(signal.SIGHUP) == before


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
async def test_a_key_that_every_user_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    address = written(tmp_path)
    (tmp_path / "key.pem").chmod(mode)
    async with renewed_certificate(address, context_of(address), log):
        assert (f"every user of this machine can read the key {address.key}: chmod o-r" in caplog.text) is warned
