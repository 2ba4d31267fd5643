"""The tools for tests of processes: no output of a process is lost."""

from __future__ import annotations

import subprocess
import sys

from tests.process_scenes import ended

TALKS = "import sys; print('one\\ntwo', flush=True); sys.exit(int(input()))"


def test_what_was_fetched_ahead_of_the_line_that_was_read_is_not_lost() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TALKS], **pipes, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.stdin.write("3\n")
        process.stdin.flush()
        assert ended(process) == (3, "two\n", "")
