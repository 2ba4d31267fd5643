"""The files of a task in the page: what is shown of them, downloads, and files that were made to do harm."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from asterism.api.plan_operations import MOST_BYTES
from tests.page.browser_scenes import DESKTOP, PHONE, chromium, expect, needs_chromium, opened, serious_findings
from tests.page.plan_server import PlanScene, release_scene, served

pytestmark = needs_chromium

DRAWER = "#/plans/release/graph?task=fetch"
NASTY = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=\'broken\'">{NASTY}</svg>'
HOSTILE = {
    "page.html": f"<!doctype html><body onload=\"document.title='broken'\">{NASTY}",
    "drawing.svg": SVG,
    "drawing.png": SVG,
    "table.csv": f'name,{NASTY},"=1+1"\n"{NASTY.replace(chr(34), chr(34) * 2)}",2,3,4\n',
    f"out/{NASTY}.txt": NASTY,
    "../../up.txt": NASTY,
    "javascript:document.title='broken'": NASTY,
}


def picture(width: int = 320, height: int = 180) -> bytes:
    """A PNG with a run of colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))

    lines = (bytes((0, *(part for x in range(width) for part in (x * 255 // width, y, 160)))) for y in range(height))
    head = pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"".join(lines)))
        + chunk(b"IEND", b"")
    )


def with_files(files: dict[str, bytes]) -> PlanScene:
    """The scene of a release whose first task has made files."""
    scene = release_scene()
    scene.files = {("fetch", "made", path): data for path, data in files.items()}
    scene.facts["fetch"]["definition"] = {"shell": "git fetch", "outputs": {"made": "**"}}
    return scene


CALM = {
    "frames/sunset-over-the-harbour-0001.png": picture(),
    "log.txt": b"first line\n" + b"and so on\n" * 9000,
    "prices.csv": b"item,price,note\n" + b'"apple, red",1.20,"says ""fresh"""\n' * 80,
    "film.mp4": b"\0\0\0\x18ftypmp42\xff\xfe",
    "empty.txt": b"",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def shown(page: Any, path: str) -> Any:
    """Open a file; the value is its row."""
    page.get_by_role("button", name=path, exact=True).click()
    row = page.locator(".files li", has=page.locator("[aria-expanded=true]"))
    row.locator(".preview").wait_for()
    return row


@pytest.mark.parametrize(("theme", "size"), [("light", DESKTOP), ("dark", PHONE)], ids=["light-desktop", "dark-phone"])
def test_pictures_texts_and_tables_are_shown_in_part(browser: Any, theme: str, size: tuple[int, int]) -> None:
    with served(with_files(CALM)) as url, opened(browser, url, DRAWER, theme, size) as page:
        page.locator(".files li").first.wait_for()
        assert page.locator(".files small").all_inner_texts()[1] == "made, 87.9 KiB"
        row = shown(page, "frames/sunset-over-the-harbour-0001.png")
        page.wait_for_function("document.querySelector('.preview img').naturalWidth === 320")
        assert serious_findings(page) == []
        row = shown(page, "log.txt")
        assert len(row.locator(".output").inner_text()) == 64 * 1024
        expect(row.locator(".note")).to_have_text("The first 64 KiB.")
        row = shown(page, "prices.csv")
        assert row.locator("tbody tr").count() == 50
        assert row.locator("tbody tr").first.locator("th, td").all_text_contents() == [
            "apple, red",
            "1.20",
            'says "fresh"',
        ]
        assert row.locator("thead th").all_text_contents() == ["item", "price", "note"]
        expect(row.locator(".note")).to_have_text("A part of the table: 50 rows, 3 columns.")
        assert serious_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert "neither text nor a picture" in shown(page, "film.mp4").locator(".note").inner_text()
        assert "empty" in shown(page, "empty.txt").locator(".note").inner_text()


def test_a_hostile_file_is_text_or_nothing(browser: Any, tmp_path: Path) -> None:
    scene = with_files({path: text.encode() for path, text in HOSTILE.items()})
    with served(scene) as url, opened(browser, url, DRAWER) as page:
        for path, text in HOSTILE.items():
            row = shown(page, path)
            if path.endswith(".png"):
                expect(row.locator(".note")).to_have_text("The picture cannot be shown: it is damaged, or no picture.")
            elif path.endswith(".csv"):
                assert row.locator("th, td").all_text_contents() == ["name", NASTY, "=1+1", NASTY, "2", "3"]
            else:
                assert row.locator(".output").text_content() == text
            with page.expect_download() as download:
                row.locator(".action button").click()
            assert download.value.url.startswith("blob:")
            assert "/" not in download.value.suggested_filename
            download.value.save_as(tmp_path / "saved")
            assert (tmp_path / "saved").read_text() == text
            assert page.locator("main script, main img, main iframe, main object, main embed, .files svg").count() == 0
        assert page.title() != "broken"
        assert page.url == f"{url}/{DRAWER}"


def test_a_download_goes_on_after_a_cut_and_is_compared_with_its_hash(browser: Any, tmp_path: Path) -> None:
    content = b"0123456789abcdef" * (MOST_BYTES // 16) + b"the second part"
    scene = with_files({"large": content, "harmed": b"harm"})
    scene.damaged = {"harmed"}
    with served(scene) as url, opened(browser, url, DRAWER, failures=True) as page:
        cuts = [True]

        def cut(route: Any) -> None:
            route.abort() if cuts and cuts.pop() else route.fallback()

        page.route(f"**/files/part?*offset={MOST_BYTES}*", cut)
        page.get_by_title("Download large").click()
        page.locator(".files .problem").get_by_text("The server cannot be reached.").wait_for()
        assert scene.parts == [("large", 0)]
        with page.expect_download() as download:
            page.get_by_title("Download large").click()
        download.value.save_as(tmp_path / "large")
        assert (tmp_path / "large").read_bytes() == content
        assert scene.parts == [("large", 0), ("large", MOST_BYTES)]
        page.get_by_title("Download harmed").click()
        page.locator(".files .problem").get_by_text("does not match its hash, and was not saved").wait_for()
