"""Stylesheets and scripts that lie beside the code."""

from __future__ import annotations

from importlib.resources import files


def beside(name: str) -> str:
    """The text of a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
