"""The servers of commands that tests run as forks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.forked_commands import ROOT, ForkedProgram

PROGRAM = """if True:
    import signal
    from tests.forked_commands import new_server

    with new_server() as server:
        print(server.path, flush=True)
        signal.pause()
"""


def test_a_killed_process_leaves_no_folder_of_its_server() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip()).parent
        assert folder.name.startswith("ast-fork-")
        assert folder.exists()
        process.kill()
    while folder.exists():
        time.sleep(0.01)


def test_a_program_has_its_words_and_its_streams_and_ends_as_its_text_says() -> None:
    text = "import sys\nprint(__name__, sys.argv, sys.stdin.read())\nsys.exit(3)"
    with ForkedProgram(text, "a", "b c", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate("heard")
    assert (said, process.returncode) == ("__main__ ['-c', 'a', 'b c'] heard\n", 3)
