"""Options that list capabilities: ``workflow add --needs`` and ``device join --can``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_scenes import Scene
from tests.long_tests import rest_long
from tests.process_scenes import ended


@pytest.mark.parametrize(
    "words", rest_long([["gpu,ffmpeg", "big"], ["gpu", "ffmpeg", "big"], [" gpu , ffmpeg,big,gpu"]], 1)
)
def test_capabilities_are_named_one_by_one_or_with_commas(tmp_path: Path, words: list[str]) -> None:
    scene = Scene(tmp_path)
    needs = [word for names in words for word in ("--needs", names)]
    assert scene.json("workflow", "add", "work", "--shell", "echo 1", *needs)["needs"] == ["big", "ffmpeg", "gpu"]
    can = [word for names in words for word in ("--can", names)]
    run_id = scene.json("runs", "create", "work")["id"]
    with scene.process("device", "join", "laptop", *can) as process:
        assert scene.run("runs", "wait", run_id).exit_code == 0
        assert scene.json("device", "list")[0]["can"] == ["big", "ffmpeg", "gpu"]
        process.terminate()
        assert ended(process)[0] == 0


@pytest.mark.parametrize("word", ["gpu,", ",", "", "gpu,,ffmpeg", " "])
@pytest.mark.parametrize(
    "command", [["workflow", "add", "work", "--shell", "echo 1", "--needs"], ["device", "join", "laptop", "--can"]]
)
def test_a_capability_without_a_name_is_refused(tmp_path: Path, command: list[str], word: str) -> None:
    scene = Scene(tmp_path)
    # with a --heartbeat-timeout that is refused as well, so that no device joins if the word is not
    result = scene.run(*command, word, "--heartbeat-timeout", "1", "--heartbeat", "9")
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"Invalid value for '{command[-1]}': {word!r} contains an empty capability" in result.stderr
    assert "a comma separates names" in result.stderr
    assert not scene.file.exists()
