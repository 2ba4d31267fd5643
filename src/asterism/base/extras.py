"""How to install an optional dependency (an extra) of Asterism."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """A hint that names no package index, since another package may have this name there."""
    return f"install the extra {extra!r} of this package (in its checkout: pip install '.[{extra}]')"
