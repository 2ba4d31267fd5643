"""The address of a PostgreSQL store: parses its URL.

``postgresql://user:password@host:port/database?schema=asterism``, with any parameter that PostgreSQL understands.
Several hosts (``//one,two:5433/…``, or ``?host=one,two&port=5432,5433``) are servers of one cluster: they are tried in
turn, each with its share of the time, so that a server that is down does not use up all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from asterism.base.text import masked_url
from asterism.store.store_errors import StoreMissing

SCHEMA = "asterism"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Address:
    """``shown`` is the URL without its passwords. ``hosts`` has the arguments of asyncpg's ``connect``, one set for
    each server."""

    shown: str
    schema: str
    hosts: tuple[dict[str, Any], ...]

    @classmethod
    def parse(cls, url: str, schema: str | None = None) -> Address:
        """Parse a URL. ``schema`` takes precedence over that of the URL. Raises StoreMissing if it is not valid,
        without repeating it: it may contain a password."""
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            name = schema or query.pop("schema", "") or SCHEMA
            login, _, hostlist = parts.netloc.rpartition("@")
            if "@" in parts.path or not url.partition(":")[2].startswith("//"):
                raise ValueError("a misplaced login would be taken for the name of a database")
            hosts = list(_hosts(unquote(hostlist) or query.pop("host", ""), query.pop("port", "")))
        except ValueError:
            raise StoreMissing(
                "the address of the store is not valid; it should look like postgresql://user@host:5432/database, "
                "with anything but letters, digits, '-', '.', '_' and '~' in the password written as %XX"
            ) from None
        if parts.scheme not in ("postgresql", "postgres"):
            raise StoreMissing(f"the address of a store in PostgreSQL begins with postgresql://, not {parts.scheme}://")
        if not _NAME.fullmatch(name):
            raise StoreMissing(
                f"{name!r} is not a valid schema name: use up to 63 lower-case letters, digits and '_', no digit first"
            )
        query.pop("target_session_attrs", None)  # nothing is decided on a replica
        query.pop("schema", None)
        user, _, password = login.partition(":")
        given = {"dsn": urlunsplit(("postgresql", "", parts.path, urlencode(query, safe="/,:"), ""))}
        given |= {"user": unquote(user)} if user else {}
        given |= {"password": unquote(password)} if password else {}
        return cls(masked_url(url), name, tuple(given | host for host in hosts))


def _hosts(names: str, ports: str) -> Iterator[dict[str, Any]]:
    """Yield ``{"host": …, "port": …}`` for each host; an empty one if none is named: asyncpg then uses ``PGHOST``, or
    this machine."""
    numbers = [int(port) if port else None for port in ports.split(",")]
    if not names:
        yield {"port": numbers[0]} if numbers[0] is not None else {}
        return
    all_names = names.split(",")
    if len(numbers) not in (1, len(all_names)):
        raise ValueError("the numbers of ports and hosts differ")
    for place, one in enumerate(all_names):
        host, port = _host_and_port(one)
        yield {"host": host, "port": port or numbers[place if len(numbers) > 1 else 0] or 5432}


def _host_and_port(text: str) -> tuple[str, int | None]:
    if text.startswith("/"):
        return text, None
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:]) if rest else None
    host, _, port = text.partition(":")
    return host, int(port) if port else None
