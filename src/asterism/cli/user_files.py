"""Files of the user that commands load: modules with tasks and editors, and the device policy file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.private_file import config_folder
from asterism.base.text import clean
from asterism.cli.model_options import take_model_terms

if TYPE_CHECKING:
    from asterism.fleet.policy.device_policy import DevicePolicy


def allow_imports(plan: str | None = None) -> None:
    """Let modules be imported from the working directory, and from the folder of a plan file.

    The folders go to the end of ``sys.path``, so no file in them replaces a module of Python, of this library or of its
    dependencies. Only commands that execute the user's code call this; ``check`` without ``--imports`` and ``show`` do
    not."""
    import subprocess  # noqa: F401  before: on some systems it tries to import modules that exist only on others

    for folder in (Path.cwd(), *(() if plan is None else (Path(plan).resolve().parent,))):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


OUTSIDE = "outside"
"""The editor of a plan that people and other processes edit."""


def editor_terms(path: str | None, edit_on: Any, option_values: dict[str, Any]) -> dict[str, Any]:
    """The options of an orchestrator for ``--editor`` and ``--edit-on``. Those of ``--editor model`` are taken out of
    ``option_values``; the editor is then a ModelTerms, which ``resolve_editor`` replaces."""
    model = take_model_terms(path, edit_on, option_values)
    if model is not None:
        return {"editor": model}
    if path == OUTSIDE:  # a cycle waits for a claim until its time is up
        return {"editor": None, "external": True, "claim_timeout": float("inf"), "edit_on": edit_on or "all"}
    return {"editor": load_editor(path), "edit_on": edit_on or "all"}


def load_editor(path: str | None) -> Any:
    """The editor function that ``--editor`` names; None if it is left out."""
    from asterism.execution import function_calls

    if path is None:
        return None
    if ":" not in path:
        raise click.UsageError(f"--editor must be package.module:function, 'outside' or 'model', not {path!r}.")
    try:
        return function_calls.load_function(path)
    except (Exception, SystemExit) as error:  # importing runs foreign code, which may raise anything
        raise click.ClickException(
            f"The editor {path!r} cannot be imported: {type(error).__name__}: {clean(str(error))}."
        ) from None


def default_policy_file() -> Path:
    """``$XDG_CONFIG_HOME/asterism/policy.yaml``, or the same under ``~/.config``."""
    return config_folder() / "policy.yaml"


def find_device_policy(path: str | None) -> tuple[DevicePolicy, str]:
    """The device policy, and a sentence about it: from the file at ``path``, or from the default file, or open.

    Raises InvalidDevicePolicy, and UsageError if the file cannot be read: a device that has a policy must not run
    without it."""
    from asterism.fleet.policy.device_policy import DevicePolicy

    file = Path(path) if path is not None else default_policy_file()
    try:
        return DevicePolicy.load(file), f"the device policy is {file}"
    except FileNotFoundError:
        if path is not None:
            raise click.UsageError(f"there is no device policy file {file}") from None
    except OSError as error:
        raise click.UsageError(f"the device policy file {file} cannot be read: {error.strerror}") from None
    return (
        DevicePolicy.open(),
        "no device policy file: this device executes every workflow in the store (see --device-policy)",
    )
