"""Names the test files that a change can reach: ``make test-changed``.

The change is what differs from the branch ``main`` (``BASE=`` names another commit), and files that git does not know
yet. It reaches a test file along the imports: those inside functions count, those for type checkers do not. A name
of a package that imports lazily leads to the module that defines it.

A test also depends on what its texts name: a module (a script for another process, a function by its path), a file, or
the topmost folder of files (the tests of the documentation read ``docs``). A file that no module names can reach every
test, as do those of ``REACH_ALL``.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"asterism": "src/asterism", "tests": "tests", "bench": "bench", "examples": "examples"}
REACH_ALL = re.compile(r"pyproject\.toml|Makefile|requirements/.*|\.ci/.*")

_MODULE = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_START = re.compile(r"^-m asterism$|-m asterism\b|\basterism\.__main__", re.MULTILINE)
_SCRIPT = re.compile(r"^\s*(?:from ([\w.]+) )?import ([\w., ]+)", re.MULTILINE)


def changed_files(root: Path = ROOT, base: str = "") -> set[str]:
    """The files that differ from ``base``, by default from where this branch left ``main``, or that are new."""
    start = base or _git(root, "merge-base", "main", "HEAD").strip() or "HEAD"
    listed = _git(root, "diff", "--name-only", "--no-renames", "-z", start)
    return set(filter(None, (listed + _git(root, "ls-files", "--others", "--exclude-standard", "-z")).split("\0")))


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Source:
    """What one module imports (origin, name) at run time, its other texts, and its lazy names with their modules."""

    path: Path
    imports: frozenset[tuple[str, str]]
    texts: frozenset[str]
    lazy: dict[str, str]


class ImportGraph:
    """The modules of a checkout, and which of them depend on which."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        paths = [path.relative_to(root) for folder in PACKAGES.values() for path in (root / folder).rglob("*.py")]
        self._sources = {module_name(path): read_source(root, path) for path in sorted(paths)}
        self._conftests = {
            source.path.parent: name for name, source in self._sources.items() if source.path.name == "conftest.py"
        }
        self._dependants: defaultdict[str, set[str]] = defaultdict(set)
        for name, source in self._sources.items():
            for needed in self._needs(source):
                self._dependants[needed].add(name)
            for needed, dependant in self._registered(source):
                self._dependants[needed].add(dependant)

    def test_files(self, changed: Iterable[str]) -> list[str]:
        """The test files that a change of these files can reach."""
        tests = {name: source.path for name, source in self._sources.items() if source.path.name.startswith("test_")}
        reached: set[str] = set()
        for file in map(Path, changed):
            first = self._first_reached(file)
            reached |= self._all_reached(first) if first else set(tests)
        return sorted(str(path) for name, path in tests.items() if name in reached)

    def _first_reached(self, file: Path) -> set[str]:
        """The module that a file is, and those that name it; none if every test may depend on it."""
        if REACH_ALL.fullmatch(str(file)):
            return set()
        names = {file.name, str(file), file.parts[0]} - {"tests"}
        readers = {name for name, source in self._sources.items() if not names.isdisjoint(source.texts)}
        is_module = file.suffix == ".py" and any(file.is_relative_to(folder) for folder in PACKAGES.values())
        package = module_name(file.parent / "__init__.py")  # of a file beside modules
        own = {module_name(file)} if is_module else {package} & set(self._sources)
        return own | readers

    def _all_reached(self, first: set[str]) -> set[str]:
        reached, waiting = set(first), list(first)
        while waiting:
            more = self._dependants[waiting.pop()] - reached
            reached |= more
            waiting += more
        return reached

    def _needs(self, source: Source) -> Iterator[str]:
        """The modules that one depends on. Some may not exist: what was imported may have been removed."""
        is_test = source.path.parts[0] == "tests"
        for folder in source.path.parents if is_test else ():  # pytest imports these for a test
            yield from (self._conftests[folder] for _ in range(folder in self._conftests))
        for origin, name in source.imports:
            yield from self._imported(origin, name)
        if source.path.name != "__init__.py":
            for text in source.texts:
                yield from self._named(text, is_script=is_test)

    def _registered(self, source: Source) -> Iterator[tuple[str, str]]:
        """A module that a package names is imported by the one that it registers the name with."""
        if source.path.name == "__init__.py":
            for text in source.texts & set(self._sources):
                yield from ((text, origin) for origin, name in source.imports if name != "lazy_names")

    def _imported(self, origin: str, name: str) -> Iterator[str]:
        """``from origin import name``, or ``import origin`` if the name is empty: then any lazy name may be used."""
        parts = origin.split(".")
        if parts[0] in PACKAGES:
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
            yield f"{origin}.{name}"
            lazy = self._sources[origin].lazy if origin in self._sources else {}
            for wanted in [name] if name else lazy:
                if wanted in lazy:
                    yield from self._imported(lazy[wanted], wanted)

    def _named(self, text: str, is_script: bool) -> Iterator[str]:
        """The modules that a text names: all of it, or anywhere in it if it may be a script."""
        if not is_script:
            if text.endswith(".") and text[:-1] in self._sources:  # f"asterism.cli.{name}"
                yield from (name for name in self._sources if name.startswith(text))
            text = text if _MODULE.match(text) else ""
        elif _START.search(text):
            yield "asterism.__main__"
        for dotted in _MODULE.findall(text):
            parts = dotted.split(".")
            while len(parts) > 1 and ".".join(parts) not in self._sources:
                parts.pop()
            yield from self._imported(".".join(parts), "-") if len(parts) > 1 else ()
        for origin, names in _SCRIPT.findall(text) if is_script else ():
            for name in re.split(r"\s*,\s*", names.strip()):
                yield from self._imported(origin, name.split()[0]) if origin else self._imported(name.split()[0], "")


def module_name(path: Path) -> str:
    """``src/asterism/core/errors.py`` is ``asterism.core.errors``; the ``__init__.py`` of a package is the package."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_source(root: Path, path: Path) -> Source:
    imports: set[tuple[str, str]] = set()
    texts: set[str] = set()
    lazy: dict[str, str] = {}
    waiting: list[ast.AST] = [ast.parse((root / path).read_bytes())]
    while waiting:
        node = waiting.pop()
        if _is_for_type_checkers(node):
            lazy = _lazy_names(node) if path.name == "__init__.py" else {}
            continue
        if _is_docstring(node):
            continue
        if isinstance(node, ast.Import):
            imports |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {(_origin(path, node), alias.name) for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.List | ast.Tuple) and (words := list(_strings(node)))[:2] == ["-m", "asterism"]:
            texts.add(" ".join(words))
        waiting += ast.iter_child_nodes(node)
    return Source(path, frozenset(imports), frozenset(texts), lazy)


def _origin(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    folder = module_name(path.parents[node.level - 1] / "__init__.py")
    return f"{folder}.{node.module}" if node.module else folder


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _lazy_names(block: ast.AST) -> dict[str, str]:
    """Each name that a package imports for type checkers, and by ``lazy_names`` on first use, with its module."""
    imports = [node for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def main() -> None:
    print("\n".join(ImportGraph().test_files(changed_files(base=os.environ.get("BASE", "")))))


if __name__ == "__main__":
    main()
