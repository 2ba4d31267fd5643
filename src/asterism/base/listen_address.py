"""Where a server listens: other machines are answered only over TLS, of its own or of a proxy; and its certificate.

A certificate is renewed every few weeks, and a server that shows the old one is soon refused by all clients. So its
files are read again when they change, and after SIGHUP. Open connections keep what they have; new ones get the new
certificate. Files that do not fit together, since only one of them is written yet, are left alone until they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from asterism.base.clock import beside
from asterism.base.http_limits import Limits
from asterism.base.https_session import is_loopback
from asterism.base.operating_system import add_signal_handler, remove_signal_handler
from asterism.core.errors import AsterismError
from asterism.core.record import replace


class CannotServe(AsterismError):
    """The address cannot be listened on, or must not be without TLS."""


class ListenAddress(NamedTuple):
    """Host and port, and the TLS certificate. With ``behind_proxy`` a proxy does TLS."""

    host: str
    port: int
    certificate: str | None = None
    key: str | None = None
    behind_proxy: bool = False

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def limits(self, limits: Limits) -> Limits:
        """Limits for this address. Behind a proxy, or a tunnel on this machine, all clients have the same address; and
        the connections of a proxy are those of all its clients."""
        if self.behind_proxy:
            return replace(limits, per_address=None, per_client=limits.connections)
        return replace(limits, per_address=None) if self.is_loopback else limits

    def open_socket(self) -> socket.socket:
        """A listening socket. Raises CannotServe."""
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = "another process listens there; stop it, or choose another address"
            else:
                why = str(error)
            raise CannotServe(f"cannot listen on {self.host}:{self.port}: {why}") from None

    def url(self, sock: socket.socket) -> str:
        """The URL of this address; the socket knows the port if it is 0 here."""
        scheme = "https" if self.certificate else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{sock.getsockname()[1]}"

    def tls_context(self) -> ssl.SSLContext | None:
        """None without a certificate. Raises CannotServe."""
        if self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except FileNotFoundError:
            missing = [path for path in (self.certificate, self.key) if path is not None and not Path(path).exists()]
            raise CannotServe(f"no such file: {', '.join(missing)}") from None
        except (OSError, ssl.SSLError) as error:
            raise CannotServe(f"{self.certificate} and {self.key} are not a certificate and its key: {error}") from None
        return context


def parse_listen_address(text: str, certificate: str | None, key: str | None, behind_proxy: bool) -> ListenAddress:
    """From ``host:port``. Raises CannotServe, also for an address that other machines can reach without TLS."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise CannotServe(f"{text!r} is not a valid address to listen on (example: 127.0.0.1:8080)")
    address = ListenAddress(host, int(port), certificate, key, behind_proxy)
    if bool(certificate) != bool(key):
        raise CannotServe("TLS needs a certificate and its key: give both --tls-cert and --tls-key")
    if not (address.is_loopback or certificate or behind_proxy):
        raise CannotServe(
            f"other machines can reach {host}: give --tls-cert and --tls-key, or --behind-proxy if a proxy does TLS"
        )
    return address


# -- its certificate ---------------------------------------------------------------------------------------------------

LOOK_INTERVAL = 10.0
"""Seconds between two looks at the files."""

_Files = tuple[tuple[int, int, int] | None, ...]


class CertificateFiles:
    """The files of the certificate of ``address``, which ``context`` has read."""

    def __init__(self, address: ListenAddress, context: ssl.SSLContext, log: logging.Logger) -> None:
        self._address, self._context, self._log = address, context, log
        self._read = self._state()
        self._failed: _Files | None = None
        self._warn_if_readable()

    def _state(self) -> _Files:
        """What tells whether the files were changed or replaced."""
        states: list[tuple[int, int, int] | None] = []
        for path in (self._address.certificate, self._address.key):
            try:
                status = os.stat(path or "")
                states.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                states.append(None)
        return tuple(states)

    def _warn_if_readable(self) -> None:
        key = self._address.key
        with contextlib.suppress(OSError):
            if key is not None and os.stat(key).st_mode & stat.S_IROTH:
                self._log.warning("every user of this machine can read the key %s: chmod o-r %s", key, key)

    def look(self, *, again: bool = False) -> bool:
        """Read the files if they have changed, or ``again`` in any case. Returns whether they were read."""
        state: _Files | None = self._state()
        if state == self._read and not again:
            return False
        try:
            self._address.tls_context()  # a new one: if the files do not fit together, the old certificate stays
            self._context.load_cert_chain(str(self._address.certificate), self._address.key)
        except (CannotServe, OSError) as error:
            if state != self._failed:
                self._log.warning("the TLS certificate is not read again: %s", error)
            self._failed = state
            return False
        self._read, self._failed = self._state(), None
        self._log.info("read the TLS certificate again: %s", self._address.certificate)
        self._warn_if_readable()
        return True

    async def watch(self, asked: asyncio.Event) -> None:
        """Look from time to time, and when ``asked`` is set, until this is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL):
                    await asked.wait()
            again = asked.is_set()
            asked.clear()
            self.look(again=again)


@contextlib.asynccontextmanager
async def renewed_certificate(
    address: ListenAddress, context: ssl.SSLContext | None, log: logging.Logger
) -> AsyncIterator[None]:
    """While the block runs, ``context`` has the certificate that is in the files of ``address`` now. Without TLS this
    does nothing, and leaves SIGHUP alone."""
    hangup = getattr(signal, "SIGHUP", None)
    if context is None or hangup is None:
        yield
        return
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    files = CertificateFiles(address, context, log)
    with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
        add_signal_handler(loop, hangup, asked.set)
    try:
        async with beside(files.watch(asked)):
            yield
    finally:
        remove_signal_handler(loop, hangup)
