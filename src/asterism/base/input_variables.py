"""Inputs of a command as environment variables.

Each input is the variable ``ASTERISM_INPUT_<name>``, with its name as it is. The prefix keeps the name of an input from
meaning something to the system: anybody who may create a run chooses its input, and ``PATH``, ``BASH_ENV`` or
``LD_PRELOAD`` would decide what the command executes.

An input is a variable under its bare name, too, where the author of the work asks for it: its name stands in the shell
line. It never is under a name that programs and shells give a meaning to (RESERVED). ``env`` of a task or workflow
gives a variable of any name, since the author chooses those names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from asterism.base.task_inputs import MissingInput, as_text

PREFIX = "ASTERISM_INPUT_"

LONGEST = 128 * 1024 - 1
"""How long one word or variable of a command may be, in bytes: Linux takes no longer one."""

RESERVED = (
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
"""Names that no input gets, however it is asked for. ``*`` stands for any letters, ``?`` for one."""

_reserved = re.compile("|".join(name.replace("*", ".*").replace("?", ".") for name in RESERVED))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SUFFIX = re.compile(r"[A-Za-z0-9_]+")


def is_reserved(name: str) -> bool:
    """Whether a name means something to shells or programs, or cannot be that of a variable in a shell."""
    return _NAME.fullmatch(name) is None or _reserved.fullmatch(name) is not None


def mentions(line: str, name: str) -> bool:
    """Whether the name of an input stands in a shell line, as a word of its own."""
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", line) is not None


def refers_to(line: str, name: str) -> bool:
    """Whether a shell line has the variable ``$name``, in one of the ways in which a shell takes it."""
    return re.search(rf"\$\{{?[#!]?{re.escape(name)}(?![A-Za-z0-9_])", line) is not None


def check(line: str, given: Mapping[str, Any], own: Container[str]) -> None:
    """Raises MissingInput for a line that has the variable of an input which cannot be one, rather than let it mean
    something else. ``own`` are the variables that the author of the line gives a value to."""
    for name in given:
        if _NAME.fullmatch(name) and is_reserved(name) and name not in own and refers_to(line, name):
            raise MissingInput(
                f"an input is never the variable ${name}, which means something to the system; {instead(name)}"
            )


def instead(name: str) -> str:
    return f"write ${PREFIX}{name}, or name a variable of your own in 'env'"


def prefixed(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """All inputs that can be a variable. What has another kind of name, or is too long, has to be read elsewhere."""
    for name, value in given.items():
        if _SUFFIX.fullmatch(name) and (text := _text(PREFIX + name, value)) is not None:
            yield PREFIX + name, text


def bare(given: Mapping[str, Any], wanted: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Those under their bare name that are ``wanted`` and not reserved."""
    for name, value in given.items():
        if not is_reserved(name) and wanted(name) and (text := _text(name, value)) is not None:
            yield name, text


def _text(name: str, value: Any) -> str | None:
    """The value of a variable; None if it cannot be one."""
    text = as_text(value)
    fits = "\0" not in text and len(name) + 1 + len(text.encode(errors="replace")) <= LONGEST
    return text if fits else None
