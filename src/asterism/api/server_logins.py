"""The servers that this user has logged in to: their addresses, tokens and certificate authorities, by name.

They are in one file, which only the user can read. ``--store`` and ``ASTERISM_STORE`` take the name of such a server as
well as its address. $ASTERISM_TOKEN counts before the token in the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from asterism.base.private_file import PrivateDocument, config_folder
from asterism.core.errors import AsterismError
from asterism.core.record import Record, repr_without

TOKEN_VARIABLE = "ASTERISM_TOKEN"
LONGEST_NAME = 100
_ADVICE = "remove it, and log in again: asterism login URL"


class UnknownServer(AsterismError):
    """No server of this name is known here."""


class ServerLogin(Record, forbid_unknown_fields=True):
    """A server and the token for it. ``authority`` is the file with the certificate of a private authority."""

    name: str
    url: str
    token: str
    authority: str | None = None

    def __repr__(self) -> str:
        return repr_without(self, "token")


class ServerLogins:
    """The file of all logins of this user. Several processes may change it at once."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_folder() / "servers.json"
        self._document = PrivateDocument(self.path, _logins, _ADVICE)

    def all(self) -> list[ServerLogin]:
        """All logins by name. Raises UnusableSecret."""
        return self._document.read() or []

    def of_url(self, url: str) -> ServerLogin | None:
        """The login at an address; None if there is none."""
        return next((login for login in self.all() if login.url == url), None)

    def get(self, name: str) -> ServerLogin:
        """The login of this name, or at this address. Raises UnknownServer."""
        logins = self.all()
        for login in logins:
            if name in (login.name, login.url):
                return login
        known = f"known are: {', '.join(login.name for login in logins)}" if logins else "none is known"
        raise UnknownServer(f"no server is called {name!r} here: {known}; log in with: asterism login URL")

    def put(self, login: ServerLogin) -> None:
        """Keep a login durably, in place of an earlier one of this name or address. Raises UnusableSecret."""
        with self._document.locked():
            others = [other for other in self.all() if login.name != other.name and login.url != other.url]
            self._write([*others, login])

    def remove(self, name: str) -> None:
        with self._document.locked():
            self._write([login for login in self.all() if login.name != name])

    def _write(self, logins: list[ServerLogin]) -> None:
        self._document.write({login.name: login.to_json() for login in logins})


def _logins(data: Any) -> list[ServerLogin]:
    return [ServerLogin.from_json({**fields, "name": name}) for name, fields in sorted(data.items())]


def server_url(store: str) -> str | None:
    """The address of the server that ``--store`` names, by its address or by its name; None if it names a store."""
    if store.lower().startswith(("http://", "https://")):
        return store
    if not is_login_name(store):
        return None
    return next((login.url for login in ServerLogins().all() if login.name == store), None)


def is_login_name(text: str) -> bool:
    """Whether a server may have this name: nothing that is the address of a store or the path of a file."""
    return 0 < len(text) <= LONGEST_NAME and all(letter.isalnum() or letter in "-_" for letter in text)


def default_name(url: str) -> str:
    """The name of a server that is not given one: the first part of its host."""
    host = urlsplit(url).hostname or ""
    first = host if host.replace(".", "").isdecimal() or ":" in host else host.partition(".")[0]
    return "".join(letter if letter.isalnum() else "-" for letter in first)[:LONGEST_NAME] or "server"


def token_for(url: str) -> tuple[str, str | None]:
    """The token for the server at an address, empty if there is none, and the file of its certificate authority.
    Raises UnusableSecret."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    kept = ServerLogins().of_url(url)
    if kept is None:
        return token, None
    return token or kept.token, kept.authority
