"""Start-up of a process: names imported on first use, hints for missing extras, the garbage collector.

A command starts fast because a package imports a module only when one of its names is used (``lazy_names``, PEP 562).
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

VERSION = "0.1.0"
"""The version of this package."""

GC_THRESHOLD = 5_000
"""After how many allocations more than deallocations Python searches for cycles among the newest objects, …"""

START_THRESHOLD = 100_000
"""The same while a command starts, and in one that does not call ``tune_gc``."""

OLDER_THRESHOLD = 5
"""… and after more than so many such searches among older ones, too, and after more than so many of those among all. A
plan that has ended is old, and its tasks refer to each other: with 20 and 50, a server kept all
plans of a day."""


_LAZY_IMPORT = re.compile(r"^    from ([\w.]+) import (\w+) as", re.MULTILINE)


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package, which import its names on first use, and list them as
    ``__all__``. The names are those that its source imports for type checkers, so they are written down once::

    if TYPE_CHECKING:
        from asterism.store.memory import MemoryStore as MemoryStore

    __getattr__, __dir__ = lazy_names(__name__)
    """

    @cache
    def places() -> dict[str, str]:
        source = sys.modules[package].__loader__.get_source(package)  # type: ignore[union-attr]
        imports = _LAZY_IMPORT.findall(source.partition("\nif TYPE_CHECKING:\n")[2])
        return {name: module for module, name in imports}

    def get(name: str) -> Any:
        if name == "__all__":
            own = vars(sys.modules[package]).items()
            return sorted({*places(), *(name for name, value in own if getattr(value, "__module__", "") == package)})
        if name.startswith("__") or name not in places():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(places()[name])
        value = getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places()})

    return get, names


def install_hint(extra: str) -> str:
    """The command that installs an extra of this package into this Python, from where the package came.

    It names no package index, since another package may have this name there: if nothing tells where the package came
    from, the command is one for its checkout."""
    import shlex
    from urllib.parse import unquote, urlsplit

    name = __name__.partition(".")[0]
    source = _source_of(name)
    if source is None:
        return f"install the extra {extra!r} of this package (in its checkout: pip install '.[{extra}]')"
    url, is_folder, editable = source
    target = f"{unquote(urlsplit(url).path)}[{extra}]" if is_folder else f"{name}[{extra}] @ {url}"
    words = [sys.executable or "python", "-m", "pip", "install", *(["-e"] if editable else []), target]
    return f"install the extra {extra!r}: {shlex.join(words)}"


def _source_of(name: str) -> tuple[str, bool, bool] | None:
    """The address that a package was installed from (PEP 610), whether that is a folder, and whether it is used from
    there; None if it is not known, or came from an index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = json.loads(distribution(name).read_text("direct_url.json") or "null")
        url, folder, vcs = record["url"], record.get("dir_info"), record.get("vcs_info")
    except (PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(url, str):
        return None
    if folder is not None:
        return (url, True, bool(folder.get("editable"))) if url.startswith("file://") else None
    return (f"{vcs['vcs']}+{url}" if vcs is not None else url), False, False


def tune_gc() -> None:
    """Search for reference cycles less often, and never among the objects that exist now. Only the owner of a process
    may call this, for a device or an orchestrator; a library must not.

    Reference counting frees most objects of a busy process a moment later. By default Python nevertheless searches for
    cycles after every 700 allocations, which costs a tenth of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, OLDER_THRESHOLD, OLDER_THRESHOLD)


def collect_rarely() -> None:
    """Search for reference cycles seldom. Imports make many objects and no garbage: a twelfth of the time of a short
    command is otherwise spent on such searches."""
    gc.set_threshold(START_THRESHOLD, OLDER_THRESHOLD, OLDER_THRESHOLD)
