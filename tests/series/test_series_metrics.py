"""The figures: counted once, written whole, read by Prometheus."""

from __future__ import annotations

import json

import pytest

from asterism.series.metrics import MEANINGS, Metrics, write_whole


def test_the_figures_of_one_process_are_added_to_the_file_once(tmp_path):
    file = tmp_path / "m.json"
    metrics = Metrics()
    metrics.add("conflicts", 2)
    metrics.write(file)
    metrics.write(file)
    metrics.add("conflicts")
    metrics.write(file)
    assert json.loads(file.read_text())["total"]["conflicts"] == 3
    another = Metrics()
    another.add("conflicts", 4)
    another.write(file)
    figures = json.loads(file.read_text())
    assert (figures["conflicts"], figures["total"]["conflicts"]) == (4, 7)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"total": 3}', '{"total": {"conflicts": "x"}}', '{"total": {"conflicts": -1}}']
)
def test_a_file_that_cannot_be_read_begins_anew(tmp_path, content):
    file = tmp_path / "m.json"
    file.write_text(content)
    metrics = Metrics()
    metrics.add("conflicts")
    metrics.write(file)
    assert json.loads(file.read_text())["total"]["conflicts"] == 1


def test_the_seeds_figures_are_there_from_the_beginning(tmp_path):
    file = tmp_path / "m.json"
    Metrics().write(file)
    figures = json.loads(file.read_text())
    assert {"promotion_events", "duplicate_prevented", "retries", "conflicts"} <= set(figures) & set(MEANINGS)


def test_the_text_for_prometheus_is_what_prometheus_reads():
    metrics = Metrics()
    metrics.add("assigned", 3)
    metrics.gauges['odd "name"\\'] = {"active": True, "queue_length": 2, "duplicates": 0, "paused": False}
    text = metrics.to_prometheus(metrics.counts)
    assert text.endswith("\n")
    lines = text.splitlines()
    assert "# TYPE asterism_series_assigned_total counter" in lines
    assert "asterism_series_assigned_total 3" in lines
    assert 'asterism_series_active{series="odd \\"name\\"\\\\"} 1' in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_a_file_is_never_half_written(tmp_path, monkeypatch):
    file = tmp_path / "m.json"
    write_whole(file, "before")

    def broken(*args: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("asterism.series.metrics.os.replace", broken)
    with pytest.raises(OSError, match="disk is full"):
        write_whole(file, "after")
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]
