"""Warnings about variables in shell lines that nothing sets, although a task or input has the name."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.planfile.loader import examine

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
    _, mistakes = examine(PLAN.format(line=json.dumps(line)), "plan")
    assert all(mistake.warning for mistake in mistakes), mistakes
    return [f"{mistake.line}: {mistake.text}" for mistake in mistakes]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "echo loading $extract",
            "7: task 'load': the line uses $extract, but the result of task 'extract' is not passed to it, so the "
            "variable is empty; add inputs: {extract: {from: extract}}",
        ),
        ('echo "$(echo "a $extract")"', "the line uses $extract, but"),
        ("echo `cat $extract`", "the line uses $extract, but"),
        ('echo "it\'s $extract"', "the line uses $extract, but"),
        ("cat <<END\n$extract\nEND", "the line uses $extract, but"),
        ("tar --extract=1; echo ${extract}", "the line uses $extract, but"),
        ("docker build -t img . && echo $extract", "the line uses $extract, but"),
        ("read -r line; echo $extract", "the line uses $extract, but"),
        (
            "echo $build_all",
            "the line uses $build_all, but the result of task 'build-all' is not passed to it, so the variable is "
            "empty; add inputs: {build_all: {from: build-all}}, and after: build-all",
        ),
        ("echo $load", "the line uses $load, but"),
        ("echo $ASTERISM_INPUT_extract", "the line uses $ASTERISM_INPUT_extract, but the result of task 'extract'"),
        ("echo $ASTERISM_INPUT_other", "the line uses $ASTERISM_INPUT_other, but the task has no input 'other'"),
        ("cat $ASTERISM_INPUT_FILE_other", "$ASTERISM_INPUT_FILE_other, but the task has no input 'other'"),
        ("echo {mean}", 'a shell line takes inputs as variables: write "$mean" instead of {mean}'),
    ],
)
def test_a_variable_that_nothing_sets_is_warned_of_with_line_and_suggestion(line: str, words: str) -> None:
    (warning,) = warnings(line)
    assert words in warning


QUIET = [
    "echo '$extract'",
    "echo \"it's\" '$extract'",
    'echo "$(awk \'{ print "x" $extract }\' list)"',
    r"echo \$extract",
    "awk '{ print $extract }' $1 $# $? $$extract",
    "extract=$(cat list); echo $extract",
    "a=1 extract=2; echo $extract",
    "((extract = 1)); echo $((extract)) $extract",
    "export extract=1; echo $extract",
    "for extract in a b; do echo $extract; done",
    "cat list | while read -r a extract; do echo $extract; done",
    "echo ${extract:-none} ${extract-none} ${extract+set}; echo $extract",
    "read extract <<END\n1\nEND\necho $extract",
    "cat <<'END'\n$extract\nEND",
    'cat <<-"END"\n$extract\nEND',
    "true # then $extract",
    ". ./settings; echo $extract",
    "if true; then . ./settings; fi; echo $extract",
    "eval $(cat settings) && echo $extract",
    "load() { echo $extract; }; extract=1; load",
]
"""Lines that set the variable, expect it to be unset, or do not expand it."""


@pytest.mark.parametrize(
    "line",
    [
        *QUIET,
        "echo $mean ${mean} $day $REGION $ASTERISM_INPUT_mean $ASTERISM_INPUT_FILE_mean $ASTERISM_INPUT_FILE_a",
        "echo $HOME $PATH $PWD $LC_ALL $GIT_DIR $ASTERISM_TASK $ASTERISM_INPUT",
        "echo $whatever $ext $extract_more",
    ],
)
def test_what_is_set_or_not_expanded_is_no_warning(line: str) -> None:
    assert warnings(line) == []


@given(
    st.lists(
        st.sampled_from([*QUIET[:5], *QUIET[8:9], 'echo "it\'s"', 'echo "a"', "echo 'b \" c'"]), min_size=1, max_size=4
    )
)
def test_lines_one_after_another_are_warned_of_only_if_the_shell_finds_the_variable_unset(lines: list[str]) -> None:
    """A false warning is worse than a missed one."""
    line = "\n".join(lines)
    if warnings(line):
        shell = ["sh", "-uc", line]
        answer = subprocess.run(shell, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
        assert "extract" in answer.stderr


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
    _, mistakes = examine(text, "plan")
    assert [(mistake.line, mistake.text.partition(", ")[0]) for mistake in mistakes] == [
        (6, "task 'all': the line uses $item"),
    ]
