"""The application of ``asterism top``, with Textual (the extra ``top``)."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from asterism.cli.store_thread import StoreThread
from asterism.cli.top.top_listings import FleetListings
from asterism.cli.top.top_screens import ListingScreen


class Top(App[None]):
    """Plans, runs, devices, series and notices of a store. ``store`` is entered by the caller."""

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

    def __init__(self, store: StoreThread, tab: str) -> None:
        super().__init__()
        self.animation_level = "none"
        self.store, self._tab = store, tab
        self.listings: FleetListings

    async def on_mount(self) -> None:
        self.listings = await self.store.call(_listings(self.store))
        await self.push_screen(ListingScreen(self._tab))

    async def on_unmount(self) -> None:
        self.listings.close()


async def _listings(store: StoreThread) -> FleetListings:
    """In the thread of the store, to which its watches belong."""
    return FleetListings(store.fleet)
