"""The benchmark of files: 200 MB arrive, both ways, and the memory of the server stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import files

SMALL = files.Sizes(size=200 * 1024 * 1024)


@pytest.mark.long
def test_an_upload_through_the_gateway_is_measured_beside_a_bare_one() -> None:
    measured = files.measure(SMALL)
    assert min(measured.bare, measured.gateway) > 0
    assert measured.growth <= files.FLAT
    assert "| through the gateway | " in files.page(measured)


def test_bytes_that_did_not_arrive_give_no_figure(tmp_path: Path) -> None:
    name = files._write(tmp_path / "source", 3_000_000)
    files.check_arrived(tmp_path / "source", name)
    with (tmp_path / "source").open("r+b") as file:
        file.seek(2_000_000)
        file.write(b"\0")
    with pytest.raises(AssertionError, match="is not what was sent"):
        files.check_arrived(tmp_path / "source", name)
