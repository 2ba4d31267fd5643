"""Public names of a package, imported from its modules when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


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
