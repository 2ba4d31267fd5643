"""Metrics: counted once, written atomically, readable by Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from asterism.series.series_metrics import DESCRIPTIONS, SeriesMetrics, write_atomically


def test_the_figures_of_one_process_are_added_to_the_file_once(tmp_path):
    file = tmp_path / "m.json"
    metrics = SeriesMetrics()
    metrics.add("conflicts", 2)
    metrics.write(file)
    metrics.write(file)
    metrics.add("conflicts")
    metrics.write(file)
    assert json.loads(file.read_text())["total"]["conflicts"] == 3
    another = SeriesMetrics()
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
    metrics = SeriesMetrics()
    metrics.add("conflicts")
    metrics.write(file)
    assert json.loads(file.read_text())["total"]["conflicts"] == 1


def test_the_seeds_figures_are_there_from_the_beginning(tmp_path):
    file = tmp_path / "m.json"
    SeriesMetrics().write(file)
    figures = json.loads(file.read_text())
    assert {"promotion_events", "duplicate_prevented", "retries", "conflicts"} <= set(figures) & set(DESCRIPTIONS)


def test_the_text_for_prometheus_is_what_prometheus_reads():
    metrics = SeriesMetrics()
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
    write_atomically(file, "before")

    def broken(*args: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("asterism.series.series_metrics.os.replace", broken)
    with pytest.raises(OSError, match="disk is full"):
        write_atomically(file, "after")
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def counted(number: int) -> SeriesMetrics:
    metrics = SeriesMetrics()
    metrics.add("conflicts", number)
    return metrics


def test_figures_go_to_the_file_that_a_link_leads_to(tmp_path):
    (tmp_path / "kept").mkdir()
    file, link = tmp_path / "kept" / "m.json", tmp_path / "link.json"
    link.symlink_to(file)
    for number in (1, 2):  # also to one that is not there yet
        counted(number).write(link, link.with_suffix(".prom"))
    assert link.is_symlink()
    assert json.loads(file.read_text())["total"]["conflicts"] == 3
    assert [path.name for path in file.parent.iterdir()] == ["m.json"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    counted(2).write(pipe)
    reader.join()
    assert json.loads(read[0])["conflicts"] == 2
    assert pipe.is_fifo()


@pytest.mark.parametrize("linked", [False, True])
def test_standard_output_is_written_to_also_if_it_is_a_file(tmp_path, linked):
    """What was written there before stays, and so does the file that others have open. Not by the name /dev/stdout,
    which a root that gets this wrong would put a file in the place of."""
    (tmp_path / "link").symlink_to("/dev/fd/1")
    name = str(tmp_path / "link") if linked else "/dev/fd/1"
    text = (
        "import sys\nfrom pathlib import Path\nfrom asterism.series.series_metrics import write_atomically\n"
        f"print('before', flush=True)\nwrite_atomically(Path({name!r}), 'figures\\n')\nprint('after', flush=True)\n"
    )
    file = tmp_path / "out.txt"
    with file.open("w") as out:
        subprocess.run([sys.executable, "-c", text], stdout=out, check=True)
        assert os.fstat(out.fileno()).st_ino == file.stat().st_ino
    assert file.read_text() == "before\nfigures\nafter\n"
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out.txt"]
