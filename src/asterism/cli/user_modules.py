"""Where the modules of the user are found: the functions of ``call`` tasks, and editors.

Their folders go to the end of the path of Python, so that no file in them stands in for a module of Python, of this
library or of one that it uses, whenever that is imported. Only commands that execute what the user wrote call this: the
others (``check`` without ``--imports``, ``show``) import nothing from there.
"""

from __future__ import annotations

import sys
from pathlib import Path


def allow_imports(plan: str | None = None) -> None:
    """Let modules be imported from the working directory, and from beside a plan file."""
    for place in (Path.cwd(), *(() if plan is None else (Path(plan).resolve().parent,))):
        if str(place) not in sys.path:
            sys.path.append(str(place))
