"""Start-up of a process: names imported on first use, hints for missing extras, the garbage collector.

A command starts fast because a package imports a module only when one of its names is used (``lazy_names``, PEP 562).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

GC_THRESHOLD = 20_000
"""After how many allocations more than deallocations Python searches for cycles."""


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package. ``modules`` maps each module to the names it defines, and
    each package to those of its modules that are public themselves::

    if TYPE_CHECKING:
        from asterism.store.memory import MemoryStore

    __all__ = ["MemoryStore"]
    __getattr__, __dir__ = lazy_names(__name__, {"asterism.store.memory": ["MemoryStore"]})
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(places[name])
        value = getattr(module, name) if hasattr(module, name) else import_module(f"{places[name]}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, names


def install_hint(extra: str) -> str:
    """A hint that names no package index, since another package may have this name there."""
    return f"install the extra {extra!r} of this package (in its checkout: pip install '.[{extra}]')"


def tune_gc() -> None:
    """Search for reference cycles less often, and never among the objects that exist now. Only the owner of a process
    may call this, for a device or an orchestrator; a library must not.

    Reference counting frees most objects of a busy process a moment later. By default Python nevertheless searches for
    cycles after every 700 allocations, which costs a tenth of its time."""
    gc.collect()
    gc.freeze()
    collect_rarely()


def collect_rarely() -> None:
    """Search for reference cycles less often. Imports make many objects and no garbage: a twelfth of the time of a
    short command is otherwise spent on such searches."""
    gc.set_threshold(GC_THRESHOLD, 20, 50)
