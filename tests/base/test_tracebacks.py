"""The traceback of a function that failed: its author's frames, bounded, with secrets masked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import lines_of
from asterism.execution import function_calls
from asterism.execution.function_calls import LONGEST_LINE, MOST_FRAMES, MOST_LINES, record_traceback, traceback_lines
from asterism.execution.function_modules import load_function

SECRET = "correct-horse-battery"
NO_SECRETS = Mask()


def caught(function: Callable[..., Any], *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


async def caught_in_thread(function: Callable[[], Any]) -> BaseException:
    try:
        await function_calls.call_in_thread(function, {})
    except BaseException as error:
        # as if the test were the machinery that calls the function
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    raise AssertionError("nothing was raised")


def divide() -> float:
    return 1 / 0


async def test_the_frames_of_asterism_are_left_out() -> None:
    lines = traceback_lines(await caught_in_thread(divide), NO_SECRETS)
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", in ")[1] for line in lines if line.startswith("  File ")] == ["divide"]
    assert lines[-1] == "ZeroDivisionError: division by zero"


async def test_an_error_without_a_frame_of_the_author_has_no_traceback() -> None:
    missing = caught(load_function, "json:no_such_function")
    assert traceback_lines(missing.with_traceback(None), NO_SECRETS) == []


def test_a_module_that_cannot_be_imported_shows_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module_of_a_task.py").write_text("import json\n\nLIMIT = undefined_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    error = caught(load_function, "broken_module_of_a_task:work")
    assert "broken_module_of_a_task" not in sys.modules
    assert error.__traceback__ is not None
    lines = traceback_lines(error.with_traceback(error.__traceback__.tb_next), NO_SECRETS)
    assert lines[1].endswith('broken_module_of_a_task.py", line 3, in <module>')
    assert lines[2].strip() == "LIMIT = undefined_name"


def test_causes_and_groups_are_shown_and_secrets_are_masked() -> None:
    def fail() -> None:
        try:
            divide()
        except ZeroDivisionError as error:
            raise ExceptionGroup("both", [ValueError(f"token {SECRET}"), KeyError("x")]) from error

    text = "\n".join(traceback_lines(caught(fail), Mask({"TOKEN": SECRET})))
    assert "ZeroDivisionError: division by zero" in text
    assert "ValueError: token [secret]" in text
    assert "KeyError: 'x'" in text
    assert SECRET not in text


def test_a_secret_is_not_cut_in_two_at_the_end_of_a_line() -> None:
    def fail() -> None:
        raise ValueError("x" * (LONGEST_LINE - len("ValueError: ") - 5) + SECRET)

    last = traceback_lines(caught(fail), Mask({"TOKEN": SECRET}))[-1]
    assert len(last) <= LONGEST_LINE + 1
    assert SECRET[:5] not in last


def test_a_traceback_is_bounded() -> None:
    def fall(depth: int) -> None:
        (fall if depth % 2 else rise)(depth + 1)

    def rise(depth: int) -> None:
        fall(depth + 1)

    deep = traceback_lines(caught(fall, 0), NO_SECRETS)
    assert len(deep) <= 3 * MOST_FRAMES + 3

    def wide() -> None:
        raise ExceptionGroup("many", [ValueError("\n".join("y" * 50)) for _ in range(100)])

    lines = traceback_lines(caught(wide), NO_SECRETS)
    assert len(lines) == MOST_LINES + 1
    assert any("lines left out" in line for line in lines)


def recorder() -> LogRecorder:
    ticks = count()
    return LogRecorder(lambda: float(next(ticks)))


class Source:
    def __init__(self, log: LogRecorder | None) -> None:
        self.log = log

    def recorder(self) -> LogRecorder | None:
        return self.log


def test_the_traceback_comes_after_an_unfinished_line() -> None:
    log = recorder()
    log.write("stdout", "loading")
    record_traceback(Source(log), caught(divide))
    log.write("stdout", "too late\n")
    lines = lines_of(log.chunks())
    assert lines[0][1:] == ("stdout", "loading")
    assert {line.stream for line in lines[1:]} == {"traceback"}
    assert lines[-1].text == "ZeroDivisionError: division by zero"


def test_an_error_that_cannot_be_printed_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(error: BaseException, mask: Mask) -> list[str]:
        raise RecursionError("it contains itself")

    monkeypatch.setattr(function_calls, "traceback_lines", broken)
    log = recorder()
    record_traceback(Source(log), caught(divide))
    record_traceback(Source(None), caught(divide))
    assert lines_of(log.chunks()) == []
