"""Makes the pictures of the README, ``make pictures``: a plan that an editor repairs, on the page and in the terminal.

``asterism run --serve`` runs in a terminal of tmux. Its tasks and its editor wait, so that both pictures show the
same moment of each run: a failed test is repaired, and the editor thinks about something else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.docs.docs_pages import ROOT
from tests.page.browser_scenes import chromium, opened

PATIENCE = 60
PICTURES = ROOT / "docs" / "pictures"
SIZE = (1280, 620)
COLUMNS, ROWS = 100, 28

PLAN = """\
asterism: 1
id: release
tasks:
  fetch: {shell: echo 41 files, device: laptop}
  compile:
    shell: until [ -e reviewed ]; do sleep 0.1; done; echo 41 files compiled
    after: fetch
    device: {needs: [compile]}
  find-tex: {shell: echo no TeX here, after: fetch, device: laptop}
  lint: {shell: echo no remarks, after: compile, device: {needs: [compile]}}
  test-angles: {shell: echo 12 tests passed, after: compile, device: {needs: [compile]}}
  test-median: {shell: 'echo "median(1, 2, 3, 10) is 3" >&2; exit 1', after: compile, device: {needs: [compile]}}
  fuzz: {shell: 'echo 5,000 cases; read go < end', after: compile, device: laptop}
  docs-html: {shell: echo 12 pages, after: compile, device: laptop}
  docs-pdf: {shell: pdftex docs, after: [docs-html, find-tex]}
  package: {shell: pack, after: [lint, test-angles, test-median], device: {needs: [compile]}}
  sign: {shell: sign, after: package, device: {needs: [sign]}}
  publish: {shell: publish, after: [sign, docs-pdf, fuzz]}
"""

EDITOR = """\
import asyncio
from pathlib import Path

from asterism import EditBatch, Task, edits


async def repair(view, events):
    ended = [event.task_id for event in events]
    if "find-tex" in ended:
        Path("reviewed").touch()
        while True:
            await asyncio.sleep(0.1)
    if "test-median" not in ended:
        return None
    changes = [
        edits.AddTask(Task("patch", shell="echo numbers.py mended", device="builder")),
        edits.AddDependency("test-median", "patch", on="failure", handled=True),
        edits.AddTask(Task("retest", shell="echo 11 of 12 tests passed; read go < end", device="builder")),
        edits.AddDependency("patch", "retest"),
        edits.AddDependency("retest", "package"),
        edits.RemoveDependency("test-median", "package"),
    ]
    return EditBatch(tuple(changes), reason="the median of an even number of values is wrong")
"""

THEMES = {
    "light": "ffffff 24292f 24292f cf222e 1a7f37 9a6700 0969da 8250df 1b7c83 6e7781",
    "dark": "0d1117 e6edf3 484f58 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4",
}
"""The colours of the terminal: its background, its text, and the eight colours with a number."""

DEVICES = ("laptop --slots 3", "builder --slots 2 --can compile", "signer --can sign")
COMMAND = "asterism run release.yaml --editor editor:repair --no-local --serve"
SHOWN = r"(?s)retest +running.*held.*cycle.*retest │"
"""The live view at the moment of the pictures."""

# Rich formats it: {{ stands for {. No font is fetched, and no window is drawn around the text.
SVG = """\
<svg viewBox="0 28 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="100%" height="110%" fill="BACKGROUND" />
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""


def looked_for(question: Callable[[], Any]) -> Any:
    """The answer, once there is one."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.1)
    raise SystemExit("The plan did not reach the state of the pictures.")


@dataclass(frozen=True)
class Terminal:
    """A terminal of tmux, with a server of its own."""

    folder: Path
    settings: Mapping[str, str]

    def tmux(self, *words: str) -> str:
        server = ["tmux", "-S", str(self.folder / "tmux"), "-f", "/dev/null"]
        return subprocess.run([*server, *words], check=True, capture_output=True, text=True, env=self.settings).stdout

    @property
    def text(self) -> str:
        return self.tmux("capture-pane", "-p", "-J")

    @property
    def lines(self) -> list[Text]:
        """What the terminal shows, with its colours."""
        return [Text.from_ansi(line) for line in self.tmux("capture-pane", "-p", "-e").rstrip().splitlines()]


@contextmanager
def devices(folder: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """The devices have joined."""
    with contextlib.ExitStack() as stack:
        for words in DEVICES:
            command = ["asterism", "device", "join", *words.split()]
            device = subprocess.Popen(
                command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            stack.callback(device.wait)
            stack.callback(device.kill)
            assert device.stdout is not None
            while "joined as" not in (line := device.stdout.readline()):
                if not line:
                    raise SystemExit(f"The device did not join: {words}")
        yield


@contextmanager
def running(folder: Path) -> Iterator[Terminal]:
    """The plan runs in a terminal."""
    folder.joinpath("release.yaml").write_text(PLAN, "utf-8")
    folder.joinpath("editor.py").write_text(EDITOR, "utf-8")
    os.mkfifo(folder / "end")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {
        "PATH": path,
        "HOME": str(folder),
        "ASTERISM_STORE": f"sqlite:///{folder}/release.db",
        "PS1": "$ ",
        "USER": "ann",
        "LOGNAME": "ann",
    }
    settings = {
        name: text for name, text in os.environ.items() if not name.startswith(("XDG_", "ASTERISM_", "NO_COLOR"))
    }
    terminal = Terminal(folder, settings | own)
    with devices(folder, settings | own):
        terminal.tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(folder), "exec sh")
        try:
            terminal.tmux("send-keys", COMMAND, "Enter")
            yield terminal
        finally:
            terminal.tmux("kill-server")


def draw_terminal(lines: Sequence[Text], name: str, colours: str) -> None:
    background, text, *numbered = [ColorTriplet(*bytes.fromhex(colour)) for colour in colours.split()]
    theme = TerminalTheme(background, text, [(red, green, blue) for red, green, blue in numbered])
    frame = SVG.replace("BACKGROUND", background.hex)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), legacy_windows=False)
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    drawn = console.export_svg(title="", theme=theme, code_format=frame, unique_id="terminal")
    PICTURES.joinpath(f"terminal-{name}.svg").write_text(drawn, "utf-8")


def draw_page(browser: Any, link: str) -> None:
    """The link of the login works once: both pictures are made in one session."""
    url, login, code = link.partition("/login")
    with opened(browser, url, f"{login}{code}".lstrip("/"), size=SIZE) as page:
        for theme in THEMES:
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            page.goto(f"{url}/#/plans/release/graph")
            page.locator("[data-box=retest].is-running").wait_for()
            page.screenshot(path=PICTURES / f"page-{theme}.png")


def main() -> None:
    for program in ("tmux", "chromium-headless-shell"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not installed.")
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pictures-") as home,
        running(Path(home)) as terminal,
        chromium() as browser,
    ):
        lines = looked_for(lambda: terminal.lines if re.search(SHOWN, terminal.text) else None)
        [began] = [number for number, line in enumerate(lines) if line.plain.startswith("release ")]
        for name, colours in THEMES.items():
            draw_terminal([Text(f"$ {COMMAND}"), Text(), *lines[began:]], name, colours)
        link = re.search(r"http://\S+", terminal.text)
        assert link is not None
        draw_page(browser, link[0])


if __name__ == "__main__":
    main()
