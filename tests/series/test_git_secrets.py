"""A password in the address of a git remote: git uses it, and no process argument or message shows it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.series import git_register
from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import RetryOptions
from asterism.series.git_process import RemoteAddress, rewrite_address, split_address
from asterism.series.git_register import GitRegister
from asterism.series.register import RegisterUnavailable
from tests.forked_commands import run_command
from tests.series.register_openers import bare_repository, over_http

NAME = "RFC-093"
USER, PASSWORD = "ann@example.org", "s3cr:t/w@rd%x"
QUOTED = "ann%40example.org:s3cr%3At%2Fw%40rd%25x"
EAGER = RetryOptions(tries=5, jitter=(0.0, 0.01), deadline=None)


class Observer:
    """Reads the arguments of all processes, as ``ps`` does."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self) -> None:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.seen.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue

    @property
    def of_git(self) -> list[str]:
        return [line for line in self.seen if "remote-http" in line]

    def saw(self, *secrets: str) -> list[str]:
        return [line for line in self.of_git if any(secret in line for secret in secrets)]


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc to look at")
Served = tuple[str, Observer]


@pytest.fixture(autouse=True)
def nothing_said_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Host and path of a remote that wants the password, and who looks at the processes at each request."""
    bare_repository(tmp_path / "remote.git")
    observer = Observer()
    with over_http(tmp_path, credentials=f"{USER}:{PASSWORD}", observer=observer) as (address, _):
        yield f"{address.removeprefix('http://')}/remote.git", observer


def claimed(address: str) -> None:
    async def main() -> None:
        register = GitRegister(address)
        try:
            assert (await claim(register, NAME, Claim(1), retry=EAGER)).after.active == 1
            assert len(await register.history(NAME, 9)) == 1
        finally:
            await register.close()

    asyncio.run(main())


@needs_proc
def test_no_process_shows_the_password_of_an_address(served: Served) -> None:
    host, observer = served
    claimed(f"http://{QUOTED}@{host}")
    assert observer.of_git
    assert observer.saw(PASSWORD, "s3cr%3At", USER, "ann%40") == []


@needs_proc
def test_without_the_split_every_process_shows_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation: the observer would notice."""
    host, observer = served
    monkeypatch.setattr(git_register, "split_address", RemoteAddress)
    claimed(f"http://{QUOTED}@{host}")
    assert observer.saw("s3cr%3At")


@needs_proc
def test_an_address_that_settings_make_of_another_shows_nothing_either(served: Served, tmp_path: Path) -> None:
    host, observer = served
    place = host.partition("/")[0]
    (tmp_path / "gitconfig").write_text(
        f'[url "http://{QUOTED}@{place}/"]\n\tinsteadOf = "work:"\n\tinsteadOf = "http://{place}/"\n'
    )
    for address in ("work:remote.git", f"http://{host}"):
        claimed(address)
    assert observer.of_git
    assert observer.saw(PASSWORD, "s3cr%3At", USER, "ann%40") == []


def test_the_helpers_of_the_user_are_neither_asked_nor_told(served: Served, tmp_path: Path) -> None:
    host, _ = served
    asked = tmp_path / "asked"
    (tmp_path / "gitconfig").write_text(f'[credential]\n\thelper = "!f() {{ echo $1 >> {asked}; }}; f"\n')
    claimed(f"http://{QUOTED}@{host}")
    assert not asked.exists()


def test_a_user_without_a_password_is_asked_for_at_the_helpers_of_the_user(served: Served, tmp_path: Path) -> None:
    host, observer = served
    asked = tmp_path / "asked"
    helper = f"!f() {{ cat >> {asked}; echo 'password={PASSWORD}'; }}; f"
    (tmp_path / "gitconfig").write_text(f'[credential]\n\thelper = "{helper}"\n')
    claimed(f"http://ann%40example.org@{host}")
    assert f"username={USER}" in asked.read_text()
    assert observer.saw(USER, "ann%40") == []


@pytest.mark.parametrize("words", [("status", NAME), ("claim", NAME, "--issue", "1")])
def test_no_message_shows_a_password_that_is_refused(served: Served, words: tuple[str, ...]) -> None:
    host, _ = served
    wrong = "another-s3cret"
    traced = {**os.environ, "GIT_TRACE": "1", "GIT_TRACE_CURL": "1"}
    done = run_command("series", *words, "--remote", f"http://ann:{wrong}@{host}", env=traced)
    assert done.returncode == 69
    assert "uthentication failed" in done.stderr
    assert wrong not in done.stdout + done.stderr


def test_what_a_server_repeats_is_blotted_out() -> None:
    address = split_address("https://ann:s3cret%2Fx@host/r.git")
    said = address.without_secrets("remote: s3cret/x is wrong, and so is s3cret%2Fx")
    assert said == "remote: … is wrong, and so is …"
    assert "s3cret" not in repr(address)


def test_a_password_of_another_kind_of_address_is_left_out() -> None:
    assert split_address("ssh://git:secret@host/r.git").plain == "ssh://git@host/r.git"
    for address in ("git@host:org/r.git", "/srv/r.git", "file:///r.git", "https://host/a@b/r.git"):
        assert split_address(address) == RemoteAddress(address)


def test_a_password_that_would_end_a_line_of_the_protocol_is_refused() -> None:
    with pytest.raises(RegisterUnavailable, match="control character") as refused:
        split_address("https://ann:a%0Ahost=evil@host/r.git")
    assert "evil" not in str(refused.value)


Rules = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("rules", "pushing", "made"),
    [
        ([], False, "gh:o/r"),
        ([("url.https://t@h/.insteadof", "gh:")], False, "https://t@h/o/r"),
        ([("url.https://h/.insteadof", "gh:")], False, "gh:o/r"),
        ([("url.https://t@h/.insteadof", "gh:"), ("url.https://h/o/.insteadof", "gh:o/")], False, "gh:o/r"),
        ([("url.https://t@h/.insteadof", "gh:"), ("url.ssh://h/.pushinsteadof", "gh:")], True, "gh:o/r"),
        ([("url.https://t@h/.pushinsteadof", "gh:")], True, "https://t@h/o/r"),
        ([("url.https://t@h/.pushinsteadof", "gh:")], False, "gh:o/r"),
        ([("url.https://a.b:t@h.i/.insteadof", "gh:")], True, "https://a.b:t@h.i/o/r"),
    ],
)
def test_the_longest_rule_makes_the_address(rules: Rules, pushing: bool, made: str) -> None:
    assert rewrite_address("gh:o/r", rules, pushing) == made


def test_settings_of_the_environment_stay() -> None:
    before = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.proxy", "GIT_CONFIG_VALUE_0": "p", "PATH": "x"}
    after = {**before, **split_address("https://t:p@h/r.git").variables(before)}
    assert (after["GIT_CONFIG_KEY_0"], after["GIT_CONFIG_COUNT"], after["PATH"]) == ("http.proxy", "5", "x")
    assert split_address("https://h/r.git").variables(before) == {}
