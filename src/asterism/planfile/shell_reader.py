"""Reads a shell line as ``sh`` does, as far as that is needed to tell which variables it expands before they are set.

``read_variables`` follows the line in the order of its evaluation. It knows quotes, comments, here-documents,
``${name}`` with its operators, ``$((…))``, command substitutions, subshells (whose assignments end with them; each
part of a pipeline, and what stands before ``&``, is one), functions (called later, when the whole line has set its
variables), and lines inside the line: ``sh -c '…'``. Nothing is known about variables after ``eval`` or ``.``. A branch
that may not be taken counts as taken: a variable that is set there is set. A line that has ``${name:-}`` or
``${name+x}`` knows that the variable may be unset: it counts as set from there on.

Variables in shell lines: those that a line reads and nobody sets, although a task, input or parameter has the name.

A shell gives such a variable an empty value, and the task completes. A line that sets the variable before it reads it,
or gives a default (``${name:-none}``), means it. So does a name that the environment has, or that shells and programs
know.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches

from asterism.execution.command_inputs import FILE_PREFIX
from asterism.execution.task_inputs import VARIABLE_PREFIX, is_reserved
from asterism.planfile import models

OPAQUE = "\ufffc"
"""Stands in a word for what is known only when the line runs."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\+?=")
_BRACED = re.compile(r"[#!]?([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?(:?[-=+?])?")
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`?", re.DOTALL)
_REDIRECTION = re.compile(r"<<<|<<-|<<|[<>]&|<>|>>|>\||[<>]")
_DELIMITER = re.compile(r"[ \t]*((?:'[^']*'|\"[^\"]*\"|\\.|[^\s;&|<>()'\"\\])+)")
_NUMBER = re.compile(r"[0-9]\w*")
_SETS_IN_ARITHMETIC = re.compile(r"\s*(?:(=)(?!=)|(?:[-+*/%&|^]|<<|>>)=)")
_CLAUSE_END = re.compile(r";;&?|;&")
_NO_PARAMETERS = re.compile(r"\([ \t]*\)")

_LONGEST_EXPRESSION = 4_096

_OPENERS = frozenset({"if", "then", "else", "elif", "while", "until", "do", "!", "time"})
_CLOSERS = frozenset({"fi", "done", "esac"})
_COMPOUNDS = frozenset({"if", "while", "until", "for", "select", "case", "{"})
"""The words that begin a compound command, which a closer or ``}`` ends."""

_SETTERS = frozenset(
    {
        *("for", "select", "read", "export", "readonly", "local", "declare", "typeset", "let"),
        *("mapfile", "readarray", "getopts"),
    }
)
_EXPORTERS = frozenset({"export", "declare", "typeset"})
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_WRAPPERS = frozenset(
    {"exec", "command", "nohup", "nice", "env", "timeout", "xargs", "find", "setsid", "stdbuf", "ionice"}
)
"""Commands that execute another one with their own environment."""


def read_variables(line: str) -> list[str]:
    """The variables that a shell line reads before it sets them, in the order of their first use."""
    reader = _Reader(line)
    with suppress(RecursionError):  # nobody nests lines so deep; what was read before counts
        reader.commands()
    return reader.unset()


class _Command:
    """The simple command that is being read. ``assigned`` are the names that stand before it: ``a=1 b=2 make``."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.assigned: dict[str, bool] = {}  # and whether they were set before


class _Frame:
    """What was set, and exported, when a list of commands and its last pipeline began. A compound command has its own
    frames inside."""

    def __init__(self, known: tuple[set[str], set[str]]) -> None:
        self.list_start = self.pipeline_start = known
        self.piped = False


class _Reader:
    """One shell that reads one text. ``known`` are the variables that it was started with."""

    def __init__(self, text: str, known: frozenset[str] = frozenset()) -> None:
        self._text, self._at = text, 0
        self._set, self._ever_set, self._exported = set(known), set(known), set(known)
        self._used: dict[str, None] = {}
        self._used_in_functions: dict[str, None] = {}
        self._functions = 0  # how many function bodies are open
        self._ends = False  # whether eval or . was seen
        self._exports_all = False
        self._documents: list[tuple[str, bool, bool]] = []  # delimiter, whether tabs are removed, whether it is literal

    def unset(self) -> list[str]:
        later = [name for name in self._used_in_functions if name not in self._ever_set]
        return list(dict.fromkeys([*self._used, *later]))

    # -- variables ---------------------------------------------------------------------------------------------------

    def _use(self, name: str) -> None:
        if self._ends or name in self._set:
            return
        (self._used_in_functions if self._functions else self._used)[name] = None

    def _assign(self, name: str) -> None:
        self._set.add(name)
        self._ever_set.add(name)

    def _known(self) -> tuple[set[str], set[str]]:
        return set(self._set), set(self._exported)

    def _restore(self, known: tuple[set[str], set[str]]) -> None:
        self._set, self._exported = set(known[0]), set(known[1])

    @contextmanager
    def _subshell(self) -> Iterator[None]:
        """Assignments in this block end with it."""
        before = self._known()
        yield
        self._restore(before)

    def _separate(self, frame: _Frame, operator: str) -> None:
        """A command ends with an operator: what a pipeline, or a list in the background, has set ends with it."""
        if operator == "&":
            self._restore(frame.list_start)
        elif operator == "|" or frame.piped:
            self._restore(frame.pipeline_start)
        frame.piped = operator == "|"
        if operator not in ("|", "&&", "||"):
            frame.list_start = self._known()
        if operator != "|":
            frame.pipeline_start = self._known()

    @contextmanager
    def _reading(self, text: str) -> Iterator[None]:
        before = self._text, self._at, self._documents
        self._text, self._at, self._documents = text, 0, []
        yield
        self._text, self._at, self._documents = before

    # -- commands ----------------------------------------------------------------------------------------------------

    def commands(self, end: str = "") -> None:
        """Read commands up to ``end``, which is not read, or to the end of the text."""
        command, braces, cases, function = _Command(), list[bool](), 0, False
        frames, operator = [_Frame(self._known())], ""
        while self._at < len(self._text) and (letter := self._text[self._at]) != end:
            if letter in " \t\r)" or self._text.startswith("\\\n", self._at):
                self._at += 2 if letter == "\\" else 1
            elif letter in "\n;&|":
                pair = self._text[self._at : self._at + 2]
                if command.words or command.assigned or operator not in ("|", "&&", "||"):  # else the line goes on
                    operator = pair if pair in ("&&", "||", "&>") else letter
                    command = self._finish(command)
                    self._separate(frames[-1], operator)
                self._at += len(operator) == 2 and pair == operator
                clause = _CLAUSE_END.match(self._text, self._at) if cases else None
                self._at = self._at + 1 if clause is None else clause.end()
                if letter == "\n":
                    self._read_documents()
                elif clause is not None:
                    self._read_patterns()
            elif letter == "#":
                self._at = _position(self._text, "\n", self._at)
            elif letter in "<>":
                self._read_redirection()
            elif letter == "(":
                if len(command.words) == 1 and (match := _NO_PARAMETERS.match(self._text, self._at)) is not None:
                    self._at, function, command = match.end(), True, _Command()
                else:
                    self._read_parenthesis(function, arithmetic=not command.words)
                    function = False
            else:
                word, operator = self._read_word(), ""
                if not command.words and not command.assigned:
                    if word in _COMPOUNDS:
                        frames.append(_Frame(self._known()))
                    elif word in (*_CLOSERS, "}") and len(frames) > 1:
                        self._separate(frames.pop(), ";")
                if command.words or command.assigned or not (word in _OPENERS | _CLOSERS or word in ("{", "}")):
                    self._add(command, word)
                elif word == "{":
                    braces.append(function)
                    self._functions, function = self._functions + function, False
                elif word == "}" and braces:
                    self._functions -= braces.pop()
                if command.words[:1] == ["case"] and len(command.words) == 3:
                    command, cases = _Command(), cases + 1
                    self._read_patterns()
                elif command.words[:1] == ["function"] and len(command.words) == 2:
                    command, function = _Command(), True
        self._finish(command)
        for frame in reversed(frames):
            self._separate(frame, ";")
        self._functions -= sum(braces)

    def _add(self, command: _Command, word: str) -> None:
        match = _ASSIGNMENT.match(word)
        if command.words or match is None:
            if not command.words:  # what stands before a command is set for the command only
                self._set -= {name for name, before in command.assigned.items() if not before}
            command.words.append(word)
        else:
            command.assigned.setdefault(match[1], match[1] in self._set)
            self._assign(match[1])

    def _finish(self, command: _Command) -> _Command:
        """The command is complete: set what it sets. Returns the next one, which is empty."""
        words = command.words
        while words[:1] in (["command"], ["builtin"]):
            words = words[1:]
        first = words[0] if words else ""
        if first in ("eval", "source", "."):
            self._ends = True
        elif first == "unset":
            self._set.difference_update(words)
            self._exported.difference_update(words)
        elif first in _SETTERS or (first == "printf" and "-v" in words):
            names = [
                match[0]
                for word in words[1 : 2 if first in ("for", "select") else None]
                if (match := _NAME.match(word))
            ]
            for name in names:
                self._assign(name)
            if first in _EXPORTERS:
                self._exported.update(names)
        elif first == "set" and ("allexport" in words or any(re.match(r"-\w*a", word) for word in words[1:])):
            self._exports_all = True
        elif (script := _inner_line(words)) is not None:
            prefixed = {match[1] for word in words[: words.index(script)] if (match := _ASSIGNMENT.match(word))}
            exported = self._set if self._exports_all else self._exported
            inner = _Reader(script, frozenset({*exported, *prefixed, *command.assigned}))
            inner.commands()
            if not self._ends:
                self._used.update(dict.fromkeys(inner.unset()))
        return _Command()

    def _read_parenthesis(self, function: bool, *, arithmetic: bool) -> None:
        """A subshell, the body of a function, the elements of an array, or ``((…))``."""
        if arithmetic and self._text.startswith("((", self._at) and self._read_arithmetic(self._at + 2):
            return
        self._at += 1
        self._functions += function
        with self._subshell():
            self.commands(")")
        self._functions -= function
        self._at += 1

    def _read_patterns(self) -> None:
        """The patterns of a clause of ``case``, with the bracket after them; nothing before ``esac``."""
        blank = re.compile(r"(?:\s|#[^\n]*)*\(?").match(self._text, self._at)
        self._at = self._at if blank is None else blank.end()
        if re.compile(r"esac\b").match(self._text, self._at):
            return
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] in " \t\n|;&<>(":
                self._at += 1
            else:
                self._read_word()
        self._at += 1

    # -- redirections and here-documents -----------------------------------------------------------------------------

    def _read_redirection(self) -> None:
        match = _REDIRECTION.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        if match[0] in ("<<", "<<-") and (word := _DELIMITER.match(self._text, self._at)) is not None:
            self._at = word.end()
            delimiter = re.sub(r"\\(.)|['\"]", r"\1", word[1])
            self._documents.append((delimiter, match[0] == "<<-", delimiter != word[1]))

    def _read_documents(self) -> None:
        """The here-documents of the line that has just ended. Only ``\\``, ``$`` and `````` mean something there."""
        waiting, self._documents = self._documents, []
        for delimiter, tabs, literal in waiting:
            lines: list[str] = []
            while self._at < len(self._text):
                end = _position(self._text, "\n", self._at)
                line, self._at = self._text[self._at : end], end + 1
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
                lines.append(line)
            if not literal:
                with self._reading("\n".join(lines)):
                    self._read_quoted("")

    # -- words -------------------------------------------------------------------------------------------------------

    def _read_word(self) -> str:
        """Read a word; returns its text without quotes."""
        parts: list[str] = []
        while self._at < len(self._text) and self._text[self._at] not in " \t\r\n;&|<>()":
            parts.append(self._read_part())
        return "".join(parts)

    def _read_part(self) -> str:
        """A part of a word outside double quotes."""
        letter = self._text[self._at]
        if letter == "'":
            start, self._at = self._at + 1, _position(self._text, "'", self._at + 1) + 1
            return self._text[start : self._at - 1]
        if letter == '"':
            self._at += 1
            text = self._read_quoted('"')
            self._at += 1
            return text
        if letter in "$`":
            return self._read_expansion()
        self._at += 2 if letter == "\\" else 1
        return self._text[self._at - 1 : self._at].strip("\n")

    def _read_quoted(self, end: str) -> str:
        """Text in which only ``\\``, ``$`` and `````` mean something, up to ``end``, which is not read."""
        parts: list[str] = []
        while self._at < len(self._text) and (letter := self._text[self._at]) != end:
            if letter in "$`":
                parts.append(self._read_expansion(quoted=True))
                continue
            escapes = letter == "\\" and self._text[self._at + 1 : self._at + 2] in tuple('$`"\\\n')
            self._at += 2 if escapes else 1
            parts.append(self._text[self._at - 1 : self._at].replace("\n", "" if escapes else "\n"))
        return "".join(parts)

    def _read_expansion(self, *, quoted: bool = False) -> str:
        """What begins with ``$`` or a backtick."""
        text, at = self._text, self._at
        if text[at] == "`":
            match = _BACKTICKS.match(text, at)
            assert match is not None
            self._at = match.end()
            with self._reading(re.sub(r'\\([`\\$"])' if quoted else r"\\([`\\$])", r"\1", match[1])), self._subshell():
                self.commands()
        elif text.startswith("$((", at) and self._read_arithmetic(at + 3):
            pass
        elif text.startswith("$(", at):
            self._at += 2
            with self._subshell():
                self.commands(")")
            self._at += 1
        elif text.startswith("${", at):
            self._at += 2
            self._read_braces(quoted)
        elif (match := _NAME.match(text, at + 1)) is not None:
            self._at = match.end()
            self._use(match[0])
        else:
            special = text[at + 1 : at + 2] in tuple("$?#!*@-0123456789")
            self._at += 2 if special else 1
            return OPAQUE if special else "$"
        return OPAQUE

    def _read_braces(self, quoted: bool) -> None:
        """The rest of ``${``. With an operator for an unset variable, the line knows that it may be unset, and tests
        it: it counts as set from there on."""
        match = _BRACED.match(self._text, self._at)
        if match is not None:
            self._at, name, operator = match.end(), match[1], match[2] or ""
            if not operator:
                self._use(name)
            elif operator[-1] in "=?":
                self._assign(name)
            else:
                self._set.add(name)
        while self._at < len(self._text) and self._text[self._at] != "}":
            if quoted:
                self._read_quoted_part()
            else:
                self._read_part()
        self._at += 1

    def _read_quoted_part(self) -> None:
        if self._text[self._at] in "$`":
            self._read_expansion(quoted=True)
        else:
            self._at += 2 if self._text[self._at] == "\\" else 1

    def _read_arithmetic(self, start: int) -> bool:
        """Read an arithmetic expression that begins at ``start``, and its brackets. Returns False if the brackets are
        those of commands."""
        end = _arithmetic_end(self._text, start)
        if end is None:
            return False
        with self._reading(self._text[start:end]):
            while self._at < len(self._text):
                if self._text[self._at] in "$`":
                    self._read_expansion(quoted=True)
                elif (number := _NUMBER.match(self._text, self._at)) is not None:
                    self._at = number.end()
                elif (name := _NAME.match(self._text, self._at)) is not None:
                    self._at = name.end()
                    sets = _SETS_IN_ARITHMETIC.match(self._text, self._at)
                    if sets is None or sets[1] is None:
                        self._use(name[0])
                    if sets is not None:
                        self._assign(name[0])
                else:
                    self._at += 1
        self._at = end + 2
        return True


