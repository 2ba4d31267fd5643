"""Names as parts of the path of a URL.

Percent-encoding is not enough: clients and proxies remove the parts ``.`` and ``..`` from a path, also if they are
encoded. Such a name gets a ``~`` in front, and so does a name that looks like the result.
"""

from __future__ import annotations

import re
from urllib.parse import quote

_DOTS = re.compile(r"~*\.{1,2}")


def path_part(name: str) -> str:
    """A name as one part of a path."""
    return quote(f"~{name}" if _DOTS.fullmatch(name) else name, safe="")


def plain_name(part: str) -> str:
    """The name that ``path_part`` has written. The percent-encoding of ``part`` is removed already."""
    return part[1:] if part.startswith("~") and _DOTS.fullmatch(part) else part
