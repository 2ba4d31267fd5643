"""Functions by their import paths, and their modules, which are imported again after a change."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.durable.fleet_device import NO_ACTION, no_action
from asterism.execution.function_modules import MOST_AT_ONCE, find_function, function_at, load_function
from tests.forked_commands import ForkedProgram
from tests.process_scenes import ended


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules; those that a test imports are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__spec__", "")):
            del sys.modules[name]


def write(project: Path, **modules: str) -> None:
    for name, text in modules.items():
        file = project / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


async def test_a_task_without_an_action_executes_a_function_that_is_found_by_its_path() -> None:
    assert load_function(NO_ACTION) is no_action
    assert await load_function(NO_ACTION)() is None


@pytest.mark.parametrize("path", ["no_such_module:f", "json:no_such_function", "json:decoder"])
def test_a_path_that_leads_to_no_function_is_an_import_error(path: str) -> None:
    with pytest.raises(ImportError):
        load_function(path)


def test_a_changed_module_is_imported_again(project: Path) -> None:
    write(project, fm_own="def answer(): return 1\n")
    assert load_function("fm_own:answer")() == 1
    write(project, fm_own="def answer(): return 2\n")  # as long as before, and perhaps in the same second
    assert find_function("fm_own:answer") is None
    assert load_function("fm_own:answer")() == 2
    assert find_function("fm_own:answer") is load_function("fm_own:answer")


def test_a_module_without_a_change_keeps_its_state(project: Path) -> None:
    write(project, fm_state="calls = []\ndef count():\n    calls.append(1)\n    return len(calls)\n")
    assert [load_function("fm_state:count")() for _ in range(3)][-1] == 3


def test_a_module_that_a_function_imports_counts_too(project: Path) -> None:
    write(project, fm_helper="FACTOR = 2\n", fm_user="from fm_helper import FACTOR\ndef answer(): return FACTOR\n")
    assert load_function("fm_user:answer")() == 2
    write(project, fm_helper="FACTOR = 3\n")
    assert load_function("fm_user:answer")() == 3


def test_a_module_that_a_function_imports_while_it_runs_counts_too(project: Path) -> None:
    text = "def answer():\n    from fm_late import FACTOR\n    return FACTOR\n"
    write(project, fm_late="FACTOR = 2\n", fm_lazy=text)
    assert load_function("fm_lazy:answer")() == 2
    write(project, fm_late="FACTOR = 3\n")
    assert load_function("fm_lazy:answer")() == 3


def test_modules_in_a_folder_without_init_count_too(project: Path) -> None:
    write(
        project,
        fm_space__helper="FACTOR = 2\n",
        fm_space__work="from fm_space import helper\ndef answer(): return helper.FACTOR\n",
    )
    assert load_function("fm_space.work:answer")() == 2
    write(project, fm_space__helper="FACTOR = 3\n")
    assert load_function("fm_space.work:answer")() == 3


def test_a_module_that_was_saved_with_a_mistake_is_read_again_when_it_is_mended(project: Path) -> None:
    write(project, fm_broken="def answer(): return 1\n")
    assert load_function("fm_broken:answer")() == 1
    write(project, fm_broken="def answer(: return 2\n")
    for _ in range(2):  # what worked before does not come back
        with pytest.raises(SyntaxError):
            load_function("fm_broken:answer")
    write(project, fm_broken="def answer(): return 3\n")
    assert load_function("fm_broken:answer")() == 3


def test_a_change_while_the_module_is_imported_is_not_missed(project: Path) -> None:
    write(
        project,
        fm_slow="import sys\nsys.fm_reached.set()\nassert sys.fm_written.wait(60)\ndef answer(): return 1\n",
    )
    reached, written = Event(), Event()
    sys.fm_reached, sys.fm_written = reached, written  # type: ignore[attr-defined]
    answers: list[Any] = []
    thread = Thread(target=lambda: answers.append(load_function("fm_slow:answer")()))
    thread.start()
    assert reached.wait(60)
    write(project, fm_slow="def answer(): return 2\n")
    written.set()
    thread.join()
    assert answers == [1]
    assert load_function("fm_slow:answer")() == 2


def test_a_call_that_runs_keeps_the_modules_with_which_it_began(project: Path) -> None:
    write(project, fm_part="FACTOR = 2\n", fm_whole="import fm_part\ndef answer(): return fm_part.FACTOR\n")
    running = load_function("fm_whole:answer")
    write(project, fm_part="FACTOR = 3\n")
    assert load_function("fm_whole:answer")() == 3
    assert running() == 2


def test_an_import_inside_a_running_function_gives_the_module_that_is_there_then(project: Path) -> None:
    write(project, fm_early="FACTOR = 2\n", fm_mid="def answer():\n    import fm_early\n    return fm_early.FACTOR\n")
    running = load_function("fm_mid:answer")
    write(project, fm_early="FACTOR = 3\n")
    assert load_function("fm_mid:answer")() == 3
    assert running() == 3


@pytest.mark.parametrize("again", [False, True])
def test_a_file_with_a_time_in_the_future_is_not_imported_before_every_call(project: Path, again: bool) -> None:
    """As of a copy from a machine whose clock is ahead."""
    name = f"fm_ahead_{again}"
    write(project, **{name: "calls = []\ndef count():\n    calls.append(1)\n    return len(calls)\n"})
    if again:
        assert load_function(f"{name}:count")() == 1
    future = time.time() + 3600
    os.utime(project / f"{name}.py", (future, future))
    assert [load_function(f"{name}:count")() for _ in range(3)] == [1, 2, 3]


def test_many_files_are_not_looked_at_on_the_event_loop(project: Path) -> None:
    names = [f"fm_many_{number}" for number in range(MOST_AT_ONCE)]
    text = "".join(f"import {name}\n" for name in names)
    write(project, **dict.fromkeys(names, "FACTOR = 1\n"), fm_all=f"{text}def answer(): return {names[7]}.FACTOR\n")
    assert load_function("fm_all:answer")() == 1
    assert find_function("fm_all:answer") is None
    write(project, fm_many_7="FACTOR = 2\n")
    assert asyncio.run(function_at("fm_all:answer"))() == 2
    write(project, fm_all="def answer(): return 3\n")
    assert load_function("fm_all:answer")() == 3
    assert find_function("fm_all:answer") is not None


OF_THE_PROGRAM = """
import pathlib, sys
sys.path.insert(0, {folder!r})
import fm_program
from asterism.execution.function_modules import load_function
assert load_function("fm_program:answer")() == 1
pathlib.Path({folder!r}, "fm_program.py").write_text("def answer(): return 2\\n")
print(load_function("fm_program:answer")(), load_function("fm_program:answer") is fm_program.answer)
"""


def test_what_the_program_has_imported_itself_stays(project: Path) -> None:
    write(project, fm_program="def answer(): return 1\n")
    with ForkedProgram(OF_THE_PROGRAM.format(folder=str(project)), stdout=-1, stderr=-1) as process:
        code, output, errors = ended(process)
    assert (code, output) == (0, "1 True\n"), errors


async def test_the_next_attempt_at_a_task_executes_the_mended_function(project: Path) -> None:
    write(project, fm_attempt="def work(): raise ValueError('old')\n")
    plan = Constellation("mended")
    plan.add(Task("work", call="fm_attempt:work"))
    orchestrator = Orchestrator([LocalDevice("here")])
    result = await orchestrator.run(plan)
    assert result["work"].reason.endswith("old")
    write(project, fm_attempt="def work(): return 'new'\n")
    assert (await orchestrator.retry(result))["work"].value == "new"
