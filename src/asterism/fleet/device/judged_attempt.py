"""An action on a device, which its device policy judges before and while it is executed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from asterism.core.errors import DeviceUnavailable
from asterism.core.run.workflow import Workflow
from asterism.execution import task_inputs
from asterism.execution.actions import Attempt
from asterism.execution.processes import Commands
from asterism.execution.task_inputs import References, ResolvedInputs
from asterism.fleet.device.run_inputs import RunReferences
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.fleet.policy.judged_requests import PolicyJudge


class JudgedAttempt(Attempt):
    """An action on a device, which its device policy judges."""

    inputs_win = False  # the device has a variable of that name, which no run replaces
    action: Workflow

    def __init__(self, workflow: Workflow, resolved: ResolvedInputs, commands: Commands, policy: DevicePolicy) -> None:
        super().__init__(workflow, resolved, commands)
        self.policy, self.judge = policy, PolicyJudge(policy)

    def judge_work(self) -> None:
        """Judge all that is known before the execution. Raises PolicyForbids, and DeviceUnavailable for what this
        device does not have."""
        self.policy.workflow(self.action.name)
        if self.action.http is not None:
            http_request = self.filled_request()
            self.policy.headers(http_request.get("headers") or ())
            self.policy.url(http_request["url"])
        elif self.action.call is not None:
            self.policy.call(self.action.call)
        elif self.action.agent is not None:
            self.policy.variables(self.resolved.environment)
            self.directory()
        else:
            self.words()
            self.check_variables()
            self.directory()

    def references(self) -> References:
        return RunReferences(self.resolved.inputs, self.resolved.mask)

    def words(self) -> tuple[list[str], str | None]:
        if self.action.shell is not None:
            self.policy.shell()
        argv, _ = super().words()
        if self.action.shell is not None:
            return argv, None
        program = self.policy.command(argv[0])
        if program is not None:
            return [program.name, *argv[1:]], program.file
        path = {**self.inherited(), **self.resolved.environment}.get("PATH") or os.defpath
        if "/" not in argv[0] and shutil.which(argv[0], path=path) is None:  # another device may have it
            raise DeviceUnavailable(f"there is no command {argv[0]!r} on this device")
        return argv, None

    def directory(self) -> str | None:
        if self.folder is not None:
            return str(self.folder)
        if self.action.outputs is not None:  # a new and empty folder of the device, made just before the execution
            return None
        return self.policy.directory(self.action.cwd)

    def inherited(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if self.policy.passes(name)}

    def is_bare(self, name: str) -> bool:
        """The device policy lists the name, or allows everything and the shell line mentions it."""
        return super().is_bare(name) if self.policy.everything else self.policy.may_be_given(name)

    def check_variables(self) -> None:
        """Refuse variables that the device policy does not allow, and a shell line that uses the variable of an input
        which cannot be set: the device policy does not list it, or the device has a variable of that name."""
        self.policy.variables(self.resolved.environment)
        super().check_variables()
        line = self.action.shell or ""
        for name in self.resolved.inputs:
            if task_inputs.refers_to_variable(line, name) and name not in self.resolved.environment:
                self.policy.counts_on(name)
                if name in os.environ and self.policy.passes(name):
                    raise DeviceUnavailable(
                        f"this device has a variable {name!r} of its own, which an input does not replace; "
                        f"{task_inputs.variable_advice(name)}"
                    )
