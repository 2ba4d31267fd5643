"""Files between tasks in plan files: what is loaded, and every mistake as a sentence."""

from __future__ import annotations

import pytest

from asterism.core.plan.task import Dependency
from asterism.planfile.loader import examine

FILM = """\
asterism: 1
defaults: {cwd: /tmp}
params: {kind: png}
tasks:
  render: {argv: [render, "{scene}"], inputs: {scene: hut}, outputs: {frames: "out/*.{params.kind}", log: render.log}}
  pack: {shell: tar cf film.tar out, inputs: {frames: {files_from: render.frames}}, outputs: {film: film.tar}}
  plain: {shell: pwd}
"""


def test_a_plan_with_files() -> None:
    loaded, mistakes = examine(FILM, "film")
    assert mistakes == []
    assert loaded is not None
    plan = loaded.constellation
    assert plan["render"].task.outputs == {"frames": "out/*.png", "log": "render.log"}
    assert plan["pack"].dependencies == (Dependency("render", "pack"),)
    assert [plan[name].task.cwd for name in ("render", "pack", "plain")] == [None, None, "/tmp"]


def test_a_plan_with_files_gets_a_tick() -> None:
    text = FILM.replace("render.log", '"{tick.date}.log"')
    loaded, mistakes = examine(text, "film", tick="2026-11-17")
    assert mistakes == []
    assert loaded is not None
    assert loaded.constellation["render"].task.outputs["log"] == "2026-11-17.log"
    assert loaded.constellation["pack"].dependencies == (Dependency("render", "pack"),)


def test_only_brings_the_task_whose_files_are_taken() -> None:
    loaded, _ = examine(FILM, "film", only=["pack"])
    assert loaded is not None
    assert [task.id for task in loaded.constellation] == ["render", "pack"]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("{shell: a, outputs: {a: /etc/passwd}}", "the output 'a' is '/etc/passwd', an absolute path"),
        ("{shell: a, outputs: {a: ../a}}", "the output 'a' is '../a', which leaves the working folder"),
        ("{shell: a, outputs: {a: '{params.up}'}}", "the output 'a' is '../b', which leaves the working folder"),
        ("{shell: a, outputs: {}}", "outputs"),
        ("{shell: a, outputs: {a: '{params.down}'}}", "there is no parameter 'down'"),
        ("{shell: a, inputs: {a: {files_from: rendr.frames}}}", "but there is no such task; did you mean 'render'?"),
        ("{shell: a, inputs: {a: {files_from: render.frame}}}", "no output 'frame'; its outputs are frames"),
        ("{shell: a, inputs: {a: {files_from: plain.frames}}}", "no output 'frames'; it has no outputs"),
        ("{shell: a, inputs: {a: {files_from: group.frame}}}", "no output 'frame'; its outputs are frames"),
        ("{shell: a, inputs: {a: {files_from: x.a}}, outputs: {a: a}}", "takes files of the task itself"),
        ("{shell: a, inputs: {a: {files_from: render}}}", "files_from names a task and its output"),
        ("{shell: a, outputs: {a: a}, cwd: /tmp}", "cwd cannot be combined with outputs"),
        ("{http: {url: 'http://a'}, outputs: {a: a}}", "outputs needs one of argv, shell, call"),
    ],
)
def test_mistakes_are_sentences(task: str, words: str) -> None:
    text = (
        "asterism: 1\nparams: {up: ../b}\ntasks:\n"
        "  render: {shell: a, outputs: {frames: '*.png'}}\n"
        "  plain: {shell: a}\n"
        "  group: {shell: a, foreach: [1, 2], outputs: {frames: '*.png'}}\n"
        f"  x: {task}\n"
    )
    loaded, mistakes = examine(text, "film")
    assert loaded is None
    assert [mistake.line for mistake in mistakes] == [7]
    assert words in mistakes[0].text


def test_a_cycle_of_files() -> None:
    text = """\
asterism: 1
tasks:
  a: {shell: a, inputs: {b: {files_from: b.b}}, outputs: {a: a}}
  b: {shell: b, inputs: {a: {files_from: a.a}}, outputs: {b: b}}
"""
    loaded, mistakes = examine(text, "film")
    assert loaded is None
    assert "closes a cycle" in mistakes[0].text


def test_elements_have_files_and_take_them() -> None:
    text = """\
asterism: 1
tasks:
  render: {shell: a, outputs: {frames: "*.png"}}
  each: {shell: a, foreach: [1, 2], inputs: {frames: {files_from: render.frames}}, outputs: {part: "{item}.txt"}}
"""
    loaded, mistakes = examine(text, "film")
    assert mistakes == []
    assert loaded is not None
    assert [task.task.outputs.get("part") for task in loaded.constellation] == [None, "1.txt", "2.txt", None]
    assert loaded.constellation["each[2]"].dependencies == (Dependency("render", "each[2]"),)


def needs_folder(folder: object) -> None:
    """A function that only a task with files can call."""


def test_a_function_with_files_gets_the_folder() -> None:
    call = "tests.planfile.test_plan_files:needs_folder"
    text = f"asterism: 1\ntasks:\n  a: {{call: '{call}', outputs: {{a: a}}}}\n  b: {{call: '{call}'}}\n"
    _, mistakes = examine(text, "film", imports=True)
    assert [mistake.line for mistake in mistakes] == [4]
