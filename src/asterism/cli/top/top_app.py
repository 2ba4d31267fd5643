"""The application of ``asterism top``, with Textual (the extra ``top``).

The system has a thread with an event loop of its own: reading a large plan there does not delay the terminal.
"""

from __future__ import annotations

from typing import ClassVar, Self

from textual.app import App
from textual.binding import Binding, BindingType

from asterism.api.lasting_loop import LastingLoop
from asterism.api.system import System
from asterism.cli.cli_context import open_system
from asterism.cli.top.top_screens import ListingScreen


class Top(App[None]):
    """Plans, runs, devices, series and notices of a system. ``thread`` is entered by the caller."""

    TITLE = "asterism top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False)]
    CSS = """
    #heading { width: 100%; height: 1; background: $primary; color: $text; padding: 0 1; }
    #titles { height: 1; padding: 0 1; color: $text-muted; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    #filter { height: 1; border: none; padding: 0 1; }
    RowTable { height: 1fr; padding: 0 1; overflow-x: hidden; scrollbar-size-vertical: 1; }
    RowTable > .row-table--cursor { background: $primary-muted; text-style: bold; }
    VerticalScroll, RichLog { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; background: $background; }
    QuestionScreen, KeysScreen { align: center middle; }
    #question { width: auto; max-width: 90%; height: auto; padding: 1 2; border: round $primary; background: $surface; }
    #question Label { width: auto; }
    """

    def __init__(self, thread: SystemThread, tab: str) -> None:
        super().__init__()
        self.animation_level = "none"
        self.thread, self._tab = thread, tab

    async def on_mount(self) -> None:
        await self.push_screen(ListingScreen(self._tab))


# -- the system --------------------------------------------------------------------------------------------------------


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
