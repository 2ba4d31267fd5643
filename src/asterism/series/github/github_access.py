"""Which repository, by whose leave, at which address: what the environment and the caller say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from asterism.base.url_text import masked_url
from asterism.series.github.answer_cache import AnswerCache
from asterism.series.github.auth import DEFAULT_API, BadRepository, credentials_from, repository_of
from asterism.series.github.github_client import PATIENCE, GitHubClient, scope_of
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.transport import Connection


def open_github(
    repository: str,
    *,
    environ: Mapping[str, str] | None = None,
    cache: Path | None = None,
    keep: bool = True,
    patience: float = PATIENCE,
    deadline: float | None = None,
) -> GitHubRegister:
    """The register of ``owner/name``. Nothing is asked yet. The credentials are those of the environment (see
    ``credentials.py``), and so is the address (GITHUB_API_URL). ``cache`` is a file for what is known already,
    which is written too unless ``keep`` is False. A limit is waited for within ``patience`` and ``deadline``, in
    seconds. Raises BadRepository and NoCredentials."""
    environ = os.environ if environ is None else environ
    owner, name = repository_of(repository)
    credentials = credentials_from(environ)
    base_url = environ.get("GITHUB_API_URL") or DEFAULT_API
    if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
        raise BadRepository(
            f"GITHUB_API_URL is {masked_url(base_url)!r}, which is no address: it takes the form {DEFAULT_API}"
        )
    scope = scope_of(base_url, owner, name, credentials.token or f"app {credentials.app_id}")
    connection = Connection(base_url, credentials, owner, name)
    known = AnswerCache(cache, scope, keep)
    return GitHubRegister(GitHubClient(owner, name, connection, known, patience=patience, deadline=deadline))
