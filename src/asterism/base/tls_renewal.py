"""Renewal of a TLS certificate while a server runs: its files are read again when they change, and after SIGHUP.

A certificate is renewed every few weeks, and a server that shows the old one is soon refused by all clients. Open
connections keep what they have; new ones get the new certificate. Files that do not fit together, since only one of
them is written yet, are left alone until they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import stat
from collections.abc import AsyncIterator

from asterism.base.follow import beside
from asterism.base.listen_address import CannotServe, ListenAddress
from asterism.base.operating_system import add_signal_handler, remove_signal_handler

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
