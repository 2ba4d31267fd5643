"""Who asks GitHub: a token, as people and workflows have one, or an App with its private key.

Nothing here is ever printed: the credentials have no text form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asterism.series.register import SeriesError

DEFAULT_API = "https://api.github.com"


class NoCredentials(SeriesError):
    """There is neither a token nor an App to ask GitHub with, or what there is cannot be used."""


class BadRepository(SeriesError):
    """What should name a repository does not."""


@dataclass(frozen=True)
class Credentials:
    """Either a token, or an App: its id, its private key, and the installation if it is known already."""

    token: str | None = field(default=None, repr=False)
    app_id: str | None = None
    private_key: str | None = field(default=None, repr=False)
    installation: int | None = None


def credentials_from(environ: Mapping[str, str]) -> Credentials:
    """An App if there is one (GITHUB_APP_ID with GITHUB_APP_PRIVATE_KEY or GITHUB_APP_PRIVATE_KEY_FILE), else the token
    of GITHUB_TOKEN or GH_TOKEN. Raises NoCredentials."""
    app = environ.get("GITHUB_APP_ID")
    if app:
        installation = environ.get("GITHUB_APP_INSTALLATION_ID", "")
        if installation and not installation.isdecimal():
            raise NoCredentials(f"GITHUB_APP_INSTALLATION_ID is {installation!r}; it takes a number")
        return Credentials(None, app, _private_key(environ), int(installation) if installation else None)
    token = (environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or "").strip()
    if not token:
        raise NoCredentials(
            "there is nothing to ask GitHub with: set GITHUB_TOKEN, or GITHUB_APP_ID with GITHUB_APP_PRIVATE_KEY_FILE"
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
            raise NoCredentials(f"the private key of the App cannot be read from {file}: {error}") from None
    key = key.replace("\\n", "\n")  # as it looks in a variable that takes one line
    if "PRIVATE KEY" not in key:
        raise NoCredentials(
            "the private key of the App is not in PEM form: it begins with -----BEGIN … PRIVATE KEY-----"
        )
    return key


_REPOSITORY = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)/([A-Za-z0-9._-]+)")
"""Who is managed by an enterprise has its short name after an underscore."""


def repository_of(text: str) -> tuple[str, str]:
    """Owner and name. Raises BadRepository."""
    match = _REPOSITORY.fullmatch(text)
    if match is None or match[2] in (".", ".."):
        raise BadRepository(f"{text!r} names no repository: it takes the form owner/name")
    return match[1], match[2]
