"""How to install what a part of Asterism needs beyond its core."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """The name of this package may be somebody else's on a package index, so the advice names none: whoever follows it
    installs from where this package came from."""
    return f"install the extra {extra!r} of this package (in its checkout: pip install '.[{extra}]')"
