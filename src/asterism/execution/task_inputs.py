"""Inputs of a task: constants, results of dependencies, secrets, templates, environment variables.

Secrets are read from the environment before anything is evaluated, and are in no record. Callers resolve inputs under
the mask of these secrets, since the error of an expression may show its data.

A command gets each input as a file and as the variable ``ASTERISM_INPUT_<name>`` (``command_inputs.py``). The prefix
matters: any user who may create a run chooses its input, and a variable ``PATH``, ``BASH_ENV`` or ``LD_PRELOAD`` would
decide what the command executes. If the shell line mentions the name of an input, the input is also a variable with its
bare name, unless that name has a meaning to programs or shells (RESERVED_VARIABLES). ``env`` of a task or workflow may
set a variable of any name, since its author chooses those names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from asterism.base.secret_mask import Mask
from asterism.core.errors import AsterismError, error_text
from asterism.core.json_values import NOTHING, JsonObject, is_large, plain_json
from asterism.core.plan.group_elements import results_without_failures
from asterism.core.plan.node import Node
from asterism.core.plan.status import FAILED

FAILED_ELEMENTS = ("skip", "null", "fail")
"""What ``failed`` of a reference to a group says of its elements that failed: they are left out, are null, or fail the
task that takes the result."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}|\{\{|\}\}")


class MissingInput(AsterismError):
    """An input has no value."""


class ResolvedInputs(NamedTuple):
    """The inputs and environment of one execution, and the mask for its output."""

    inputs: JsonObject
    environment: dict[str, str]
    mask: Mask


NO_SECRETS = Mask()


