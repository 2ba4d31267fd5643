"""Notifiers: what delivers a notice to people. Each is an async function of a ``Delivery``.

The settings ``notify_command`` and ``notify_url`` name the targets. The device policy of the device that delivers
judges them.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any

from asterism.base.secret_mask import Mask
from asterism.core.json_values import JsonObject
from asterism.execution.processes import Commands
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.fleet.policy.judged_requests import request


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notice, as JSON, and how it is delivered: ``target`` is the value of the setting, ``commands`` runs commands,
    ``mask`` hides the secrets of the device, and ``policy`` judges."""

    notice: JsonObject
    target: Any
    policy: DevicePolicy
    mask: Mask
    commands: Commands


async def notify_command(delivery: Delivery) -> None:
    """Run a command with the notice on its standard input. Raises what keeps it from exiting with 0."""
    policy, words = delivery.policy, delivery.target
    program = policy.command(words[0])
    argv = [program.name if program is not None else words[0], *words[1:]]
    environment = {name: value for name, value in os.environ.items() if policy.passes(name)}
    with tempfile.TemporaryFile() as stdin_file:
        stdin_file.write(json.dumps(delivery.notice).encode())
        stdin_file.seek(0)
        await delivery.commands.run(
            argv,
            environment,
            policy.directory(None),
            executable=program.file if program is not None else None,
            stdin=stdin_file,
        )


async def notify_url(delivery: Delivery) -> None:
    """Post the notice to an address. Raises as ``request`` does."""
    post = {"url": delivery.target, "method": "POST", "json": delivery.notice}
    await request(post, {}, delivery.policy, delivery.mask)
