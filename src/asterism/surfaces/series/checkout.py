"""A remote of the checkout one stands in, by its name: its address, and the settings of the checkout that belong to it.

Git works elsewhere for a series, so it would not see them: the credentials that a workflow left in the checkout, the
proxy, the command for ssh, the addresses that are written otherwise.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

_HANDED_ON = r"^(http\.|credential\.|url\.|ssh\.|core\.sshcommand$)"
_ELSEWHERE = re.compile(r"\w[\w+.-]*://|[^/]*:|/")
"""How an address begins that is no path from here: with a scheme, with a machine, or at the root."""


def remote_named(remote: str) -> tuple[str, Mapping[str, str] | None]:
    """The address, and the environment for git; None for the one that is here. Raises UsageError."""
    if ":" in remote or "/" in remote or os.path.isdir(remote) or remote.startswith("-"):
        return remote, None
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
    """The environment, with what the checkout alone has been told added to what it says of git's settings."""
    listed = _said("config", "--local", "--includes", "-z", "--get-regexp", _HANDED_ON) or ""
    added = dict(environment)
    count = int(known) if (known := environment.get("GIT_CONFIG_COUNT", "")).isdigit() else 0
    for setting in filter(None, listed.split("\0")):
        name, _, value = setting.partition("\n")
        added |= {f"GIT_CONFIG_KEY_{count}": name, f"GIT_CONFIG_VALUE_{count}": value}
        count += 1
    return {**added, "GIT_CONFIG_COUNT": str(count)}


def _said(*words: str) -> str | None:
    """What git says here; None if it has nothing to say."""
    try:
        asked = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise click.UsageError("there is no program git: a series on a git remote needs it.") from None
    return asked.stdout.removesuffix("\n") if asked.returncode == 0 else None
