"""The download of a file that a task has made: in parts, resumed, and verified before it gets its name."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.execution.artifacts import CHUNK, stays_inside

if TYPE_CHECKING:
    from asterism.api.documents import PlanFile
    from asterism.api.system import System


async def download(system: System, plan: str, file: PlanFile, folder: Path) -> None:
    """Write a file below ``folder``. What an earlier call has written is not asked for again. Raises OSError."""
    if not stays_inside(file.path):  # the other side may be hostile
        raise click.ClickException(f"the path {clean(file.path)!r} leaves the folder: the file is not written")
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{file.sha256[:16]}.part")
    with unfinished.open("a+b") as written:
        written.seek(0)
        hashed = hashlib.sha256()
        for chunk in iter(lambda: written.read(CHUNK), b""):
            hashed.update(chunk)
        while written.tell() < file.size:
            part = await system.read_file(plan, file.task, file.output, file.path, offset=written.tell())
            data = base64.b64decode(part.data)
            if not data:
                break
            hashed.update(data)
            written.write(data)
    if hashed.hexdigest() != file.sha256:
        unfinished.unlink()
        raise click.ClickException(f"{clean(file.path)} is damaged: it does not match its hash, and was not written")
    unfinished.chmod(file.mode & 0o777)
    unfinished.replace(target)