class References:
    """What the references of an action stand for: ``{"from": …}`` for one of ``values``, ``{"secret": …}`` for a secret
    of ``mask``. An expression is compiled once. ``nodes`` are those of the plan: for groups that failed in part."""

    def __init__(self, values: Mapping[str, Any], mask: Mask, nodes: Mapping[str, Node] = NOTHING) -> None:
        from asterism.base.expressions import Selections

        self._values, self._mask, self._select, self._nodes = values, mask, Selections(), nodes

    def fill(self, value: Any, where: str = "request") -> Any:
        """A value, with what it stands for if it is a reference. ``where`` is its name. Raises MissingInput."""
        if not is_reference(value):
            return value
        if "secret" in value:
            name = value["secret"]
            if not isinstance(name, str) or name not in self._mask.values:
                raise MissingInput(self.no_secret(where, name))
            return self._mask.values[name]
        source, expression = value["from"], value.get("select")
        if not isinstance(source, str) or source not in self._values:
            raise MissingInput(self.no_value(where, source))
        result = self._values[source] if value.get("failed") is None else self._judged(source, value["failed"], where)
        return result if expression is None else self._select(expression, {"result": result})

    def _judged(self, source: str, failed: Any, where: str) -> Any:
        """The result of a group, by what ``failed`` says of the elements that failed. Raises MissingInput."""
        group = self._nodes.get(source)
        if failed not in FAILED_ELEMENTS or group is None:
            raise MissingInput(f"input {where!r}: {failed_problem(failed) or 'failed belongs to inputs only'}")
        if failed == "fail" and group.status is FAILED:
            raise MissingInput(f"input {where!r}: {source!r} failed: {error_text(group.error)}")
        if failed == "skip" and "of" in (group.task.foreach or {}):
            return results_without_failures(self._nodes, group)
        return self._values[source]

    def deep(self, value: Any) -> Any:
        """A value with all references inside it filled in, such as the headers of a request. Raises MissingInput."""
        if is_reference(value):
            return self.fill(value)
        if isinstance(value, Mapping):
            return {key: self.deep(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.deep(item) for item in value]
        return value

    def environment(self, env: Mapping[str, Any]) -> dict[str, str]:
        """The variables of an action as text. Raises MissingInput."""
        return {name: input_text(self.fill(value, name)) for name, value in env.items()}

    def no_secret(self, where: str, name: Any) -> str:
        return f"input {where!r}: the environment has no secret {name!r}"

    def no_value(self, where: str, name: Any) -> str:
        return f"input {where!r}: {name!r} is not a task that this one depends on"


def is_reference(value: Any) -> bool:
    """Whether an input is ``{"from": …}`` or ``{"secret": …}`` rather than a constant."""
    return isinstance(value, Mapping) and (
        set(value) == {"secret"} or ("from" in value and set(value) <= {"from", "select", "failed"})
    )


def failed_problem(failed: Any) -> str | None:
    """Why ``failed`` of a reference is not valid; None if it is."""
    return None if failed is None or failed in FAILED_ELEMENTS else f"failed is skip, null or fail, not {failed!r}"


def is_secret(value: Any) -> bool:
    """Whether a value refers to a secret."""
    return is_reference(value) and "secret" in value


def fill_template(text: str, inputs: Mapping[str, Any], quoted: Callable[[str], str] = str) -> str:
    """A text with each ``{name}`` replaced by the input; ``{{`` and ``}}`` are braces."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group(0)[0]
        if name not in inputs:
            raise MissingInput(f"{text!r} names {{{name}}}, but there is no such input")
        return quoted(input_text(inputs[name]))

    return _PLACEHOLDER.sub(replace, text)


def names_in(text: str) -> set[str]:
    """The inputs that a text names."""
    return {match[1] for match in _PLACEHOLDER.finditer(text) if match[1] is not None}


def url_quoted(text: str) -> str:
    return quote(text, safe="")


def input_text(value: Any) -> str:
    """An input as a command sees it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(plain_json(value))


# -- inputs as environment variables -----------------------------------------------------------------------------------

VARIABLE_PREFIX = "ASTERISM_INPUT_"

RESERVED_VARIABLES = (
    # the shell, the loader, the C library
    *("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "OLDPWD", "IFS", "ENV", "CDPATH", "FPATH", "TMPDIR"),
    *("TEMP", "TMP", "TERM", "TERMCAP", "TERMINFO*", "TZ", "TZDIR", "LANG", "LANGUAGE", "LC_*", "NLSPATH"),
    *("PS?", "PROMPT_COMMAND", "SHELLOPTS", "BASH*", "ZDOTDIR", "HISTFILE", "INPUTRC", "FCEDIT", "MAIL"),
    *("MAILPATH", "LD_*", "DYLD_*", "GCONV_PATH", "LOCPATH", "GLIBC_*", "MALLOC_*", "HOSTALIASES"),
    *("LOCALDOMAIN", "RES_OPTIONS", "NSS_*", "POSIXLY_CORRECT", "XDG_*", "DBUS_*", "SYSTEMD_*"),
    # interpreters and build tools
    *("PYTHON*", "VIRTUAL_ENV", "PIP_*", "UV_*", "PERL5*", "PERL_*", "PERLLIB", "RUBY*", "GEM_*", "BUNDLE_*"),
    *("NODE_*", "NPM_*", "npm_*", "LUA_*", "PHPRC", "PHP_*", "JAVA_*", "_JAVA_*", "JDK_*", "CLASSPATH"),
    *("MAVEN_*", "GRADLE_*", "GOPATH", "GOROOT", "GOPROXY", "CARGO_*", "RUSTC*", "RUSTUP_*", "MAKEFILES", "CC"),
    *("CXX", "CPP", "*FLAGS", "TF_*"),
    # what programs start, and whom they trust
    *("EDITOR", "VISUAL", "*PAGER", "BROWSER", "LESS", "LESSOPEN", "LESSCLOSE", "MANPATH", "GIT_*", "SSH_*"),
    *("GPG*", "GNUPGHOME", "SUDO_*", "TAR_OPTIONS", "GREP_*", "WGETRC", "CURL_*", "SSL_*", "OPENSSL_*"),
    *("*_CA_BUNDLE", "*_proxy", "*_PROXY", "DOCKER_*", "KUBECONFIG", "AWS_*", "AZURE_*", "GOOGLE_*", "PGHOST*"),
    *("PGPORT", "PGUSER", "PGPASS*", "PGSERVICE*", "PGOPTIONS", "PGSSL*", "MYSQL_*", "DISPLAY", "WAYLAND_*"),
    # our own
    "ASTERISM_*",
)
"""Names that no input gets as a bare variable. ``*`` stands for any letters, ``?`` for one."""


@cache
def _reserved() -> re.Pattern[str]:
    """Compiled on first use, since that takes milliseconds."""
    return re.compile("|".join(name.replace("*", ".*").replace("?", ".") for name in RESERVED_VARIABLES))


VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_reserved(name: str) -> bool:
    """Whether a name has a meaning to shells or programs, or is not valid as a shell variable."""
    return VARIABLE_NAME.fullmatch(name) is None or _reserved().fullmatch(name) is not None


def mentions_name(line: str, name: str) -> bool:
    """Whether a shell line contains the name of an input as a word."""
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", line) is not None


def refers_to_variable(line: str, name: str) -> bool:
    """Whether a shell line uses the variable ``$name``, in any of the forms of a shell."""
    return re.search(rf"\$\{{?[#!]?{re.escape(name)}(?![A-Za-z0-9_])", line) is not None


def check_shell_line(line: str, inputs: Mapping[str, Any], own: Container[str]) -> None:
    """Raise MissingInput for a line that uses the variable of an input with a reserved name: it would have another
    value. ``own`` are the variables that the author of the line sets."""
    for name in inputs:
        if VARIABLE_NAME.fullmatch(name) and is_reserved(name) and name not in own and refers_to_variable(line, name):
            raise MissingInput(
                f"an input cannot be the variable ${name}, which has a meaning to the system; {variable_advice(name)}"
            )


def variable_advice(name: str) -> str:
    return f"write ${VARIABLE_PREFIX}{name}, or set a variable of your own in 'env'"


# -- large values in a thread ------------------------------------------------------------------------------------------


Answer = TypeVar("Answer")

LARGE_TEXT = 1 << 18
"""A text that takes long to encode, decode or parse, in bytes."""


async def call_apart(function: Callable[..., Answer], value: Any, *more: Any) -> Answer:
    """Call a function with a value, and return its answer: in a thread if the value is large."""
    large = len(value) > LARGE_TEXT if isinstance(value, bytes | bytearray) else is_large(value)
    import asyncio  # slow to import, and `asterism check` needs none of it

    return await asyncio.to_thread(function, value, *more) if large else function(value, *more)
