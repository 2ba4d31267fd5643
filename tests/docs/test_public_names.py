"""The Python reference lists every public name, and documents and examples import only those."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import asterism
from tests.docs.docs_pages import ROOT, blocks
from tests.docs.test_reference import API, rows, section

PACKAGES = [
    module.name
    for module in pkgutil.iter_modules(asterism.__path__, "asterism.")
    if module.name != "asterism.__main__" and hasattr(importlib.import_module(module.name), "__all__")
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PUBLIC_BELOW = {"asterism.compat.galaxy", "asterism.compat.orion"}


def listed_names(package: str) -> list[str]:
    """The names in the first column of the table of a package: ``await load(path)`` is ``load``."""
    table = section(section(API, "## Packages"), f"### `{package}`")
    cells = [cell for row in rows(table) for cell in re.findall(r"`([^`]+)`", row[0])]
    return [re.match(r"(?:await |async with )?(\w+)", cell)[1] for cell in cells]  # type: ignore[index]


def imported_modules(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def is_public(module: str) -> bool:
    return not module.startswith("asterism.") or module.count(".") == 1 or module in PUBLIC_BELOW


def python_sources(path: Path) -> list[str]:
    if path.suffix == ".py":
        return [path.read_text("utf-8")]
    return [block.text for block in blocks(path.read_text("utf-8")) if block.language == "python"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_lists_the_names_of_each_package(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(listed_names(package)) == sorted(module.__all__)
    assert not [name for name in module.__all__ if not hasattr(module, name)]


def test_the_reference_lists_no_other_package() -> None:
    assert sorted(re.findall(r"^### `(asterism\.\w+)`$", API, re.MULTILINE)) == sorted(PACKAGES)


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_and_examples_import_only_public_modules(path: Path) -> None:
    deep = [name for source in python_sources(path) for name in imported_modules(source) if not is_public(name)]
    assert not deep


def test_a_deep_import_is_noticed() -> None:
    source = "import asyncio\nfrom asterism import Task\nfrom asterism.store.memory import MemoryStore"
    assert [name for name in imported_modules(source) if not is_public(name)] == ["asterism.store.memory"]
    assert is_public("asterism.compat.galaxy")
