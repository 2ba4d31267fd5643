"""Writes docs/reference/modules.md, the list of all modules, from their docstrings: ``make modules``."""

from __future__ import annotations

import ast
import inspect
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "asterism"
PAGE = ROOT / "docs" / "reference" / "modules.md"

HEAD = """# Modules

Every module of the package `asterism` and what it is: the first line of its docstring. `make modules` writes this page.
How the modules of a package work together is in the docstring of the package; [ARCHITECTURE.md](../../ARCHITECTURE.md)
is the map.
"""


def first_line(path: Path) -> str:
    """The first line of a module's docstring as Markdown; empty if there is none."""
    with tokenize.open(path) as file:  # to parse all modules takes seconds
        tokens = tokenize.generate_tokens(file.readline)
        first = next(token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL))
    docstring = inspect.cleandoc(ast.literal_eval(first.string)) if first.type == tokenize.STRING else ""
    return re.sub(r":\w+:`(.+?)`", r"`\1`", docstring.partition("\n")[0].replace("``", "`"))


def package_name(folder: Path, source: Path = SOURCE) -> str:
    return ".".join((source.name, *folder.relative_to(source).parts))


def packages(source: Path = SOURCE) -> list[Path]:
    """The folders of all packages, each before those within it."""
    return sorted(init.parent for init in source.rglob("__init__.py"))


def modules(folder: Path) -> list[Path]:
    """The modules directly in a package, without the package itself."""
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def page(source: Path = SOURCE) -> str:
    folders = packages(source)
    count = sum(len(modules(folder)) for folder in folders)
    parts = [HEAD, f"There are {count} modules in {len(folders)} packages.\n"]
    for folder in folders:
        parts.append(f"## `{package_name(folder, source)}`\n")
        parts.append(f"{first_line(folder / '__init__.py')}\n")
        if lines := [f"- `{path.stem}`: {first_line(path)}" for path in modules(folder)]:
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
