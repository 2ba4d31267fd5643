"""A system in a thread with an event loop of its own: reading a large plan there does not delay a terminal."""

from __future__ import annotations

from typing import Self

from asterism.api.lasting_loop import LastingLoop
from asterism.api.system import System
from asterism.cli.cli_context import open_system


class SystemThread(LastingLoop):
    """Opens a store or a server on entry, and closes it on exit. Entry raises what ``open_system`` raises."""

    system: System

    def __init__(self, url: str | None) -> None:
        super().__init__("system")
        self._url = url

    def __enter__(self) -> Self:
        try:
            self.system = self.wait_for(open_system(self._url))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait_for(self.system.__aexit__())
        finally:
            self.stop()
