"""Names of devices: a plain alphabet and a length, so that no two names look alike and no name is a sentence.

People choose devices by their names, in plans, in scopes and on the page. A name with a blank at its end, or with a
letter of another script, looks like the name of another device; ``skeleton`` finds those that the plain alphabet still
allows. The process that runs a plan is a device of its own, ``PLAN@HOST``: nobody enrols or joins under such a name.
"""

from __future__ import annotations

import re

LONGEST = 100

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")
_OTHER = re.compile(r"[^A-Za-z0-9._-]")
_ALIKE = str.maketrans("I01", "lol")

RULE = f"must have 1 to {LONGEST} characters: letters (a-z, A-Z), digits, '.', '_' and '-', the first a letter or digit"


def device_name_problem(name: str) -> str | None:
    """Why a name cannot be that of a device; None if it can."""
    return None if _NAME.fullmatch(name) else f"the name of a device {RULE}, not {name!r}"


def is_reserved(name: str) -> bool:
    """Whether only processes of the fleet's own side have such a name: the one that runs plan P is ``P@HOST``, a server
    ``server-HOST``."""
    return "@" in name or name.startswith("server-")


def plain_device_name(text: str) -> str:
    """A name made of a text, such as that of a host, with ``-`` for what cannot be part of it."""
    return _OTHER.sub("-", text).lstrip("._-")[:LONGEST] or "device"


def skeleton(name: str) -> str:
    """What names that look alike have in common: ``Lab-1``, ``lab-l`` and ``LAB-I``."""
    return name.translate(_ALIKE).lower()
