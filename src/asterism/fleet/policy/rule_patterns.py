"""Patterns in a device policy: names with ``*`` and ``?``, and hosts with ports, schemes and networks."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from functools import lru_cache

# -- patterns of names -------------------------------------------------------------------------------------------------


def is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, separator: str = "") -> re.Pattern[str]:
    """Compile a pattern for use with ``fullmatch``: ``*`` matches any text, ``?`` one character, everything else
    itself. Wildcards do not match ``separator``, in names with parts such as paths. The patterns belong to the device,
    but the names come from others, so the expression never backtracks: no name takes long to compare."""
    any_character = f"[^{re.escape(separator)}]" if separator else "."
    parts = pattern.split(separator) if separator else [pattern]
    return re.compile(re.escape(separator).join(_part(part, any_character) for part in parts), re.DOTALL)


def _part(text: str, any_character: str) -> str:
    """The first match of the text between two stars is as good as any later one, so no backtracking is needed."""
    first, *rest = ("".join(any_character if c == "?" else re.escape(c) for c in chunk) for chunk in text.split("*"))
    if not rest:
        return first
    between = "".join(f"(?>{any_character}*?{chunk})" for chunk in rest[:-1] if chunk)
    return f"{first}{between}{any_character}*{rest[-1]}"


class NamePatterns:
    """A list of names and patterns; ``name in patterns`` says whether one of them matches."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        each = "|".join(f"(?:{compile_pattern(entry).pattern})" for entry in entries)
        self._expression = re.compile(each, re.DOTALL) if entries else None

    def __contains__(self, name: object) -> bool:
        return self._expression is not None and isinstance(name, str) and self._expression.fullmatch(name) is not None


# -- hosts -------------------------------------------------------------------------------------------------------------

DEFAULT_PORTS = {"http": 80, "https": 443}
_ENTRY = re.compile(r"(?:(https?)://)?(\[[^\]]*\]|[^\[\]:]+)(?::(\*|[0-9]{1,5}))?", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9_*?-]+(\.[a-z0-9_*?-]+)*")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class HostRule:
    """One entry of ``hosts``: ``*.example.org:8443``, ``https://api.example.org``, ``10.0.0.0/8:*``, ``[::1]``, ``*``.

    Without a port (None) it allows the default port of the scheme; ``:*`` (-1) allows any. Without a scheme it allows
    both. ``*.example.org`` does not match ``example.org``. A name pattern never matches a numeric address: ``127.*`` is
    not a network, and ``127.example.org`` is not an address in one. Only ``*`` matches both."""

    scheme: str | None
    names: re.Pattern[str] | None
    network: Network | None
    port: int | None
    pattern: bool = False
    """Whether it is a pattern of names, other than ``*``."""

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Raises ValueError that says what to write."""
        parts = _ENTRY.fullmatch(text)
        if parts is None:
            raise ValueError("must be host or host:port, optionally with http:// or https:// before it")
        scheme = parts[1].lower() if parts[1] else None
        port = None if parts[3] is None else int(parts[3].replace("*", "-1"))
        if port is not None and port > 65535:
            raise ValueError("must have a port of at most 65535")
        names, network = _host_rule(parts[2].lower())
        return cls(scheme, names, network, port, names is not None and is_pattern(parts[2]))

    def allows(self, scheme: str, host: str | Address, port: int) -> bool:
        if self.scheme not in (None, scheme):
            return False
        if port != DEFAULT_PORTS[scheme] if self.port is None else self.port not in (-1, port):
            return False
        if self.network is None:
            return self.names is None or (isinstance(host, str) and self.names.fullmatch(host) is not None)
        return not isinstance(host, str) and host.version == self.network.version and host in self.network

    def trusts(self, name: str, address: str | Address | None, port: int) -> bool:
        """Whether a name may resolve to an address that is not public: the rule names the host or the address, or
        everything."""
        if self.pattern:
            return False
        host = name if self.network is None else address
        return host is not None and any(self.allows(self.scheme or scheme, host, port) for scheme in DEFAULT_PORTS)


_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""Addresses that a NAT64 gateway translates into those of IPv4."""

_UNICAST = ipaddress.ip_network("2000::/3")
"""The only addresses of IPv6 that are handed out. The others are for one network (``64:ff9b:1::/48`` translates into
private addresses of IPv4), or stand for an address of IPv4 in an old way (``::127.0.0.1``)."""


def is_public(address: Address | None) -> bool:
    """Whether an address is one of the public Internet, also if it contains an address of IPv4."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else address.sixtofour
        if inner is not None and not is_public(inner):
            return False
        if address not in _TRANSLATED and address not in _UNICAST:
            return False
    return address is not None and address.is_global and not address.is_multicast


def _host_rule(text: str) -> tuple[re.Pattern[str] | None, Network | None]:
    if text == "*":
        return None, None
    if text.startswith("["):
        return None, _network(text[1:-1])
    text = text.rstrip(".")
    if "/" in text or _NUMERIC.fullmatch(text):
        return None, _network(text)
    if not _NAME.fullmatch(text):
        raise ValueError("must be the name of a host (in ASCII), an address or a network such as 10.0.0.0/8")
    return compile_pattern(text), None


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"must be an address or a network ({error})") from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        return ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}")
    return network


def parse_host(host: str) -> str | Address | None:
    """The host of a URL as an address, in whatever form it is written, or as a name; None if it is neither."""
    host = host.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        pass
    else:
        return getattr(address, "ipv4_mapped", None) or address
    if _NUMERIC.fullmatch(host):  # 127.1, 0x7f000001 and 2130706433 are 127.0.0.1 too
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    return host if _NAME.fullmatch(host) and "*" not in host and "?" not in host else None
