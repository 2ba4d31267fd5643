"""Whatever the tests inherit, the commands that they start hear signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inherited_signals import SIGNALS

ROOT = Path(__file__).parents[1]
CHILD = "import signal; print(*(signal.getsignal(number) is signal.SIG_IGN for number in (1, 2, 15)))"
TESTS = f"""
import os, signal, subprocess, sys
from tests import inherited_signals
{{first}}
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
for one in inherited_signals.SIGNALS:
    os.kill(os.getpid(), one)
"""


def under_nohup(program: str) -> str:
    """What a Python program prints that ignores signals from its start."""

    def ignore() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_IGNORED_SIGNALS"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=ignore
    )
    return done.stdout.strip()


@pytest.mark.parametrize("how", ["", "inherited_signals.hear_again(); inherited_signals.keep_to_ourselves(); "])
def test_a_command_hears_signals_that_the_tests_ignore(how: str) -> None:
    """The tests themselves go on ignoring them, also where a worker of pytest is started anew."""
    assert under_nohup(TESTS.format(first=f"inherited_signals.keep_to_ourselves(); {how}")) == "False False False"


def test_without_the_handlers_a_command_inherits_what_is_ignored() -> None:
    """The ablation."""
    assert under_nohup(TESTS.format(first="")) == "True True True"


def test_a_forked_command_hears_signals() -> None:
    program = TESTS.partition("subprocess.run")[0].format(
        first="inherited_signals.keep_to_ourselves(); inherited_signals.hear_again()"
    )
    heard = "print(*(signal.getsignal(one) is signal.SIG_DFL for one in inherited_signals.SIGNALS))"
    assert under_nohup(program + heard) == "True False True"  # SIGINT is a KeyboardInterrupt
