"""A git remote with problems: locks, similar refs, removed directories, odd settings, git processes that hang."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from asterism.core.record import replace
from asterism.core.series.machine import Series
from asterism.series import git_process
from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import RetryOptions
from asterism.series.git_process import GitResult, PrivateRepository
from asterism.series.git_register import MAX_UNCHANGED_REJECTIONS, GitRegister
from asterism.series.register import RegisterBusy, RegisterUnavailable, RevisionConflict, Snapshot
from tests.process_scenes import PATIENCE, gone, soon
from tests.series.register_openers import bare_repository, git_output, using_git

NAME = "RFC-093"
REF = "refs/asterism/series/RFC-093"
EAGER = RetryOptions(tries=5, jitter=(0.0, 0.01), deadline=None)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    bare_repository(tmp_path / "remote.git")
    return tmp_path / "remote.git"


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def locks(path: Path) -> list[Path]:
    return list(path.rglob("*.lock"))


def appeared(path: Path) -> None:
    soon(path.exists)


# -- ending git --------------------------------------------------------------------------------------------------------


async def test_a_push_that_is_ended_leaves_no_lock_on_the_remote(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that stays would stop everybody else for good."""
    monkeypatch.setattr(
        git_process, "GRACE", PATIENCE
    )  # who is held up for longer than its grace is killed with its lock
    mark = tmp_path / "begun"
    locked = f'if [ "$1" = prepared ]; then touch {mark}; sleep 1000; fi'
    hook = script(remote / "hooks" / "reference-transaction", locked)
    async with using_git(f"file://{remote}") as register:
        swapping = asyncio.ensure_future(register.swap(NAME, None, "{}", "m"))
        await asyncio.to_thread(appeared, mark)
        assert locks(remote)
        swapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await swapping
        assert not locks(remote)
        hook.unlink()
        assert (await claim(register, NAME, Claim(1), retry=EAGER)).after.active == 1


@pytest.mark.parametrize("twice", [False, True])
async def test_a_git_that_does_not_want_to_end_is_made_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    """Also if its output fills the pipe, and if the task that waits for its end is cancelled once more."""
    monkeypatch.setattr(git_process, "GRACE", 1000.0 if twice else 0.1)
    mark = tmp_path / "begun"
    program = script(tmp_path / "bin" / "git", "trap '' TERM", f"echo $$ > {mark}.new", f"mv {mark}.new {mark}", "yes")
    signalled, sent = git_process._signal_group, asyncio.Event()

    def noted(group: int, how: int) -> bool:
        sent.set()
        return signalled(group, how)

    monkeypatch.setattr(git_process, "_signal_group", noted)
    async with using_git("file:///x.git", environment={"PATH": f"{program.parent}:{os.environ['PATH']}"}) as register:
        reading = asyncio.ensure_future(register._repository.run("x"))
        await asyncio.to_thread(appeared, mark)
        reading.cancel()
        if twice:
            await sent.wait()
            reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await asyncio.to_thread(gone, [int(mark.read_text())])


# -- refs and locks ----------------------------------------------------------------------------------------------------


async def test_a_ref_that_ends_in_the_same_words_is_another(remote: Path) -> None:
    """As a backup of all refs has it, below a name of its own."""
    async with using_git(f"file://{remote}") as register:
        await claim(register, NAME, Claim(1))
        git_output(remote, "update-ref", f"refs/backup/{REF}", git_output(remote, "rev-parse", REF).strip())
        git_output(remote, "update-ref", "-d", REF)
        assert await register.read(NAME) == Snapshot(None, None)
        assert (await claim(register, NAME, Claim(2))).after == (await state(register))


async def state(register: GitRegister) -> Series:
    return Series.from_text((await register.read(NAME)).text, NAME)


@pytest.mark.long
async def test_a_ref_that_is_there_and_never_found_is_told_after_a_few_questions(remote: Path) -> None:
    asked = []

    class Contradicting(PrivateRepository):
        async def run(self, *words: str, **options: Any) -> GitResult:
            asked.append(words[0])
            if words[0] == "fetch":
                return GitResult(128, b"", f"fatal: couldn't find remote ref {REF}")
            return await super().run(*words, **options)

    register = GitRegister(f"file://{remote}")
    register._repository = Contradicting(os.environ, 60.0)
    other = GitRegister(f"file://{remote}")
    await claim(other, NAME, Claim(1))
    try:
        with pytest.raises(RegisterUnavailable, match="cannot be read: fatal: couldn't find remote ref"):
            await register.read(NAME)
    finally:
        await register.close()
        await other.close()
    assert asked == ["fetch", "ls-remote"] * 3


