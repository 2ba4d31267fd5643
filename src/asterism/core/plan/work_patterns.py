"""Patterns of work: ``make``, ``./tools/*``, ``reports:*``, ``https://*.example.org/issues/*``; what work deletes.

The work of a plug-in has the name ``plugin:container``.

A pattern is compared part by part, never with the text as a whole, so a wildcard in one part does not match text that
another part begins: the name of a function has no dots that the pattern does not have, a program no directories, and a
URL no host. ``*`` alone fits all work that has a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from asterism.core.plan.task import PLUGIN_NEED, Task, kind_of, plugin_name

_SLASH = re.compile(r"[/\\]")
_URL = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?(/[^?#]*)?(?:[?#].*)?", re.IGNORECASE)
_URL_PATTERN = re.compile(r"(https?|\*)://(\[[0-9a-f:.]+\]|[a-z0-9._*?-]+)(:(?:[0-9]{1,5}|\*))?(/.*)?", re.IGNORECASE)
_DOTS = re.compile(r"(?:\.|%2e){1,2}", re.IGNORECASE)


def work_name(task: Task) -> str | None:
    """What a task executes, by name: a function, a program, a URL or a plug-in. None for a shell line, for work for an
    agent, and for no work at all."""
    if task.call is not None:
        if isinstance(task.call, str):
            return task.call
        return f"{getattr(task.call, '__module__', '')}:{getattr(task.call, '__qualname__', '')}"
    if task.argv is not None:
        return task.argv[0]
    if task.http is not None:
        return str(task.http.get("url"))
    return None if task.plugin is None else PLUGIN_NEED + plugin_name(task.plugin)


def work_fits(task: Task, patterns: Iterable[str]) -> bool:
    """Whether what a task executes has a name, and fits one of the patterns."""
    name = work_name(task)
    if name is None:
        return False
    if task.http is not None and _names_host(task):
        return False
    return any(pattern == "*" or _FITS[str(kind_of(task))](name, pattern) for pattern in patterns)


def _function_fits(name: str, pattern: str) -> bool:
    """``*`` in the module matches submodules, too; in the function it matches one name, since what a module has
    imported hangs below its names."""
    (module, _, function), (of_module, colon, of_function) = name.partition(":"), pattern.partition(":")
    return bool(colon) and fnmatchcase(module, of_module) and _parts_fit(function.split("."), of_function.split("."))


def _program_fits(name: str, pattern: str) -> bool:
    """A program whose place is known: no input is part of it, and it does not go up."""
    parts = _SLASH.split(name)
    if "{" in name or "}" in name or ".." in parts:
        return False
    return _parts_fit(parts, _SLASH.split(pattern))


def _url_fits(name: str, pattern: str) -> bool:
    """The query is not compared. An input in the path fits only if the pattern allows every path."""
    url, wanted = _URL.fullmatch(name), _URL_PATTERN.fullmatch(pattern)
    if url is None or wanted is None:
        return False
    path, of_path = url[4] or "/", wanted[4] or "/"
    if of_path != "/*" and ("{" in path or "}" in path):
        return False
    if any(_DOTS.fullmatch(part) for part in re.split(r"[/\\]|%2f|%5c", path, flags=re.IGNORECASE)):
        return False
    return (
        wanted[1].lower() in ("*", url[1].lower())
        and fnmatchcase(url[2].lower(), wanted[2].lower())
        and wanted[3] in (":*", url[3])
        and fnmatchcase(path, of_path)
    )


def _names_host(task: Task) -> bool:
    """Whether a request has a ``Host`` of its own, which may be another than that of the URL."""
    headers = (task.http or {}).get("headers") or ()
    return any(str(name).strip().lower() == "host" for name in headers)


def _parts_fit(parts: list[str], patterns: list[str]) -> bool:
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _plugin_fits(name: str, pattern: str) -> bool:
    """A pattern of functions, such as ``*:*``, does not allow a plug-in."""
    return pattern.startswith(PLUGIN_NEED) and fnmatchcase(name, pattern)


_FITS: dict[str, Callable[[str, str], bool]] = {
    "call": _function_fits,
    "argv": _program_fits,
    "http": _url_fits,
    "plugin": _plugin_fits,
}


# -- effects -----------------------------------------------------------------------------------------------------------

DELETE_WORDS = frozenset(
    {
        *("rm", "rmdir", "unlink", "shred", "wipefs", "mkfs", "truncate", "delete", "-delete", "--delete", "destroy"),
        *("drop", "prune", "purge", "uninstall"),
    }
)
"""Words of commands that delete: ``rm``, ``kubectl delete``, ``terraform destroy``, ``find -delete``."""

RUNS_ANOTHER = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "busybox", "eval", "exec", "command", "env", "sudo", "doas", "su"),
        *("xargs", "nice", "nohup", "timeout", "time", "setsid", "ssh", "find"),
    }
)
"""Words of commands that execute another program, which one of their words names."""


def effects_of(task: Task) -> frozenset[str]:
    """What a task does, as it says; and ``deletes`` if its command or its request says so plainly, or leaves open which
    program or method it is. A function, a script or an agent may do anything: only its ``effects`` tell."""
    if "deletes" in task.effects:
        return task.effects
    method = _filled(str(task.http.get("method", "GET")), task) if task.http is not None else ""
    command = _filled(task.shell if task.shell is not None else " ".join(task.argv or ()), task)
    words = frozenset(re.split(r"[\s;&|()`\"'$/=\\]+", command.lower()))
    deletes = method.upper() == "DELETE" or "{" in method or not DELETE_WORDS.isdisjoint(words)
    if deletes or _open_program(command, task.shell is not None, words):
        return task.effects | {"deletes"}
    return task.effects


def _filled(text: str, task: Task) -> str:
    """A text with the inputs (``{name}``) and the variables (``$name``, ``${name}``) that are known. A value may have
    placeholders again, of the elements of a group."""

    def fill(match: re.Match[str]) -> str:
        value = task.inputs.get(match[1]) if match[1] else task.env.get(match[2] or match[3])
        return value if isinstance(value, str) else match[0]

    return _NAMED.sub(fill, text)


def _open_program(command: str, shell: bool, words: frozenset[str]) -> bool:
    """Whether a placeholder or a variable decides which program is executed."""
    wrapped = not RUNS_ANOTHER.isdisjoint(words)
    if wrapped and _OPEN.search(command):
        return True
    parts = re.split(r"[;&|(`\n]+", command) if shell else [command]
    return any(_OPEN.match(_BEFORE_PROGRAM.sub("", part)) for part in parts)


_NAMED = re.compile(r"\{(\w+)\}|\$(\w+)|\$\{(\w+)\}")
_OPEN = re.compile(r"[^\s\"']*(?:\{\w|\$[\w{@*])")
_BEFORE_PROGRAM = re.compile(r"^(?:\s|[\"'\\]|\w+=\S*\s)+")
