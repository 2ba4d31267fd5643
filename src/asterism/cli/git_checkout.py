"""A remote of the checkout one stands in, by its name: its address, and the settings of the checkout that belong to it.

Git works elsewhere for a series, so it would not see them: the credentials that a workflow left in the checkout, the
proxy, the command for ssh, the addresses that are written otherwise; and what the user has set for the directory that
the checkout is in (``includeIf``).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

_HANDED_ON = r"^(http\.|credential\.|url\.|ssh\.|core\.sshcommand$)"
_LISTED = re.compile(r"\.(helper|extraheader)$")
"""SyncSettings that are lists, of which every value counts; of all others it is the last."""
_ELSEWHERE = re.compile(r"\w[\w+.-]*://|[^/]*:|/")
"""How an address begins that is no path from here: with a scheme, with a machine, or at the root."""


def remote_named(remote: str) -> tuple[str, Mapping[str, str] | None]:
    """The address, and the environment for git; None for the one that is here. Raises UsageError."""
    if ":" in remote or "/" in remote or os.path.isdir(remote) or remote.startswith("-"):
        return remote, None
    if not remote.strip():
        raise click.UsageError("--remote is empty: it takes an address, or the name of a remote of this checkout.")
    address = _said("remote", "get-url", "--", remote)
    if address is None:
        raise click.UsageError(f"there is no directory {remote}, and no remote of that name in this checkout.")
    written = _said("config", "--get-all", f"remote.{remote}.url") or address
    return _absolute(address, written.split("\n")[0]), _with_settings(os.environ)


def _absolute(address: str, written: str) -> str:
    """A path is meant from where the checkout begins, wherever in it one stands. Anything else stays as it is
    ``written`` there: what git makes of it by ``insteadOf`` it makes of it once more, and that has to be once only."""
    if _ELSEWHERE.match(address):
        return written
    top = _said("rev-parse", "--show-toplevel") or _said("rev-parse", "--absolute-git-dir") or "."
    return str((Path(top) / address).resolve())


def _with_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, in which git sees elsewhere what it sees here. What the environment itself says of settings
    comes last, as it does here."""
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
    """What git sees, by name and in order: of the machine, of the user, also what the user has for this directory alone
    (``includeIf``), and of the checkout if the environment does not lead elsewhere."""
    listed = _said("config", "--includes", "-z", "--get-regexp", _HANDED_ON, environment=environment) or ""
    found: dict[str, list[str]] = {}
    for setting in filter(None, listed.split("\0")):
        name, line, value = setting.partition("\n")
        found.setdefault(name, []).append(value if line else "true")  # a name alone is a yes
    return found


def _missing(name: str, here: list[str], elsewhere: list[str]) -> list[str]:
    """What has to be added to what is known elsewhere. A header must not be sent twice, so a list that is not simply
    longer here begins anew, as one does with an empty value."""
    if here[: len(elsewhere)] == elsewhere:
        return here[len(elsewhere) :]
    return ["", *here] if _LISTED.search(name) else here


def _said(*words: str, environment: Mapping[str, str] | None = None) -> str | None:
    """What git says here; None if it has nothing to say."""
    try:
        asked = subprocess.run(["git", *words], capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        raise click.UsageError("there is no program git: a series on a git remote needs it.") from None
    return asked.stdout.removesuffix("\n") if asked.returncode == 0 else None