def _inner_line(words: list[str]) -> str | None:
    """The line that a command gives to a shell: ``sh -c LINE``."""
    places = range(len(words)) if words and words[0].rpartition("/")[2] in _WRAPPERS else range(min(1, len(words)))
    for place in places:
        if words[place].rpartition("/")[2] not in _SHELLS:
            continue
        rest = iter(words[place + 1 :])
        takes_line = False
        for word in rest:
            if not word.startswith(("-", "+")):
                return word if takes_line else None
            takes_line = takes_line or (not word.startswith("--") and "c" in word)
            if word.endswith("o") and not word.startswith("--"):
                next(rest, None)  # the name of an option
    return None


def _arithmetic_end(text: str, start: int) -> int | None:
    """Where ``))`` closes an arithmetic expression; None if brackets close one by one, as those of commands do."""
    depth = 0
    for at in range(start, min(len(text), start + _LONGEST_EXPRESSION)):
        if text[at] == "(":
            depth += 1
        elif text[at] == ")" and depth:
            depth -= 1
        elif text[at] == ")":
            return at if text.startswith("))", at) else None
    return None


def _position(text: str, letter: str, start: int) -> int:
    """Where a letter is next; the end of the text if it is nowhere."""
    position = text.find(letter, start)
    return len(text) if position < 0 else position


