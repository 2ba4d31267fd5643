"""Which policy a device goes by: the file that is named, or the user's own, or none."""

from __future__ import annotations

import os
from pathlib import Path

import click

from asterism.fleet.policy.policy import DevicePolicy


def default_policy_file() -> Path:
    """``$XDG_CONFIG_HOME/asterism/policy.yaml``, or the same under ``~/.config``."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(named) if os.path.isabs(named) else Path(os.path.expanduser("~")) / ".config"
    return root / "asterism" / "policy.yaml"


def find_policy(named: str | None) -> tuple[DevicePolicy, str]:
    """The policy, and a sentence about it. Raises BadPolicy, and UsageError for a file that cannot be read: a device
    that has a policy must not do without it."""
    path = Path(named) if named is not None else default_policy_file()
    try:
        return DevicePolicy.load(path), f"the policy is {path}"
    except FileNotFoundError:
        if named is not None:
            raise click.UsageError(f"there is no policy file {path}") from None
    except OSError as error:
        raise click.UsageError(f"the policy file {path} cannot be read: {error.strerror}") from None
    return DevicePolicy.open(), "no policy file: it executes whatever the store says (see --policy)"
