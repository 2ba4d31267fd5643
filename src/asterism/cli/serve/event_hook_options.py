"""The options of ``asterism serve`` for hooks: their events, and where their secrets are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.cli.cli_context import options
from asterism.cli.option_types import option
from asterism.cli.webhook_secret import MIN_SECRET, taken_from_environment, webhook_secret

if TYPE_CHECKING:
    from asterism.fleet.event_hook import EventHook

event_hook_options = options(
    option(
        "--event-hook NAME=EVENT",
        "Let signed posts to /hooks/NAME send this event; {field} is one of the posted JSON (repeatable).",
        to="event_hooks",
        multiple=True,
    ),
    option(
        "--hook-secrets FOLDER",
        "A folder with a private file NAME for the secret of each hook; default: $ASTERISM_HOOK_NAME.",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
    ),
)


def opened_hooks(given: tuple[str, ...], folder: Path | None) -> list[EventHook]:
    """The hooks that the options name. Raises UsageError, InvalidHook, and UnusableSecret for a file that others can
    read."""
    from asterism.fleet.event_hook import EventHook, check_hook_name

    if folder is not None and not given:
        raise click.UsageError("--hook-secrets is for event hooks: give --event-hook NAME=EVENT too.")
    hooks = dict[str, EventHook]()
    for words in given:
        name, equals, event = words.partition("=")
        if not equals:
            raise click.UsageError(f"{clean(words)!r} is not a hook (example: shop=payment/{{order}}).")
        check_hook_name(name)
        if name in hooks:
            raise click.UsageError(f"There are two hooks {name!r}: give each another name.")
        hooks[name] = EventHook(name, event, _secret(name, folder))
    return list(hooks.values())


def _secret(name: str, folder: Path | None) -> bytes:
    from asterism.base.private_file import read_private

    variable = f"ASTERISM_HOOK_{name.replace('-', '_').upper()}"
    needs = f"Hook {name!r} needs a secret of at least {MIN_SECRET} characters:"
    if folder is None:
        return webhook_secret(
            taken_from_environment(variable), f"{needs} set ${variable}, or give --hook-secrets FOLDER."
        )
    data = read_private(folder / name, "make another secret, here and at the sender") or b""
    return webhook_secret(data.decode("utf-8", "replace"), f"{needs} write it to {clean(str(folder / name))}.")
