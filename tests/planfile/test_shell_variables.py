"""Warnings about variables in shell lines that nothing sets, although a task, input or parameter has the name."""

from __future__ import annotations

import json
import subprocess

import pytest

from asterism.planfile.loader import examine
from asterism.planfile.shell_variables import read_variables

PLAN = """asterism: 1
params: {{day: monday}}
tasks:
  extract: {{shell: echo 41}}
  build-all: {{shell: echo built}}
  load:
    shell: {line}
    after: extract
    inputs: {{mean: 3, FILE_a: 1}}
    env: {{REGION: eu}}
"""


def warnings(line: str) -> list[str]:
    _, found = examine(PLAN.format(line=json.dumps(line)), "plan")
    assert all(one.warning for one in found), found
    return [f"{one.line}: {one.text}" for one in found]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "echo loading $extract",
            "7: task 'load': the line uses $extract, but the result of task 'extract' is not passed to it, so the "
            "variable is empty; add inputs: {extract: {from: extract}}",
        ),
        ('echo "${#extract}"', "the line uses $extract, but"),
        ('echo "$(echo "a $extract")"', "the line uses $extract, but"),
        ("echo `cat $extract`", "the line uses $extract, but"),
        ('echo "it\'s $extract"', "the line uses $extract, but"),
        ("cat <<END\n$extract\nEND", "the line uses $extract, but"),
        ("docker build -t img . && echo $extract", "the line uses $extract, but"),
        (
            "echo $build_all",
            "the line uses $build_all, but the result of task 'build-all' is not passed to it, so the variable is "
            "empty; add inputs: {build_all: {from: build-all}}, and after: build-all",
        ),
        ("echo $load", "the line uses $load, but"),
        (
            "echo $extrcat",
            "the line uses $extrcat, which nothing sets; did you mean the task 'extract'? To pass its result, add "
            "inputs: {extract: {from: extract}} and write $extract",
        ),
        ("echo $meam", "the line uses $meam, which nothing sets; did you mean $mean?"),
        ("echo $REGOIN", "the line uses $REGOIN, which nothing sets; did you mean $REGION?"),
        ("echo $ASTERISM_INPUT_extract", "the line uses $ASTERISM_INPUT_extract, but the result of task 'extract'"),
        ("cat $ASTERISM_INPUT_FILE_meam", "did you mean $ASTERISM_INPUT_FILE_mean?"),
        ("echo $ASTERISM_INPUT_other", "the line uses $ASTERISM_INPUT_other, but the task has no input 'other'"),
        ("echo {mean}", 'a shell line takes inputs as variables: write "$mean" instead of {mean}'),
    ],
)
def test_a_variable_that_nothing_sets_is_warned_of_with_line_and_suggestion(line: str, words: str) -> None:
    (found,) = warnings(line)
    assert words in found


@pytest.mark.parametrize(
    "line",
    [
        "echo $mean ${mean} $day $REGION $ASTERISM_INPUT_mean $ASTERISM_INPUT_FILE_mean $ASTERISM_INPUT_FILE_a",
        "echo '$extract'",
        r"echo \$extract",
        "awk '{ print $extract }' $1 $# $? $$extract",
        "extract=$(cat file); echo $extract",
        "export extract; echo $extract",
        "for extract in a b; do echo $extract; done",
        "cat list | while read -r a extract; do echo $extract; done",
        "echo ${extract:-none} ${extract-none} ${extract:?} ${extract+set}",
        "read extract <<END\n1\nEND\necho $extract",
        "cat <<'END'\n$extract\nEND",
        "true # then $extract",
        ". ./settings; echo $extract",
        "eval $(settings) && echo $extract",
        "echo $HOME $PATH $PWD $LC_ALL $GIT_DIR $ASTERISM_TASK $ASTERISM_INPUT",
        "echo $whatever $ext",
        "echo ${mean}",
    ],
)
def test_what_is_set_or_not_expanded_is_no_warning(line: str) -> None:
    assert warnings(line) == []


def test_a_variable_of_the_environment_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("extract", "1")
    assert warnings("echo $extract") == []


def test_elements_of_a_group_are_variables() -> None:
    text = """asterism: 1
tasks:
  item: {shell: echo 1}
  size: {shell: echo 2}
  each: {foreach: [a, b], shell: "echo $item $index $itm"}
  all: {matrix: {size: [1, 2]}, shell: "echo $size $index $item"}
"""
    _, found = examine(text, "plan")
    assert [(one.line, one.text.partition(", ")[0]) for one in found] == [
        (6, "task 'all': the line uses $item"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        'echo "$a$b" \'$c\' \\$d "\\$e" "$(echo \'$f\' "$g")" # $h',
        "echo \"'$a'\" $(echo $b; echo '$c')",
        "(echo $a; echo ')$b') && echo \"($c\"",
        "echo ${#a} \"${b}\" '${c}'",
    ],
)
def test_a_line_is_read_as_the_shell_reads_it(line: str) -> None:
    """What ``sh -u`` complains about first is what the line reads first, until all of it is set."""
    environment: dict[str, str] = {}
    for _ in range(10):
        said = subprocess.run(["sh", "-uc", line], env=environment, capture_output=True, text=True, check=False).stderr
        if not said:
            break
        environment[said.split(": ")[-2]] = ""
    assert sorted(environment) == sorted(read_variables(line))