@pytest.mark.long
async def test_a_ref_that_can_never_be_written_is_told_in_gits_words(remote: Path) -> None:
    blob = git_output(remote, "hash-object", "-w", "--stdin", stdin="x").strip()
    git_output(remote, "update-ref", "refs/asterism/series", blob)  # where the folder of the series should be
    async with using_git(f"file://{remote}") as register:
        with pytest.raises(RegisterUnavailable, match="rejects the change of series RFC-093"):
            await claim(register, NAME, Claim(1), retry=EAGER)


@pytest.mark.long
async def test_a_lock_that_was_left_behind_is_told_after_a_few_tries_and_one_that_goes_is_not(remote: Path) -> None:
    async with using_git(f"file://{remote}") as register:
        token = await register.swap(NAME, None, "one", "m")
        lock = remote / f"{REF}.lock"
        lock.touch()
        for _ in range(MAX_UNCHANGED_REJECTIONS - 1):
            with pytest.raises(RegisterBusy):
                await register.swap(NAME, token, "two", "m")
        lock.unlink()
        token = await register.swap(NAME, token, "two", "m")
        lock.touch()
        for _ in range(MAX_UNCHANGED_REJECTIONS - 1):  # another state: it is counted anew
            with pytest.raises(RegisterBusy):
                await register.swap(NAME, token, "three", "m")
        with pytest.raises(RegisterUnavailable, match=r"rejects the change of series RFC-093: .*remote rejected"):
            await register.swap(NAME, token, "three", "m")


@pytest.mark.parametrize("tries", [1, pytest.param(3, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)])
async def test_a_lock_that_was_left_behind_is_not_called_contention_however_few_tries_there_are(
    remote: Path, tries: int
) -> None:
    lock = remote / f"{REF}.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    async with using_git(f"file://{remote}") as register:
        with pytest.raises(RegisterUnavailable, match="rejects the change of series RFC-093"):
            await claim(register, NAME, Claim(1), retry=replace(EAGER, tries=tries))


async def test_a_repository_that_may_not_be_written_to_is_told_with_the_reason(remote: Path, tmp_path: Path) -> None:
    """By another user than its owner, whom a test cannot always be: these are the words that git had for one."""
    said = "error: remote unpack failed: unable to create temporary object directory"
    rejected = "!\t$last\t[remote rejected] (unpacker error)"
    push = ["for last; do :; done", f'printf "{rejected}\\n"', f'echo "{said}" >&2', "exit 1"]
    lines = ['case " $* " in *" push "*)', *push, ";;", "esac", f'exec {shutil.which("git")} "$@"']
    program = script(tmp_path / "bin" / "git", *lines)

    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    async with using_git(f"file://{remote}", environment=environment) as register:
        told = r"\[remote rejected\] \(unpacker error\) \(remote unpack failed: unable to create temporary"
        with pytest.raises(RegisterUnavailable, match=told):
            await claim(register, NAME, Claim(1), retry=EAGER)


# -- the private repository --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
async def test_a_register_whose_folder_was_swept_makes_it_anew(remote: Path, whole: bool) -> None:
    """A sweeper may take the folder, or its oldest files one by one. Either way no history is lost."""
    async with using_git(f"file://{remote}") as register:
        await claim(register, NAME, Claim(1))
        seen = await register.read(NAME)
        swept = register._repository._directory
        assert swept is not None
        if whole:
            shutil.rmtree(swept)
        else:
            (swept / "HEAD").unlink()
            shutil.rmtree(swept / "objects")
        await register.swap(NAME, seen.token, "two", "the second")
        assert [change.message for change in await register.history(NAME, 9)] == ["the second", "claim #1"]
        assert not swept.exists()


