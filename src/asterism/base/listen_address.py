"""Where a server listens, and the rule for it: other machines are answered only over TLS, of its own or of a proxy."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from asterism.base.http_limits import Limits
from asterism.base.https_session import is_loopback
from asterism.core.errors import AsterismError


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
