"""Every peer runs small graphs of each shape. The order of the tasks is checked by the peers' own modules.

Each runs in a process of its own, as in the benchmarks: what it warns about or leaves behind stays there.
"""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import graphs
from bench.peers import PEERS, load
from bench.peers.apart import measure_apart
from bench.peers.surroundings import environment, scratch

SHAPES = [graphs.chain(20), graphs.independent(20), graphs.layers(4, 5), [(), (0,), (0,), (1, 2), ()]]


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_runs_every_task_once_and_after_its_parents(name: str) -> None:
    if find_spec(PEERS[name]) is None:
        pytest.skip(f"peer {name} is not installed: make bench-env")
    peer = load(name)
    samples = measure_apart(name, SHAPES, timeout=300)
    assert [sample.tasks for sample in samples] == [len(graph) for graph in SHAPES]
    assert all(sample.wall > 0 for sample in samples)
    assert peer.VERSION()[0].isdigit()
    assert peer.LIMIT >= 1_000


def test_what_a_peer_complains_about_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'bench\.peers\.unheard_of_peer'"):
        measure_apart("unheard_of", SHAPES, timeout=60)


def test_a_peer_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        measure_apart("bare", SHAPES, timeout=0)


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_SET", "before")
    monkeypatch.delenv("BENCH_UNSET", raising=False)
    with environment({"BENCH_SET": "during", "BENCH_UNSET": "during"}):
        assert (os.environ["BENCH_SET"], os.environ["BENCH_UNSET"]) == ("during", "during")
    assert os.environ["BENCH_SET"] == "before"
    assert "BENCH_UNSET" not in os.environ


def test_the_scratch_directory_goes_with_its_session() -> None:
    with scratch() as directory:
        Path(directory, "file").write_text("")
    assert not directory.exists()
