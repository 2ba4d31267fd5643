"""Work for an agent, as a device gives it to what runs its agent: the port of the executor for ``asterism.agents``.

The device resolves the inputs, judges the work by its device policy and keeps the output. The runner talks to the
agent. Every process that it starts for an execution is recorded, is under the lease of the run, and ends with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, Protocol

from asterism.base.secret_mask import Mask
from asterism.core.run.run import Progress, Run
from asterism.execution.process_guard import Admission
from asterism.execution.processes import Commands
from asterism.fleet.policy.device_policy import DevicePolicy

Admit = Callable[[str | None], AbstractContextManager[Admission]]
"""Records a process that is about to start in a directory."""


class AgentProcesses:
    """The processes of one execution: the agent, and the commands that it asks for. ``lease`` is how long the run is
    certainly this device's, in seconds; None for no limit."""

    def __init__(self, commands: Commands, run_id: str, lease: float | None, admit: Admit) -> None:
        self._commands, self._run_id, self._admit = commands, run_id, admit
        self._keys: set[str] = set()
        self._started = 0
        self._until = None if lease is None else time.monotonic() + lease

    def allow(self, seconds: float) -> None:
        """The lease on the run was renewed."""
        self._until = time.monotonic() + seconds
        for key in self._keys:
            self._commands.allow(key, seconds)

    async def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: str | None,
        *,
        executable: str | None = None,
        heard: Callable[[int, bytes], None] | None = None,
        stdin: IO[bytes] | None = None,
    ) -> Any:
        """Run a process and return its output, as ``Commands.run`` does."""
        self._started += 1
        key = f"{self._run_id}/{self._started}"
        lease = None if self._until is None else max(self._until - time.monotonic(), 0.001)
        with self._admit(cwd) as admission:
            self._keys.add(key)
            try:
                return await self._commands.run(
                    argv,
                    environment,
                    cwd,
                    executable=executable,
                    heard=heard,
                    admission=admission,
                    key=key,
                    lease=lease,
                    stdin=stdin,
                )
            finally:
                self._keys.discard(key)


@dataclass(frozen=True, slots=True, eq=False)
class AgentWork:
    """One execution. ``environment`` is that of its processes, ``cwd`` its directory, with all links followed."""

    run: Run
    description: str
    tips: tuple[str, ...]
    result: Mapping[str, Any] | None
    """The JSON Schema of the result; None if any text will do."""

    inputs: Mapping[str, Any]
    cwd: str
    environment: Mapping[str, str]
    policy: DevicePolicy
    mask: Mask
    processes: AgentProcesses
    write: Callable[[int, bytes], None]
    """Records output: what the agent says as 1, what it does and what is refused as 2."""

    report: Callable[[Progress], None]

    def note(self, text: str) -> None:
        """Record a line about what the agent does."""
        self.write(2, f"{text}\n".encode(errors="replace"))


class AgentRunner(Protocol):
    """What runs the agent of a device. ``can`` are the capabilities that the device has because of it, beside
    ``agent``; ``labels`` describe it in the profile of the device."""

    @property
    def can(self) -> frozenset[str]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...

    async def execute(self, work: AgentWork) -> Any:
        """Let the agent do the work and return the result, which is JSON. Raises AgentFailed. When cancelled, stop the
        agent."""
