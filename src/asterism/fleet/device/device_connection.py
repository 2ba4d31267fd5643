"""The connection of a device to its fleet: all that a device asks of it, as named operations.

Who a device is belongs to the connection: no operation says who sends it. There are two implementations. A device that
shares the store of the fleet has a ``StoreConnection``, which commits each step itself. A device that has only an
address and a key has a ``GatewayConnection``: the server makes each step, with the identity of the credential.

The agent of a device is the same with both. Errors are those of a store: StoreUnavailable if there was no answer, so
that it is unknown whether anything happened; RunRefused and Fenced if a step is not possible any more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from asterism.base.clock import Clock
from asterism.core.json_values import SizeLimit
from asterism.core.run.circuit_breaker import Completion
from asterism.core.run.placement import Weights
from asterism.core.run.run import Owner, Progress, Run
from asterism.core.run.session import Session
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.owner_steps import DeviceStep, OwnerStep
from asterism.fleet.fleet import InProcessDevice
from asterism.fleet.waiters import Consumer
from asterism.store.protocol import HeartbeatReply, ProgressReport, PutLog, Watch

if TYPE_CHECKING:
    from asterism.fleet.device.membership import DeviceHost
    from asterism.fleet.device.take_order import TakeOrder

STEP_TIMEOUT = 10.0
"""How long a step is tried while the store is unavailable, in seconds."""


class Standing(NamedTuple):
    """The election rank of a device, the weights of scores, and how many devices there are."""

    rank: float
    weights: Weights
    devices: int


class End(NamedTuple):
    """The end of a run that a device holds: ``before`` is the record as the device has it, ``after`` what the step
    makes of it, ``log`` the last part of its log."""

    before: Run
    after: Run
    step: OwnerStep
    log: Sequence[PutLog]


class DeviceConnection(Protocol):
    """``clock`` is the device's own clock, ``url`` the address for messages, ``look_interval`` how often a device looks
    for work without being woken, in seconds; it does so if it ``looks_alone``, or else the server looks and wakes it.
    With ``commits_together`` the ends of several runs can be one commit of
    the device (``end_together``); without, the connection gathers them by itself."""

    clock: Clock
    url: str
    look_interval: float
    looks_alone: bool
    commits_together: bool

    def store_time(self) -> float:
        """The time by the store's clock, or an estimate of it."""

    def end_time(self) -> float:
        """The time of a result, by the store's clock."""

    def retry_pause(self) -> float:
        """How long to wait before a question is repeated that was not answered, in seconds."""

    @property
    def log_limit(self) -> int:
        """How much of the output of an attempt is kept, in bytes, as far as the settings are known."""

    # -- the session -------------------------------------------------------------------------------------------------

    async def open(self) -> str:
        """Reach the fleet before joining. Returns the identity of its store."""

    async def join(self, session: Session, host: DeviceHost, *, replace: bool) -> None:
        """Enter the session. Raises DeviceNameTaken."""

    async def beat(self, profile: Mapping[str, Any], reports: Sequence[ProgressReport]) -> HeartbeatReply:
        """Send a heartbeat. Raises StoreUnavailable, also if the store does not know the device at all, and ValueError
        for a report that cannot be stored."""

    async def drain(self) -> None:
        """Say that the session takes nothing more."""

    async def leave(self) -> None:
        """End the session: the device executes nothing any more."""

    def close(self) -> None:
        """Stop what runs beside the operations."""

    def watch(self) -> Watch:
        """Watch for work: offered to all devices, or assigned to this one."""

    def attach(self, device: InProcessDevice | None) -> None:
        """Runs that are created in this process may start on this device at once; None if they may no longer."""

    # -- runs --------------------------------------------------------------------------------------------------------

    async def own_runs(self) -> list[Run]:
        """The runs that the store records as owned by this session."""

    async def own_run(self, run_id: str) -> Run | None:
        """One of them; None if it is not."""

    async def take(self, order: TakeOrder) -> list[Run]:
        """Take offered runs. The order collects what must be read or judged first."""

    async def change(
        self, run: str | Run, step: DeviceStep, *, patience: float = STEP_TIMEOUT, tries: int | None = None
    ) -> Run:
        """Make a step and return the run as it is then. ``patience`` and ``tries`` are as in Ledger.change."""

    async def end(self, run: Run, step: OwnerStep, log: Sequence[PutLog], *, tried: Run | None = None) -> None:
        """Make a step that ends the assignment of a run, for as long as it takes to know that it is made. ``tried`` is
        what may have been written already."""

    async def ends_under_way(self) -> None:
        """Wait for the answer to the ends that are under way, if the connection gathers them: they free slots, and one
        order fills all of these."""

    async def end_together(self, ends: Sequence[End]) -> None:
        """Complete several runs in one commit: all or nothing."""

    async def notice_late_result(self, run_id: str, why: str) -> None:
        """Tell people that a result came too late."""

    async def progress_of(self, run_id: str, epoch: int) -> Progress | None:
        """The progress that was last reported for a grant."""

    def consumer(self, run_id: str) -> Consumer | None:
        """What writes the end of a run together with what follows from it, if a waiter of this process does."""

    def ended(self, run: Run) -> None:
        """A run has ended, and its end was written here."""

    # -- workflows and values ----------------------------------------------------------------------------------------

    async def workflow(self, name: str, version: int) -> Workflow:
        """Raises UnknownWorkflow and InvalidWorkflow."""

    def remembered_workflow(self, name: str, version: int) -> Workflow | None:
        """A workflow that was read before; None if it was not. In any thread."""

    async def fetch_input(self, run: Run) -> Any:
        """The input of a run of this device, which may be stored apart."""

    async def keep(self, value: Any, run: Run, what: str) -> Any:
        """Store a value of a run apart if it is large. Returns the value, or the reference to it. ``what`` names it in
        messages. Raises TooLarge and NotJson."""

    async def value_limit(self) -> SizeLimit:
        """How large inputs and outputs may be, as far as the settings are known."""

    # -- the fleet ---------------------------------------------------------------------------------------------------

    async def standing(self) -> Standing:
        """The rank of this device, and how its score is weighed."""

    async def recent_completions(self, workflow: str, limit: int) -> list[Completion]:
        """The last completions of a workflow, on any device."""

    async def announce_health(self, why: str | None) -> None:
        """Tell people that the device has stopped taking work, or that it takes work again (None)."""


class DeviceAccess(Protocol):
    """What a device needs to connect to a fleet without its store."""

    clock: Clock
    chance: random.Random

    def store_time(self) -> float:
        """The time by the store's clock, as far as it is known."""

    def connect(self, owner: Owner) -> DeviceConnection:
        """The connection of one session."""
