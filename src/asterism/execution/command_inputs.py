"""Inputs of a command as variables and as files.

Every input is a file, ``ASTERISM_INPUT_FILE_<name>``, however large it is: text as it is, anything else as JSON. The
files are private to this user and exist for as long as the command runs.

An input is also a variable (``task_inputs.py``), if the operating system can pass it: Linux allows 128 KiB for each
variable and each word, and has a limit for all of them. If an input does not fit, the task fails before its command
starts if the line, a word or the environment uses that variable: it would be empty. Otherwise the variable is unset.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asterism.base import operating_system
from asterism.core.errors import TooLarge
from asterism.execution.task_inputs import VARIABLE_PREFIX, MissingInput, input_text, is_reserved, mentions_name

FILE_PREFIX = "ASTERISM_INPUT_FILE_"

LONGEST_VARIABLE = 128 * 1024 - 1
"""The longest word or variable of a command, with its name, in bytes: the limit of Linux."""

_SPARE = 16 << 10  # the variables that name files, and what the system adds
_SUFFIX = re.compile(r"[A-Za-z0-9_]+")


class InputVariable(NamedTuple):
    """A variable that holds an input."""

    input: str
    text: str
    used: bool
    """Whether the command uses it."""


def input_texts(inputs: Mapping[str, Any]) -> dict[str, str]:
    """The inputs as a command sees them. Those whose names are not valid in the name of a variable are left out. Raises
    MissingInput for two inputs that would be the same variable."""
    for name in inputs:
        if f"FILE_{name}" in inputs:
            raise MissingInput(
                f"the inputs {name!r} and 'FILE_{name}' would both be the variable {FILE_PREFIX}{name}; rename one"
            )
    return {name: input_text(value) for name, value in inputs.items() if _SUFFIX.fullmatch(name)}


def bare_variables(texts: Mapping[str, str], work: str, wanted: Callable[[str], bool]) -> dict[str, InputVariable]:
    """The inputs as variables with their bare names: those that are ``wanted`` and not reserved. ``work`` is the shell
    line of the command, or its words."""
    return {
        name: InputVariable(name, text, mentions_name(work, name))
        for name, text in texts.items()
        if not is_reserved(name) and wanted(name)
    }


def prefixed_variables(texts: Mapping[str, str], work: str) -> dict[str, InputVariable]:
    """The inputs as the variables ``ASTERISM_INPUT_<name>``."""
    return {
        VARIABLE_PREFIX + name: InputVariable(name, text, mentions_name(work, VARIABLE_PREFIX + name))
        for name, text in texts.items()
    }


def passable(words: Sequence[str], environment: Mapping[str, str | InputVariable]) -> dict[str, str]:
    """The environment of a command without the inputs that cannot be passed to it. Raises TooLarge if the command uses
    one of these, or if its words or its other variables cannot be passed."""
    for number, word in enumerate(words, 1):
        if (problem := _problem(word)) is not None:
            raise TooLarge(f"word {number} of the command {problem}; {_ADVICE}")
    passed = {}
    for name, value in environment.items():
        text = value.text if isinstance(value, InputVariable) else value
        problem = _problem(text, len(name) + 1)
        if problem is None:
            passed[name] = text
        elif not isinstance(value, InputVariable):
            raise TooLarge(f"the variable {name} {problem}; {_ADVICE}")
        elif value.used:
            raise TooLarge(f"the input {value.input!r} cannot be the variable ${name}: it {problem}; {_advice(value)}")
    return _within_total(words, passed, environment)


def _within_total(
    words: Sequence[str], passed: dict[str, str], environment: Mapping[str, str | InputVariable]
) -> dict[str, str]:
    """Leave out the largest variables that the command does not use, until the rest can be passed. Raises TooLarge."""
    limit = operating_system.argument_limit() - _SPARE
    total = sum(_size(word) for word in words) + sum(_size(name) + _size(text) for name, text in passed.items())
    if total <= limit:
        return passed
    unused = [name for name in passed if isinstance(value := environment[name], InputVariable) and not value.used]
    for name in sorted(unused, key=lambda name: len(passed[name]), reverse=True):
        total -= _size(name) + _size(passed.pop(name))
        if total <= limit:
            return passed
    raise TooLarge(
        f"the words and variables of the command have {total:,} bytes, and the limit of this system is {limit:,}; "
        f"{_ADVICE}"
    )


def _problem(text: str, name: int = 0) -> str | None:
    """Why a text cannot be a word, or a variable with a name of this length; None if it can."""
    if "\0" in text:
        return "has a NUL character, which no command can get"
    if (name + len(text)) * 4 > LONGEST_VARIABLE:
        size = len(text.encode(errors="replace"))
        if name + size > LONGEST_VARIABLE:
            return f"has {size:,} bytes, and the limit is {LONGEST_VARIABLE - name:,}"
    return None


def _size(text: str) -> int:
    """How much a text counts: with its end and the pointer to it."""
    return len(text.encode(errors="replace")) + 9


_ADVICE = f"let the command read the file of an input: ${FILE_PREFIX}<name>"


def _advice(value: InputVariable) -> str:
    return f"let the command read the file ${FILE_PREFIX}{value.input}"


# -- files -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for the files of a command, which only this user can read; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="asterism-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_inputs(texts: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Write each input into a file of its own, which only this user can read. Returns the variables that name the
    files. Raises OSError."""
    variables = {}
    for number, (name, text) in enumerate(texts.items(), 1):
        path = folder / f"{number}-{name[:100]}"  # with the number: a system may not tell A from a
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode(errors="surrogatepass"))
        variables[FILE_PREFIX + name] = str(path)
    return variables
