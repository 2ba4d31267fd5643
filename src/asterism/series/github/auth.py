"""Credentials for GitHub: a token, or an App with its private key, from the environment.

Credentials are never printed: their secrets are left out of ``repr``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asterism.series.register import SeriesError


class NoCredentials(SeriesError):
    """The environment has neither a token nor an App, or they cannot be used."""


@dataclass(frozen=True)
class Credentials:
    """Either a token, or an App: its id, its private key, and its installation if that is known."""

    token: str | None = field(default=None, repr=False)
    app_id: str | None = None
    private_key: str | None = field(default=None, repr=False)
    installation: int | None = None


def credentials_from(environ: Mapping[str, str]) -> Credentials:
    """The App of GITHUB_APP_ID with GITHUB_APP_PRIVATE_KEY or GITHUB_APP_PRIVATE_KEY_FILE; without an App, the token of
    GITHUB_TOKEN or GH_TOKEN. Raises NoCredentials."""
    app = environ.get("GITHUB_APP_ID")
    if app:
        installation = environ.get("GITHUB_APP_INSTALLATION_ID", "")
        if installation and not installation.isdecimal():
            raise NoCredentials(f"GITHUB_APP_INSTALLATION_ID is {installation!r}, but it must be a number")
        return Credentials(None, app, _private_key(environ), int(installation) if installation else None)
    token = (environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or "").strip()
    if not token:
        raise NoCredentials(
            "no credentials for GitHub: set GITHUB_TOKEN, or GITHUB_APP_ID with GITHUB_APP_PRIVATE_KEY_FILE"
        )
    return Credentials(token)


def _private_key(environ: Mapping[str, str]) -> str:
    key, file = environ.get("GITHUB_APP_PRIVATE_KEY"), environ.get("GITHUB_APP_PRIVATE_KEY_FILE")
    if not key and not file:
        raise NoCredentials("GITHUB_APP_ID is set, but neither GITHUB_APP_PRIVATE_KEY nor GITHUB_APP_PRIVATE_KEY_FILE")
    if not key:
        try:
            key = Path(file or "").read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NoCredentials(f"cannot read the private key of the App from {file}: {error}") from None
    key = key.replace("\\n", "\n")  # a variable that takes one line has the line breaks escaped
    if "PRIVATE KEY" not in key:
        raise NoCredentials(
            "the private key of the App is not in PEM form: it begins with -----BEGIN … PRIVATE KEY-----"
        )
    return key
