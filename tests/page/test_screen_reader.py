"""What a screen reader meets in every view: the accessibility tree, kept as text in ``trees/`` beside this file.

A change of the page shows as a diff of these files: ``ASTERISM_NEW_TREES=1`` writes them again. The clock of the page
and that of the scene stand still, so that a tree has no time that changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.page import plan_server
from tests.page.browser_scenes import chromium, needs_chromium, opened
from tests.page.plan_server import PlanScene, release_scene, served
from tests.page.views import VIEWS, open_view

pytestmark = needs_chromium

TREES = Path(__file__).parent / "trees"
NOW = 1_795_000_000.0
"""18 November 2026, 11:06:40 UTC."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> PlanScene:
    monkeypatch.setattr(plan_server, "NOW", lambda: NOW)
    return release_scene()


def tree(page: Any) -> str:
    """Without the texts that are drawn in boxes and bars: how much of a name fits depends on the fonts of a machine.
    The name that is read aloud is complete."""
    return re.sub(r"(button .*): [○◌◔◐●✗⊘] .*", r"\1", page.locator("body").aria_snapshot()) + "\n"


@pytest.mark.long
def test_the_tree_of_every_view_is_the_kept_one(browser: Any, scene: PlanScene) -> None:
    found: dict[str, str] = {}
    with served(scene) as url, opened(browser, url, now=NOW) as page:
        for name, address in VIEWS.items():
            open_view(page, url, name, address)
            found[name] = tree(page)
    if os.environ.get("ASTERISM_NEW_TREES"):
        TREES.mkdir(exist_ok=True)
        for name, text in found.items():
            (TREES / f"{name}.txt").write_text(text, "utf-8")
    kept = {path.stem: path.read_text("utf-8") for path in TREES.glob("*.txt")}
    assert found.keys() == kept.keys()
    for name, text in found.items():
        assert text == kept[name], name


def test_no_button_is_inside_a_picture() -> None:
    """A screen reader may pass over what is in a picture; a drawing without a role counts as one."""
    for path in TREES.glob("*.txt"):
        lines = path.read_text("utf-8").splitlines()
        for line, after in pairwise(lines):
            assert not (line.strip() == "- img:" and "button" in after), f"{path.name}: {after}"
