"""The library that evaluates CEL, without its command line.

``import cel`` imports a command line as well, with a terminal toolkit, and takes over a third of a second: too long
for a step of an event loop. Only the native module is needed. It is loaded under its own name, so that whoever imports
``cel`` later gets the same.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

NATIVE = "cel.cel"


_loading = threading.Lock()  # a native module must not be loaded twice


def cel() -> ModuleType:
    """The module with ``compile`` and ``evaluate``."""
    with _loading:
        return _loaded()


@cache
def _loaded() -> ModuleType:
    package = find_spec("cel")
    places = package.submodule_search_locations if package is not None else None
    native = PathFinder.find_spec(NATIVE, places) if places else None
    if NATIVE in sys.modules or native is None or native.loader is None:  # it is loaded, or built in another way
        import cel as library

        return library
    module = module_from_spec(native)
    sys.modules[NATIVE] = module
    try:
        native.loader.exec_module(module)
    except BaseException:
        del sys.modules[NATIVE]
        raise
    return module