# -- surroundings ------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_what_the_surroundings_say_of_commits_is_not_heard(remote: Path, tmp_path: Path) -> None:
    (tmp_path / "grafts").write_text("x\n")
    around = {
        **os.environ,
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "GIT_GRAFT_FILE": str(tmp_path / "grafts"),
        "GIT_SHALLOW_FILE": str(tmp_path / "grafts"),
    }
    async with using_git(f"file://{remote}", environment=around) as register:
        began = time.time() - 2
        await claim(register, NAME, Claim(1))
        assert (await register.history(NAME, 1))[0].at > began
        assert int(git_output(remote, "log", "-1", "--format=%at", REF)) > began


class _Locked(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic realm=x")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *said: Any) -> None:
        pass


@pytest.fixture
def locked_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Locked)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/remote.git"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_nobody_is_asked_for_a_password(locked_server: str, tmp_path: Path) -> None:
    mark = tmp_path / "asked"
    program = script(tmp_path / "ask", f"touch {mark}", "echo x")

    kept = {name: value for name, value in os.environ.items() if name != "GIT_ASKPASS"}
    async with using_git(locked_server, environment={**kept, "SSH_ASKPASS": str(program), "DISPLAY": ":0"}) as register:
        with pytest.raises(RegisterUnavailable, match="could not read Username"):
            await register.read(NAME)
    assert not mark.exists()


async def test_a_password_that_git_puts_into_an_address_is_not_shown(tmp_path: Path) -> None:
    around = {
        **os.environ,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "url.http://ann:hun@ter2@127.0.0.1:1/.insteadOf",
        "GIT_CONFIG_VALUE_0": "mine:",
    }
    async with using_git("mine:remote.git", environment=around) as register:
        with pytest.raises(RegisterUnavailable) as caught:
            await register.read(NAME)
        assert "ter2" not in str(caught.value)
        assert "hun" not in str(caught.value)


# -- ssh ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def over_ssh(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """What stands for ssh: it notes its words, and runs the command that it is given for the other machine here."""
    notes = tmp_path / "notes"
    program = script(tmp_path / "ssh", f'echo "$@" >> {notes}', "shift $(($# - 1))", 'exec sh -c "$1"')
    return notes, {**os.environ, "GIT_SSH_COMMAND": str(program), "GIT_SSH_VARIANT": "ssh"}


@pytest.mark.parametrize(
    "form", ["git@example.invalid:{}", pytest.param("ssh://git@example.invalid:2222{}", marks=pytest.mark.long)]
)
async def test_a_series_is_kept_over_ssh(remote: Path, over_ssh: tuple[Path, dict[str, str]], form: str) -> None:
    notes, environment = over_ssh
    async with using_git(form.format(remote), environment=environment) as register:
        first = await claim(register, NAME, Claim(1), retry=EAGER)
        second = await claim(register, NAME, Claim(2), retry=EAGER)
        assert (first.after.active, second.after.active, second.after.queue) == (1, 1, (2,))
        assert await register.names() == [NAME]
        assert [change.message for change in await register.history(NAME, 9)] == ["queue #2", "claim #1"]
        with pytest.raises(RevisionConflict):
            await register.swap(NAME, first.token, "x", "late")
    said = notes.read_text()
    assert "git@example.invalid git-receive-pack" in said
    assert "git@example.invalid git-upload-pack" in said
    assert git_output(remote, "for-each-ref", "--format=%(refname)") == f"{REF}\n"


@pytest.mark.long
async def test_an_ssh_that_is_refused_is_told(remote: Path, tmp_path: Path) -> None:
    said = "git@example.invalid: Permission denied (publickey)."
    program = script(tmp_path / "ssh", f'echo "{said}" >&2', "exit 255")

    environment = {**os.environ, "GIT_SSH_COMMAND": str(program), "GIT_SSH_VARIANT": "ssh"}
    async with using_git(f"git@example.invalid:{remote}", environment=environment) as register:
        with pytest.raises(RegisterUnavailable, match=r"cannot be reached: .*Permission denied \(publickey\)"):
            await claim(register, NAME, Claim(1), retry=EAGER)
        with pytest.raises(RegisterUnavailable, match=r"accepts no changes: .*Permission denied \(publickey\)"):
            await register.swap(NAME, None, "x", "m")
