"""The device policies of a server: for the tasks that it executes itself, and for the notices that it delivers.

Everybody who can write into the store can write its settings, with the command and the address that get notices. A
device without a device policy file executes whatever the store says, which is its purpose. The purpose of a server is
another one: without a file it executes no notify command, and sends notices to public addresses only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from asterism.cli.user_files import find_device_policy
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy

WITHOUT_FILE = (
    "no device policy file: this server executes no notify command, and sends notices to public addresses only "
    "(see --device-policy)"
)


@dataclass(frozen=True)
class ServerPolicy:
    """``work`` judges the tasks that the server executes itself, ``notices`` the command and the address that get
    notices. ``about`` is a sentence about them."""

    work: DevicePolicy
    notices: DevicePolicy
    about: str

    @classmethod
    def find(cls, path: str | None) -> ServerPolicy:
        """Read the file at ``path``, or the default file if there is one. Raises InvalidDevicePolicy, and UsageError if
        the file cannot be read."""
        policy, about = find_device_policy(path)
        if policy.everything:
            return cls(policy, DevicePolicy.without_file(), WITHOUT_FILE)
        return cls(policy, policy, about)

    def orchestrators(self, local: int) -> Callable[[Fleet], DurableOrchestrator]:
        """Makes the orchestrators of the server's plans, which execute up to ``local`` tasks of each here: they are
        devices that stand for election, too."""
        return partial(
            DurableOrchestrator,
            local=local,
            only_own_tasks=local > 0,
            device_policy=self.work,
            notice_policy=self.notices,
        )