# -- shell variables ---------------------------------------------------------------------------------------------------


SHORTEST = 4
"""The length from which on a name that is only close to another is taken for a slip."""

CLOSE = 0.75
"""How similar such a name has to be: one letter of four may differ."""


def unset_variables(
    task: models.Task, tasks: Collection[str], sources: Collection[str], names: Collection[str]
) -> Iterator[str]:
    """A sentence for each variable in the shell line of a task that nobody sets, and that has, or almost has, the name
    of a task, an input or a parameter; and for each input that is written ``{name}``. ``sources`` are the tasks that it
    comes after, ``names`` the parameters and the names of its element, which are variables, too."""
    line = task.shell or ""
    for name in task.inputs or ():
        if re.search(rf"(?<!\$)\{{{re.escape(name)}\}}", line):
            yield f'a shell line takes inputs as variables: write "${name}" instead of {{{name}}}'
    if "$" not in line:
        return
    passed = {*(task.inputs or ()), *(task.env or ()), *names}
    for variable in read_variables(line):
        name, prefix = _input_name(variable)
        if name in passed or variable.removeprefix(VARIABLE_PREFIX) in passed:
            continue
        if not prefix and (variable in os.environ or is_reserved(variable)):
            continue
        known = next((spelling for spelling in (name, name.replace("_", "-")) if spelling in tasks), None)
        if known is not None:
            yield _unpassed(variable, name, known, known in sources)
            continue
        near = get_close_matches(name, [*passed, *sources], 1, CLOSE) if len(name) >= SHORTEST else []
        if near and near[0] in passed:
            yield f"the line uses ${variable}, which nothing sets; did you mean ${prefix}{near[0]}?"
        elif near:
            name = near[0].replace("-", "_")
            yield (
                f"the line uses ${variable}, which nothing sets; did you mean the task {near[0]!r}? "
                f"To pass its result, add inputs: {{{name}: {{from: {near[0]}}}}} and write ${name}"
            )
        elif prefix:
            yield f"the line uses ${variable}, but the task has no input {name!r}"


def _input_name(variable: str) -> tuple[str, str]:
    """The input that a variable holds, and the prefix of the variable."""
    for prefix in (FILE_PREFIX, VARIABLE_PREFIX):
        if variable.startswith(prefix) and variable != prefix:
            return variable.removeprefix(prefix), prefix
    return variable, ""


def _unpassed(variable: str, name: str, task: str, follows: bool) -> str:
    after = "" if follows else f", and after: {task}"
    return (
        f"the line uses ${variable}, but the result of task {task!r} is not passed to it, so the variable is empty; "
        f"add inputs: {{{name}: {{from: {task}}}}}{after}"
    )
