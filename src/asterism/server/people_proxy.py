"""People whom a proxy has logged in: it names them in a header of each request, and the server believes it alone.

Three things have to hold. The request comes from an address of the proxy; it has the secret that the server shares with
the proxy, since every program on its machine has its address; and the header names one person. A request with the
header from anywhere else is refused, not stripped: either the proxy is set up wrongly, or somebody tries to be somebody
else.

Nothing is stored for a person. Each request is judged anew, by the groups that the proxy names now, and an event stream
ends after ``WORD_LASTS`` seconds, so that the page opens another one. So nobody stays logged in for longer than the
proxy says. What browsers send of their own accord is not enough here either: the page adds a header to each request,
which the pages of other origins cannot.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asterism.api.credentials import MAX_NAME, Credential, check_scopes
from asterism.base.http_limits import RequestRefused
from asterism.core.errors import AsterismError

if TYPE_CHECKING:
    from starlette.requests import Request

PROXY = "proxy"
"""The kind of the credential of such a person. It is in no store."""

SECRET_HEADER = "x-asterism-proxy-secret"
FORWARDED_FOR = "x-forwarded-for"

EVERYBODY = "*"
"""Stands for the group of all people whom the proxy has logged in."""

WORD_LASTS = 300.0
"""After how many seconds an event stream of a person ends."""

MOST_GROUPS = 500
"""How many groups of a person are looked at."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class InvalidProxy(AsterismError, ValueError):
    """Options of the proxy that make no sense."""


@dataclass(frozen=True)
class PeopleProxy:
    """``networks`` are the addresses of the proxy, ``scopes`` what each group may do, ``secret`` is what only the proxy
    and the server know. ``logout`` is where people log
    out."""

    networks: tuple[_Network, ...]
    scopes: Mapping[str, frozenset[str]]
    secret: bytes = field(repr=False)
    user_header: str = "x-forwarded-user"
    groups_header: str = "x-forwarded-groups"
    logout: str | None = None

    def person(self, request: Request) -> Credential | None:
        """The person whom a request names; None if it names none. Raises RequestRefused."""
        headers = request.headers
        if self.user_header not in headers and self.groups_header not in headers:
            return None
        self._check_sender(request)
        if any(len(headers.getlist(name)) > 1 for name in (self.user_header, self.groups_header)):
            raise RequestRefused(400, f"the proxy sent {self.user_header} or {self.groups_header} twice")
        name = clean_name(headers.get(self.user_header, ""))
        listed = _decoded(headers.get(self.groups_header, "")).replace("|", ",").split(",")[:MOST_GROUPS]
        groups = frozenset(filter(None, map(str.strip, listed)))
        scopes = frozenset[str]().union(*(self.scopes.get(group, ()) for group in (*groups, EVERYBODY)))
        if not scopes:
            raise RequestRefused(403, f"you are logged in as {name}, but none of your groups may do anything here")
        identity = f"{PROXY}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        return Credential(identity, name, "", PROXY, 0.0, PROXY, math.inf, scopes=scopes, groups=groups)

    def is_sender(self, request: Request) -> bool:
        """Whether the proxy sent a request."""
        peer = None if request.client is None else _address(request.client.host)
        if peer is None or not any(peer in network for network in self.networks):
            return False
        shown = request.headers.getlist(SECRET_HEADER)
        return len(shown) == 1 and hmac.compare_digest(shown[0].encode(), self.secret)

    def client_address(self, request: Request) -> str | None:
        """The address that the proxy names: the last one, since a client may have sent others."""
        shown = request.headers.getlist(FORWARDED_FOR) if self.is_sender(request) else []
        address = _address(shown[-1].rpartition(",")[2].strip()) if shown else None
        return None if address is None else str(address)

    def _check_sender(self, request: Request) -> None:
        if not self.is_sender(request):
            raise RequestRefused(403, f"only the proxy of this server may send {self.user_header}")


def _decoded(text: str) -> str:
    """The text of a header. Servers read headers as Latin-1; proxies send UTF-8."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def clean_name(text: str) -> str:
    """The name of a person as stories show it. Raises RequestRefused for one that could mislead a reader."""
    name = " ".join(unicodedata.normalize("NFC", _decoded(text)).split(" ")).strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise RequestRefused(401, f"the proxy named nobody: a name has 1 to {MAX_NAME} printable characters")
    return name


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def parse_networks(texts: Iterable[str]) -> tuple[_Network, ...]:
    """Addresses and networks, such as ``10.0.0.7`` and ``10.1.0.0/16``. Raises InvalidProxy."""
    try:
        return tuple(ipaddress.ip_network(text, strict=True) for text in texts)
    except ValueError as error:
        raise InvalidProxy(f"{error}: give an address such as 10.0.0.7, or a network such as 10.1.0.0/16") from None


def parse_groups(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Scopes by group, from ``GROUP=SCOPE``. Raises InvalidProxy and InvalidScope."""
    scopes: dict[str, frozenset[str]] = {}
    for text in texts:
        group, equals, scope = text.rpartition("=")
        if not equals or not group.strip():
            raise InvalidProxy(f"{text!r} names no group and scope (example: ops=operate)")
        if set(group) & set(",|"):
            raise InvalidProxy(f"the group {group!r} never matches: ',' and '|' separate groups in the header")
        scopes[group.strip()] = scopes.get(group.strip(), frozenset()) | check_scopes([scope])
    return scopes
