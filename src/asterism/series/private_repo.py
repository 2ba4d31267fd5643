"""Where git works for a register of series: a small private repository, and an environment that leads nowhere else.

The repository is in the temporary directory, and goes with its register. What a killed process left there is swept a
day later by the next one. The environment is the user's, without what belongs to a checkout and without prompts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

LITTER = "asterism-series-"
FORGOTTEN = 86_400.0
"""A private repository that is older than that, in seconds, was left behind by a process that was killed."""

_OF_A_CHECKOUT = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    *("GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_QUARANTINE_PATH", "GIT_PUSH_OPTION_COUNT"),
    *("GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE", "SSH_ASKPASS"),
)
"""Set where a hook runs: they would lead git back into the user's checkout, make a change look old, or prompt."""


def private_repository(hashes: str) -> Path:
    """A bare repository, made by hand: it takes three files, and no process."""
    _sweep()
    directory = Path(tempfile.mkdtemp(prefix=LITTER))
    for part in ("objects", "refs"):
        (directory / part).mkdir()
    (directory / "HEAD").write_text("ref: refs/heads/none\n")
    version, extension = (0, "") if hashes == "sha1" else (1, f"[extensions]\n\tobjectformat = {hashes}\n")
    (directory / "config").write_text(f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n{extension}")
    return directory


def _sweep() -> None:
    """Remove what killed processes of ours have left behind. One that was only idle for so long makes its own anew."""
    long_ago = time.time() - FORGOTTEN
    for path in Path(tempfile.gettempdir()).glob(f"{LITTER}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_mtime < long_ago and found.st_uid == os.getuid() and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def quiet(environment: Mapping[str, str]) -> dict[str, str]:
    """Git speaks English, asks nobody, and knows of no checkout; who commits is not a person."""
    kept = {name: value for name, value in environment.items() if name not in _OF_A_CHECKOUT}
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _WHO}
    return {**kept, **who, "LC_ALL": "C", "LANGUAGE": "", "GIT_TERMINAL_PROMPT": "0", "SSH_ASKPASS_REQUIRE": "never"}


_WHO = (("NAME", "asterism"), ("EMAIL", "asterism@localhost"))
