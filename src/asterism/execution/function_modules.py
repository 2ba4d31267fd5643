"""Functions by their import paths, and their modules, which are imported again after a change of their files.

Before each call of a function by its path, the files of its project are compared with what was imported. If one has
changed, all modules of functions are dropped from ``sys.modules`` together, and the function is imported anew: the
modules that are in use always belong together. A call that is running keeps what it has imported, such as the imports
at the top of its module. An import inside a function that is running gives the module that is there then: after a
change the new one.

These modules are not imported again: the standard library and ``site-packages``, Asterism, extension modules, and
what the program had imported itself before it asked for a function.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from asterism.core.errors import NotJson
from asterism.core.plan.task import Task, import_path
from asterism.execution.function_calls import call_in_thread

log = logging.getLogger("asterism.device")

_INSTALLED = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,  # asterism
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


class _Stamp(NamedTuple):
    """What changes with the content of a file. The change time also tells of a copy that keeps the time of its
    source."""

    modified: int
    changed: int
    size: int


def _stamp(file: str) -> _Stamp | None:
    """None if there is no such file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return _Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_size)


MOST_AT_ONCE = 50
"""How many files are looked at on an event loop, about a millisecond. More are looked at in a thread."""

_UNKNOWN = _Stamp(-1, -1, -1)
"""The stamp of a file that may have changed while it was imported: it counts as changed."""


class _FunctionModules:
    """The modules of functions in this process. There is one, because there is one ``sys.modules``."""

    def __init__(self) -> None:
        self._importing = threading.RLock()  # a module may load a function while it is imported
        self._objects: dict[str, Any] = {}  # by path
        self._stamps: dict[str, tuple[str, _Stamp | None]] = {}  # by module: its file, as it was imported
        self._others: set[str] | None = None  # modules that are never imported again
        self._count = 0  # of all modules, at the last look
        self._looked = 0  # when that was: what has not changed since was imported as it is
        self._dropped: dict[str, _Stamp | None] = {}  # by file: as it was before it was imported again
        self._same = 0  # when the last look began that found no change, by the monotonic clock

    def find(self, path: str) -> Any:
        """What ``load`` returns, or None if that takes long: it has to import a module, or to look at many files."""
        objects = self._objects  # after a change this is no longer the dictionary that counts
        if len(self._stamps) > MOST_AT_ONCE or self._changed():
            return None
        if path not in objects and _is_imported(path.partition(":")[0]):
            objects[path] = _object(path)
        return objects.get(path)

    def load(self, path: str) -> Any:
        """What is at ``package.module:name``. Raises ImportError with the missing part."""
        asked = time.monotonic_ns()
        with self._importing:
            if self._same > asked and path in self._objects:  # another call has looked meanwhile
                return self._objects[path]
            if changed := self._changed():
                log.info("%s has changed; its module and those that were imported with it are imported again", changed)
                self._drop()
            if path not in self._objects:
                self._objects[path] = _object(path)
                self._changed()  # stamps the modules that are new
            return self._objects[path]

    def _changed(self) -> str | None:
        """The file of a module that has changed since it was imported."""
        if self._others is None:
            self._others = set(sys.modules)
        now, began = time.time_ns(), time.monotonic_ns()
        settled = len(sys.modules) == self._count or self._find_new()
        if settled:
            self._looked = now
        changed = next((file for file, stamp in list(self._stamps.values()) if _stamp(file) != stamp), None)
        if changed is None and settled:
            self._same = began
        return changed

    def _find_new(self) -> bool:
        """Stamp the files of modules that were imported since the last look. Returns False if one is being imported."""
        assert self._others is not None
        count = len(sys.modules)
        for name, module in list(sys.modules.items()):
            if name in self._others or name in self._stamps:
                continue
            if _is_initializing(module):
                return False
            file = _project_file(module)
            if file is None:
                self._others.add(name)
                continue
            stamp = _stamp(file)
            # a file may have a time in the future: it was imported as it is if it was the same before
            seen = stamp is None or stamp.changed <= self._looked or stamp == self._dropped.get(file)
            self._stamps[name] = file, stamp if seen else _UNKNOWN
        self._count = count
        return True

    def _drop(self) -> None:
        """Make the next import of each module read its file. A module that another thread is importing stays."""
        self._objects = {}
        self._dropped = {}
        for name, (file, stamp) in list(self._stamps.items()):
            self._dropped[file] = _stamp(file)
            if stamp != self._dropped[file]:  # Python compares whole seconds and the size with its compiled copy
                with contextlib.suppress(OSError, NotImplementedError):
                    Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
            module = sys.modules.get(name)
            if module is None or _is_initializing(module):
                continue
            del sys.modules[name]
            package, _, last = name.rpartition(".")
            parent = sys.modules.get(package)
            if parent is not None and getattr(parent, last, None) is module:  # `from package import module` looks there
                delattr(parent, last)
        self._stamps = {}
        self._count = 0
        importlib.invalidate_caches()


def load_function(path: str) -> Callable[..., Any]:
    """The function at ``package.module:function``, or of the task there. Raises ImportError with the missing part."""
    return _callable(path, _modules.load(path))


def find_function(path: str) -> Callable[..., Any] | None:
    """The same, or None if that takes long: a module has to be imported, or many files have to be looked at."""
    target = _modules.find(path)
    return None if target is None else _callable(path, target)


async def function_at(path: str) -> Callable[..., Any]:
    """What ``load_function`` returns. What takes long is done in a thread."""
    function = find_function(path)
    return function if function is not None else await call_in_thread(load_function, {"path": path})


def _callable(path: str, target: Any) -> Callable[..., Any]:
    if isinstance(target, Task) and target.call is not None and not isinstance(target.call, str):
        target = target.call  # of @plan.task, which gives the name of the function to its task
    if not callable(target):
        raise ImportError(f"{path!r} is not callable")
    return target  # type: ignore[no-any-return]


def stored_path(call: Callable[..., Any] | str, task_id: str) -> str:
    """The path by which other processes find the function of a task. Raises NotJson if it does not lead there."""
    path = import_path(call, task_id)
    if isinstance(call, str):
        return path
    try:
        imported = load_function(path)
    except ImportError as error:
        raise NotJson(f"task {task_id!r}: {call!r} cannot be imported as {path}: {error}") from None
    if imported is not call:
        raise NotJson(f"task {task_id!r}: {path} is not the function {call!r}, so the task cannot be resumed")
    return path


def _object(path: str) -> Any:
    module_name, _, qualified = path.partition(":")
    target: Any = importlib.import_module(module_name)
    for name in qualified.split("."):
        try:
            target = getattr(target, name)
        except AttributeError:
            raise ImportError(f"{path!r}: {module_name!r} has no {qualified!r}") from None
    return target


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not _is_initializing(module)


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _project_file(module: ModuleType) -> str | None:
    """The file of a module that is imported again when it changes; None for any other module."""
    spec = getattr(module, "__spec__", None)
    file = getattr(spec, "origin", None)
    if type(getattr(spec, "loader", None)) is not SourceFileLoader or not isinstance(file, str):
        return None
    path = os.path.abspath(file)
    return None if path.startswith(_INSTALLED) or _PACKAGE_FOLDERS & set(Path(path).parts) else path


_modules = _FunctionModules()
load_object = _modules.load
