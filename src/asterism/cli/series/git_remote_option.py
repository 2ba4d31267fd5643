"""A remote of the current checkout by its name: its address and the settings that apply to it.

For a series git runs in another directory, so it would not see the settings of the checkout: credentials that a
workflow left there, proxies, the ssh command, rewritten addresses, and what the user has set for the directory of the
checkout (``includeIf``).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

_PASSED_SETTINGS = r"^(http\.|credential\.|url\.|ssh\.|core\.sshcommand$)"
_LIST_SETTINGS = re.compile(r"\.(helper|extraheader)$")
"""Settings with a list of values; of all others the last value counts."""
_NOT_RELATIVE = re.compile(r"\w[\w+.-]*://|[^/]*:|/")
"""The beginning of an address that is not a relative path: a scheme, a host, or the root."""


def resolve_remote(remote: str) -> tuple[str, Mapping[str, str] | None]:
    """The address of a remote, and the environment for git; None for the present one. Raises UsageError."""
    if ":" in remote or "/" in remote or os.path.isdir(remote) or remote.startswith("-"):
        return remote, None
    if not remote.strip():
        raise click.UsageError("--remote is empty: give an address, or the name of a remote of this checkout.")
    address = _git("remote", "get-url", "--", remote)
    if address is None:
        raise click.UsageError(f"{remote!r} is neither a directory nor a remote of this checkout.")
    written = _git("config", "--get-all", f"remote.{remote}.url") or address
    return _absolute(address, written.split("\n")[0]), _with_settings(os.environ)


def _absolute(address: str, written: str) -> str:
    """A path is relative to the top of the checkout. Any other address stays as it is ``written`` in the settings: git
    applies ``insteadOf`` later, and it must be applied only once."""
    if _NOT_RELATIVE.match(address):
        return written
    top = _git("rev-parse", "--show-toplevel") or _git("rev-parse", "--absolute-git-dir") or "."
    return str((Path(top) / address).resolve())


def _with_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that gives git the settings of this checkout in any directory. The settings of the environment
    itself come last, as they do here."""
    plain = {
        name: environment[name] for name in environment if name not in ("GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS")
    }
    here, elsewhere = _settings(plain), _settings({**plain, "GIT_DIR": os.devnull})
    settings = [(name, value) for name in here for value in _missing(name, here[name], elsewhere.get(name, []))]
    count = int(known) if (known := environment.get("GIT_CONFIG_COUNT", "")).isdigit() else 0
    own = [(environment.get(f"GIT_CONFIG_KEY_{n}"), environment.get(f"GIT_CONFIG_VALUE_{n}")) for n in range(count)]
    settings += [(name, value) for name, value in own if name is not None and value is not None]
    numbered: dict[str, str] = {}
    for number, (name, value) in enumerate(settings):
        numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return {**environment, **numbered, "GIT_CONFIG_COUNT": str(len(settings))}


def _settings(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """The settings that git sees, by name and in order: of the machine, of the user (also by ``includeIf``), and of the
    checkout unless the environment names another repository."""
    listed = _git("config", "--includes", "-z", "--get-regexp", _PASSED_SETTINGS, environment=environment) or ""
    settings: dict[str, list[str]] = {}
    for setting in filter(None, listed.split("\0")):
        name, line, value = setting.partition("\n")
        settings.setdefault(name, []).append(value if line else "true")  # a name without a value means true
    return settings


def _missing(name: str, here: list[str], elsewhere: list[str]) -> list[str]:
    """The values to add to those that git sees elsewhere. A header must not be sent twice, so a list that does not
    simply continue starts again, with an empty value."""
    if here[: len(elsewhere)] == elsewhere:
        return here[len(elsewhere) :]
    return ["", *here] if _LIST_SETTINGS.search(name) else here


def _git(*words: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The output of a git command in the current directory; None if it fails."""
    try:
        result = subprocess.run(["git", *words], capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        raise click.UsageError("git is not installed: a series on a git remote needs it.") from None
    return result.stdout.removesuffix("\n") if result.returncode == 0 else None
