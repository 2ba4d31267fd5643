"""Pictures of every view of the page, to be looked at: ``python -m tests.page.pictures FOLDER``.

Each view is drawn at three widths, light and dark, of the plans of 10, 200 and 5,000 tasks and of a release that has
every state. A sheet for each view has its pictures side by side. Pictures differ with the fonts of a machine, so none
is kept: what has to stay the same is in ``views/`` (trees) and in ``test_graph_looks.py`` (geometry).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.page.browser_scenes import chromium, opened
from tests.page.plan_server import PlanScene, release_scene, served
from tests.page.sized_scenes import SCENES
from tests.page.views import PLAN_VIEWS, VIEWS, open_view

SIZES = {1440: (1440, 900), 1024: (1024, 768), 390: (390, 844)}
THEMES = ("light", "dark")
FAILED = {"nightly": "lint", "warehouse": "clean-staff", "large": "step-0700"}


def scenes() -> Iterator[tuple[str, Callable[[], PlanScene], dict[str, str]]]:
    """Each scene: its name, the scene, and the addresses of its views."""
    yield "release", release_scene, VIEWS
    for count, make in SCENES.items():
        plan = make().plan.id
        yield (
            str(count),
            make,
            {name: address.format(plan=plan, failed=FAILED[plan]) for name, address in PLAN_VIEWS.items()},
        )


def draw_all(folder: Path, wanted: set[str]) -> None:
    """Write the pictures of the scenes, or of those that are wanted."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for scene, make, views in scenes():
            if wanted and scene not in wanted:
                continue
            with served(make()) as url:
                for width, size in SIZES.items():
                    for theme in THEMES:
                        with opened(browser, url, "", theme, size) as page:
                            for name, address in views.items():
                                open_view(page, url, name, address)
                                page.screenshot(path=folder / f"{scene}-{name}-{width}-{theme}.png")
            for name in views:
                sheet(browser, folder, f"{scene}-{name}")


def sheet(browser: Any, folder: Path, name: str) -> None:
    """One picture of all pictures of a view."""
    page = browser.new_page(viewport={"width": 2000, "height": 1160})
    pictures = [f"{name}-{width}-{theme}.png" for theme in THEMES for width in SIZES]
    images = "".join(
        f"<img src='{picture}' style='height: 550px; margin: 6px; border: 1px solid'>" for picture in pictures
    )
    (folder / "sheet.html").write_text(f"<body style='background: #888'>{images}", encoding="utf-8")
    page.goto((folder / "sheet.html").as_uri())
    page.screenshot(path=folder / f"sheet-{name}.png")
    page.close()


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]).resolve(), set(sys.argv[2:]))
