"""Which hosts a device talks to: ``example.org``, ``*.example.org:8443``, ``https://api.example.org``,
``10.0.0.0/8:*``, ``[::1]:8080``, ``*``.

Without a port only the scheme's own is meant (80 or 443); ``:*`` means any. ``*.example.org`` is everything below
``example.org`` and not that itself. A pattern of names never stands for a number: ``127.*`` is no way to write a
network, and ``127.example.org`` is none of its addresses. Only ``*`` alone is both.

Names are compared, not what they resolve to: whoever lists a name trusts its owner.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from asterism.fleet.policy.name_patterns import compiled

PORTS = {"http": 80, "https": 443}
_ENTRY = re.compile(r"(?:(https?)://)?(\[[^\]]*\]|[^\[\]:]+)(?::(\*|[0-9]{1,5}))?", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9_*?-]+(\.[a-z0-9_*?-]+)*")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class HostRule:
    """One entry of a policy's ``hosts``. A ``scheme`` of None is both, a ``port`` of None the scheme's, -1 any."""

    scheme: str | None
    names: re.Pattern[str] | None
    network: Network | None
    port: int | None

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Raises ValueError that says what to write."""
        found = _ENTRY.fullmatch(text)
        if found is None:
            raise ValueError("is host or host:port, with https:// before it if that is meant")
        scheme = found[1].lower() if found[1] else None
        port = None if found[3] is None else -1 if found[3] == "*" else int(found[3])
        if port is not None and port > 65535:
            raise ValueError("has a port above 65535")
        names, network = _host_rule(found[2].lower())
        return cls(scheme, names, network, port)

    def allows(self, scheme: str, host: str | Address, port: int) -> bool:
        if self.scheme not in (None, scheme):
            return False
        if port != PORTS[scheme] if self.port is None else self.port not in (-1, port):
            return False
        if self.network is None:
            return self.names is None or (isinstance(host, str) and self.names.fullmatch(host) is not None)
        return not isinstance(host, str) and host.version == self.network.version and host in self.network


def _host_rule(text: str) -> tuple[re.Pattern[str] | None, Network | None]:
    if text == "*":
        return None, None
    if text.startswith("["):
        return None, _network(text[1:-1])
    text = text.rstrip(".")
    if "/" in text or _NUMERIC.fullmatch(text):
        return None, _network(text)
    if not _NAME.fullmatch(text):
        raise ValueError("is the name of a host (in ASCII), an address or a network such as 10.0.0.0/8")
    return compiled(text), None


def _network(text: str) -> Network:
    try:
        found = ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"is no address and no network: {error}") from None
    mapped = getattr(found.network_address, "ipv4_mapped", None)
    if mapped is not None and found.prefixlen >= 96:
        return ipaddress.ip_network(f"{mapped}/{found.prefixlen - 96}")
    return found


def meant(host: str) -> str | Address | None:
    """What a host in a URL stands for: an address, however it is written, or a name; None for what is neither."""
    host = host.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        pass
    else:
        return getattr(address, "ipv4_mapped", None) or address
    if _NUMERIC.fullmatch(host):  # 127.1, 0x7f000001 and 2130706433 reach 127.0.0.1 too
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    return host if _NAME.fullmatch(host) and "*" not in host and "?" not in host else None
