"""Warnings about variables in shell lines that nothing sets, although a task, input or parameter has the name."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.planfile.loader import examine
from asterism.planfile.shell_reader import read_variables

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
        ('echo "${#extract}"', "the line uses $extract, but"),
        ('echo "$(echo "a $extract")"', "the line uses $extract, but"),
        ("echo `cat $extract`", "the line uses $extract, but"),
        ('echo "it\'s $extract"', "the line uses $extract, but"),
        ("cat <<END\n$extract\nEND", "the line uses $extract, but"),
        ("cat <<END\nit's $extract\nEND", "the line uses $extract, but"),
        ("echo $((extract + 1))", "the line uses $extract, but"),
        ("sh -c 'echo $extract'", "the line uses $extract, but"),
        ('bash -c "echo \\$extract"', "the line uses $extract, but"),
        ("tar --extract=1; echo $extract", "the line uses $extract, but"),
        ("echo $extract; extract=1", "the line uses $extract, but"),
        ("echo $extract; . ./settings", "the line uses $extract, but"),
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
    (warning,) = warnings(line)
    assert words in warning


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
    _, mistakes = examine(text, "plan")
    assert [(mistake.line, mistake.text.partition(", ")[0]) for mistake in mistakes] == [
        (6, "task 'all': the line uses $item"),
    ]


LINES = [
    'if [ -n "${v:-}" ]; then echo "$v"; fi',
    '[ -z "${v-}" ] || echo "$v"',
    'test "${v+x}" && echo "$v"',
    "echo x | read v; echo $v",
    "echo x |\n  while read v; do echo $v; done; echo $v",
    "v=1; unset v; echo $v",
    "v=1; (unset v); echo $v",
    "v=1 & echo $v",
    "v=1 && w=2 & echo $v",
    "{ v=1; } | cat; echo $v",
    "v=1; echo $v | cat; echo $v",
    "if true | read v; then :; fi; echo $v",
    "for v in a b; do echo $v | cat; done; echo $v",
    'echo "$a$b" \'$c\' \\$d "\\$e" "$(echo \'$f\' "$g")" # $h',
    "echo \"'$a'\" $(echo $b; echo '$c')",
    "(echo $a; echo ')$b') && echo \"($c\"",
    "echo ${#a} \"${b}\" '${c}'",
    # here-documents
    "cat <<END\nit's $a \"$b\" '$c' \\$d\nEND\necho '$e' $f",
    "cat <<-END; echo $b\n\tdon't $a\n\tEND\necho \"it's $c\"",
    "cat <<'ONE' <<TWO\n$a isn't\nONE\nthat's $b\nTWO\necho $c",
    'x=$(cat <<END\nit\'s $a\nEND\n); echo "$x$b"',
    'cat <<"END"\n$a\nEND\necho $b',
    "cat <<\\END\n$a\nEND",
    # lines inside the line
    "sh -uc 'echo $a'",
    "a=1; sh -uc 'echo $a'",
    "export a=1; sh -uc 'echo $a \"$b\"'",
    "export a=1 && exec sh -u -c 'echo $a'",
    "a=1 sh -uc 'echo $a'",
    "env a=1 sh -uc 'echo $a $b'",
    'sh -uc "echo $a \\$b"',
    "sh -uc 'b=1; echo $b' && echo $b",
    "/bin/sh -ec 'set -u; echo \"$a\"'",
    "set -a; a=1; sh -uc 'echo $a'",
    "echo x | xargs sh -uc 'echo $a $0'",
    "echo sh -c '$a'",
    # what sets a variable, and when
    "echo --a=1 --b=$b; echo $a",
    "echo $a; a=1; echo $a",
    "a=1 b=$a; echo $a$b",
    "a=1 echo $a",
    "a=1 true; echo $a",
    "a=1; a=2 true; echo $a",
    "(a=1; echo $a); echo $a",
    "b=$(a=1; echo $a); echo $b $a",
    "a=${b:-1} c=$a; echo $c",
    "echo ${a:-$b} ${c:+$c} ${d:=1} $d",
    "for a in 1 2; do b=$a; done; echo $a $b",
    "echo 1 2 | { read a b; echo $a $b; }",
    "f() { echo $a $b; }; a=1; f",
    "f() { c=1; }; f; echo $c",
    "f() (echo $a); a=1; f",
    "case $a in x) echo no ;; (''|y) b=1 ;; esac; echo $b",
    "x=$(case $a in *) echo 1;; esac); echo $x $b",
    "if true; then a=1; fi; echo $a",
    "while true; do echo $a; break; done",
    "{ echo $a; b=1; }; echo $b",
    # the rest
    "echo `echo $a \\`echo $b\\``",
    'echo "`echo \\"$a\\"`"',
    'echo "${a%\\\'}$b" "${c#"$d"}"',
    "echo a#b$a #$b\n# it's\necho $c",
    'echo 2>&1 >/dev/null $a; echo >"/dev/null$b"',
    "echo $( (echo $a); (echo $b) )",
    "echo $((1$a + 1)) $(( (1 + 2) * 1${b} ))",
    'echo $? $# "$@" $$ ${1-} $a',
    "echo \\\n$a",
]


def complaints(shell: list[str], line: str) -> list[str]:
    """What a shell finds unset in a line: it complains about the first variable, until all of them are set."""
    environment = {"PATH": os.environ["PATH"]}
    for _ in range(10):
        said = subprocess.run(
            [*shell, "-uc", line],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        ).stderr
        if not said:
            break
        environment[said.splitlines()[0].split(": ")[-2]] = ""
    return sorted(environment.keys() - {"PATH"})


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_read_as_the_shell_reads_it(line: str) -> None:
    assert complaints(["sh"], line) == sorted(read_variables(line))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    "line",
    [
        "echo $((a + 1)) $(( 0x1F + b_2 ))",
        "echo $(( c = 1, c += 2 )) $c $(( d == 1 ))",
        "echo $((a+1)",  # not complete: nothing is known of it
        "((a = 1)); echo $a",
        "x=(1 $b); echo ${x[0]} ${c:1}",
        "read -r a <<< $b; echo $a",
        "function f { echo $a; }; a=1; f",
        "printf -v a %s 1; echo $a",
        "cat <(echo $a)",
        "bash -uc \"echo \\$a\"; bash -o pipefail -uc 'echo $b'",
        "declare -x a=1; bash -uc 'echo $a'",
    ],
)
def test_a_line_is_read_as_bash_reads_it(line: str) -> None:
    """``sh`` does not complain about a name in an arithmetic expression: it counts as 0."""
    expected = [] if line.endswith("+1)") else complaints(["bash"], line)
    assert expected == sorted(read_variables(line))


words = st.sampled_from(
    [
        "$a",
        '"$b"',
        "'$c'",
        "${a}",
        "\\$b",
        '"it\'s"',
        "--c=1",
        "\"'$c'\"",
        "'\"'",
        "${b:-$c}",
        "${#a}",
        "x",
        "`echo $b`",
    ]
)
simple = st.lists(words, min_size=1, max_size=3).map(lambda parts: "echo " + " ".join(parts))
sets = st.sampled_from(["a=1", "b=$a", "export c=2", "a=1 true $a", "read b <<END\nit's $c\nEND\n"])
lines = st.recursive(
    simple | sets,
    lambda inner: st.one_of(
        inner.map(lambda line: f"( {line}\n)"),
        inner.map(lambda line: f"{{ {line}\n}}"),
        inner.map(lambda line: f'echo "$( {line}\n)"'),
        inner.map(lambda line: f"sh -uc {shlex.quote(line)}"),
        inner.map(lambda line: f"cat <<DOCUMENT\nisn't $( {line}\n)\nDOCUMENT\n"),
        st.tuples(inner, inner).map("\n".join),
    ),
    max_leaves=5,
)


@settings(max_examples=200)
@given(lines)
def test_whatever_a_line_is_made_of_it_is_read_as_the_shell_reads_it(line: str) -> None:
    assert complaints(["sh"], line) == sorted(read_variables(line))


@given(st.text(alphabet="ab$'\"\\`(){}<>;|&#=-+ \n\tEND[]:case in esac"))
def test_any_text_is_read(line: str) -> None:
    read_variables(line)


@pytest.mark.parametrize("piece", ["$(", "(", "`", '"$(', "$((", "${a:-", "sh -c '", "{ ", "<<E\n", "case a in a) "])
def test_a_line_that_is_nested_without_end_is_read(piece: str) -> None:
    assert read_variables("echo $first; " + piece * 20_000)[0] == "first"
