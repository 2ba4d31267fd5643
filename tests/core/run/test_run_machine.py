"""Random stories of one run: every step is legal or refused, as the machine says beforehand, and nothing breaks."""

from __future__ import annotations

from hypothesis import settings

from tests.core.run.run_machine import RunMachine

TestRun = RunMachine.TestCase
TestRun.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
