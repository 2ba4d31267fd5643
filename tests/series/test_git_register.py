"""The register on a git remote: what it writes, and how it interprets the output of git."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from asterism.series import git_process, git_register
from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import RetryOptions
from asterism.series.git_process import DIRECTORY_PREFIX, GitResult, PrivateRepository
from asterism.series.git_register import GitRegister
from asterism.series.register import OutcomeUnknown, RegisterBusy, RegisterUnavailable, RevisionConflict, Snapshot
from tests.process_scenes import gone, soon
from tests.series.register_openers import bare_repository, git_output, over_http, using_git

NAME = "RFC-093"
REF = "refs/asterism/series/RFC-093"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    bare_repository(tmp_path / "remote.git")
    return tmp_path / "remote.git"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory in which only what is tested leaves anything."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


# -- what it leaves ----------------------------------------------------------------------------------------------------


async def test_on_the_remote_there_is_one_ref_and_nothing_else(remote: Path) -> None:
    async with using_git(f"file://{remote}") as register:
        first = await register.swap(NAME, None, "one\n", "the first")
        await register.swap(NAME, first, "two\n", "the second")
        assert git_output(remote, "for-each-ref", "--format=%(refname) %(objecttype)") == f"{REF} commit\n"
        assert git_output(remote, "log", "--format=%s|%P", REF).splitlines() == [f"the second|{first}", "the first|"]
        assert git_output(remote, "ls-tree", "--name-only", REF) == "series.json\n"
        assert git_output(remote, "show", f"{REF}:series.json") == "two\n"


async def test_nothing_is_left_behind_here(remote: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = temporary.parent / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(remote), str(checkout)], check=True, capture_output=True)
    before = {path: path.stat().st_mtime_ns for path in checkout.rglob("*")}
    monkeypatch.chdir(checkout)
    async with using_git("../remote.git") as register:
        await register.swap(NAME, None, "one", "m")
        await register.read(NAME)
        assert len(os.listdir(temporary)) == 1
    assert list(temporary.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in checkout.rglob("*")} == before


async def test_within_a_hook_of_a_checkout_it_is_the_remote_that_is_meant(remote: Path, monkeypatch: Any) -> None:
    other = remote.parent / "other.git"
    bare_repository(other)
    monkeypatch.setenv("GIT_DIR", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    async with using_git(f"file://{remote}") as register:
        await register.swap(NAME, None, "one", "m")
    monkeypatch.delenv("GIT_DIR")
    assert git_output(remote, "for-each-ref")
    assert not git_output(other, "for-each-ref")
    assert not list((other / "objects").glob("??"))


async def test_what_a_killed_process_left_is_swept_after_a_day(remote: Path, temporary: Path) -> None:
    old, young, foreign = (
        temporary / name for name in (f"{DIRECTORY_PREFIX}old", f"{DIRECTORY_PREFIX}young", "another")
    )
    for path in (old, young, foreign):
        (path / "objects").mkdir(parents=True)
        os.utime(path, (0, 0) if path is not young else None)
    async with using_git(f"file://{remote}") as register:
        await register.read(NAME)
    assert sorted(temporary.iterdir()) == sorted([young, foreign])


async def test_hooks_and_settings_of_the_user_do_not_get_in(remote: Path, tmp_path: Path, monkeypatch: Any) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-push").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-push").chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(
        f"[core]\n\thooksPath = {hooks}\n[push]\n\tgpgSign = true\n\tfollowTags = true\n\tpushOption = x\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    async with using_git(f"file://{remote}") as register:
        await register.swap(NAME, None, "one", "m")


# -- what cannot be used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "--upload-pack=touch /tmp/x", "a\nb"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(RegisterUnavailable, match="is not a valid address of a git remote"):
        GitRegister(url)


async def test_a_remote_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with using_git(f"file://{tmp_path}/nowhere.git") as register:
        for attempt in (register.read(NAME), register.names(), register.history(NAME, 3)):
            with pytest.raises(RegisterUnavailable, match="does not appear to be a git repository"):
                await attempt
        with pytest.raises(RegisterUnavailable, match=r"accepts no changes: .*does not appear to be a git repository"):
            await register.swap(NAME, None, "x", "m")


async def test_a_password_is_not_shown() -> None:
    async with using_git("http://ann:hunter2@127.0.0.1:1/remote.git") as register:
        with pytest.raises(RegisterUnavailable) as caught:
            await register.read(NAME)
        assert "hunter2" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value)


async def test_without_the_program_it_says_so(remote: Path) -> None:
    async with using_git(f"file://{remote}", environment={"PATH": "/nowhere"}) as register:
        with pytest.raises(RegisterUnavailable, match="git is not installed"):
            await register.read(NAME)


async def test_a_remote_that_rejects_is_told_in_its_own_words(remote: Path) -> None:
    hook = remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'only ann may push here' >&2\nexit 1\n")
    hook.chmod(0o755)
    told = r"rejects the change of series RFC-093: .*hook declined.* \(only ann may push here\)$"
    async with using_git(f"file://{remote}") as register:
        with pytest.raises(RegisterUnavailable, match=told):
            await register.swap(NAME, None, "x", "m")
        assert await register.read(NAME) == Snapshot(None, None)


# -- what became of a push ---------------------------------------------------------------------------------------------


async def test_what_was_pushed_by_hand_is_not_free_and_can_be_replaced(remote: Path, tmp_path: Path) -> None:
    """A branch, or even a file, under the name of a series: it is taken, and who mends it replaces exactly that."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(remote), str(clone)], check=True, capture_output=True)
    (clone / "note").write_text("mine")
    blob = git_output(clone, "hash-object", "-w", "note").strip()
    git_output(clone, "push", "--quiet", str(remote), f"{blob}:{REF}")
    async with using_git(f"file://{remote}") as register:
        seen = await register.read(NAME)
        assert seen == Snapshot("", blob)
        token = await register.swap(NAME, blob, "mended", "m")
        assert await register.read(NAME) == Snapshot("mended", token)


async def test_a_swap_from_a_state_that_was_read_elsewhere_works(remote: Path) -> None:
    async with using_git(f"file://{remote}") as register:
        first = await register.swap(NAME, None, "one", "m")
        other, late = GitRegister(register.url), GitRegister(register.url)
        second = await other.swap(NAME, first, "two", "m")
        with pytest.raises(RevisionConflict):
            await late.swap(NAME, first, "three", "m")
        assert await register.read(NAME) == Snapshot("two", second)
        await other.close()
        await late.close()


@pytest.mark.parametrize(
    ("line", "judged"),
    [
        (f"*\tabc:{REF}\t[new reference]", ("*", "[new reference]")),
        (f" \tabc:{REF}\tabc..def", (" ", "abc..def")),
        (f"=\tabc:{REF}\t[up to date]", ("=", "[up to date]")),
        (f"!\tabc:{REF}\t[rejected] (stale info)", ("!", "[rejected] (stale info)")),
        (f"!\tabc:{REF}0\t[rejected] (stale info)", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_porcelain_output_is_read(line: str, judged: tuple[str, str]) -> None:
    assert git_register._push_result(f"To file:///somewhere\n{line}\nDone\n", REF) == judged


class CannedPush(PrivateRepository):
    """The output of a push is ``output``; other commands run."""

    output = ""

    async def run(self, *words: str, **options: Any) -> GitResult:
        if words[0] == "push":
            return GitResult(1, self.output.encode(), "fatal: the remote end hung up unexpectedly")
        return await super().run(*words, **options)


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("", OutcomeUnknown),
        (f"!\tx:{REF}\t[rejected] (stale info)\n", RegisterBusy),
        (f"!\tx:{REF}\t[remote rejected] (failed to update ref)\n", RegisterBusy),
        (f"!\tx:{REF}\t[remote rejected] (cannot lock ref 'x': is at a but expected b)\n", RegisterBusy),
        (f"!\tx:{REF}\t[remote rejected] (deny updating a hidden ref)\n", RegisterUnavailable),
    ],
)
async def test_what_a_push_says_decides_and_not_only_its_exit_code(
    remote: Path, says: str, kind: type[Exception]
) -> None:
    """The rejection sounds like another writer, but the ref is unchanged: it is not a conflict."""
    register = GitRegister(f"file://{remote}")
    register._repository = repository = CannedPush(os.environ, 60.0)
    repository.output = says
    try:
        with pytest.raises(kind):
            await register.swap(NAME, None, "x", "m")
    finally:
        await register.close()


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def frozen(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A git that never ends, and the file in which it notes its process."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho $$ >> "{tmp_path}/started"\nsleep 1000 &\necho $! >> "{tmp_path}/started"\nwait\n'
    )
    program.chmod(0o755)
    return tmp_path / "started", {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def noted(file: Path) -> None:
    """Wait until it has noted both its processes."""
    soon(lambda: file.exists() and len(file.read_text().split()) == 2)


def ended(file: Path) -> None:
    """Wait until the processes noted there are gone."""
    assert gone(int(line) for line in (file.read_text().split() if file.exists() else []))


async def test_a_git_that_does_not_answer_is_ended_with_all_it_started(frozen: tuple[Path, dict[str, str]]) -> None:
    file, environment = frozen
    async with using_git("file:///x.git", timeout=0.5, environment=environment) as register:
        with pytest.raises(RegisterUnavailable, match=r"does not answer: git fetch took longer than 0\.5 s"):
            await register.read(NAME)
    ended(file)


async def test_a_process_that_git_leaves_with_its_output_does_not_block(tmp_path: Path) -> None:
    """A helper in a session of its own, such as a shared connection of ssh, may hold the pipes of git for hours."""
    program, file = tmp_path / "bin" / "git", tmp_path / "helper"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nsetsid sh -c 'echo $$ > {file}; exec sleep 1000' </dev/null >/dev/null &\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    async with using_git("file:///x.git", timeout=0.5, environment=environment) as register:
        with pytest.raises(RegisterUnavailable, match=r"does not answer: git fetch took longer than 0\.5 s"):
            await register.read(NAME)
    soon(lambda: file.exists() and file.read_text())
    os.kill(int(file.read_text()), signal.SIGKILL)


async def test_who_is_interrupted_while_git_begins_leaves_no_process_behind(
    frozen: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is there before its parent knows of it: at that very moment the parent is interrupted."""
    file, environment = frozen
    start = git_process.start_process

    async def slowly(*words: Any, **options: Any) -> Any:
        process = await start(*words, **options)
        await asyncio.to_thread(noted, file)
        reading.cancel()
        return process

    reading: asyncio.Future[Any]
    async with using_git("file:///x.git", environment=environment) as register:
        monkeypatch.setattr(git_process, "start_process", slowly)
        reading = asyncio.ensure_future(register.read(NAME))
        with pytest.raises(asyncio.CancelledError):
            await reading
    ended(file)


async def test_who_is_interrupted_leaves_no_process_behind(frozen: tuple[Path, dict[str, str]]) -> None:
    file, environment = frozen
    async with using_git("file:///x.git", environment=environment) as register:
        reading = asyncio.ensure_future(register.read(NAME))
        await asyncio.to_thread(noted, file)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    ended(file)


# -- replies that are lost, over HTTP ----------------------------------------------------------------------------------

MORE_FAULTS = (["before", "after"], ["after", "before", "before"])


@pytest.mark.parametrize(
    "faults", [["after"], ["before"], *(pytest.param(faults, marks=pytest.mark.long) for faults in MORE_FAULTS)]
)
async def test_a_push_whose_connection_breaks_is_found_out(remote: Path, faults: list[str]) -> None:
    with over_http(remote.parent) as (address, to_come):
        async with using_git(f"{address}/remote.git") as register:
            await claim(register, NAME, Claim(1), retry=RetryOptions(jitter=(0.0, 0.01), deadline=None))
            to_come.extend(faults)
            outcome = await claim(register, NAME, Claim(2), retry=RetryOptions(jitter=(0.0, 0.01), deadline=None))
            assert (outcome.after.active, outcome.after.queue, outcome.after.revision) == (1, (2,), 2)
            to_come.clear()
            assert [change.message for change in await register.history(NAME, 9)] == ["queue #2", "claim #1"]


async def test_a_push_that_is_repeated_below_us_is_recognised_as_ours(remote: Path) -> None:
    """What carries a push may send it again when its connection breaks; the second is rejected, since the first was
    not. That it is ours which is there decides."""
    with over_http(remote.parent) as (address, to_come):
        async with using_git(f"{address}/remote.git") as register:
            to_come.append("after")
            token = await register.swap(NAME, None, "x", "m")
            assert not to_come
            assert await register.read(NAME) == Snapshot("x", token)


async def test_a_push_that_is_repeated_after_others_built_upon_it_is_recognised_too(remote: Path) -> None:
    def built_upon() -> None:
        words = ["-c", "user.name=x", "-c", "user.email=x", "commit-tree", f"{REF}^{{tree}}", "-p", REF, "-m", "theirs"]
        git_output(remote, "update-ref", REF, git_output(remote, *words).strip())

    with over_http(remote.parent) as (address, to_come):
        async with using_git(f"{address}/remote.git") as register:
            to_come.append(built_upon)
            token = await register.swap(NAME, None, "x", "ours")
            assert not to_come
            changes = await register.history(NAME, 9)
            assert [change.message for change in changes] == ["theirs", "ours"]
            assert changes[1].token == token


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://token@host/r.git", "https://host/r.git"),
        ("https://ann:secret@host/r.git", "https://host/r.git"),
        ("https://ann:se@cret@host/r.git", "https://host/r.git"),
        ("ssh://git:se@cret@host/r.git", "ssh://git:***@host/r.git"),
        ("ssh://git@host:22/r.git", "ssh://git@host:22/r.git"),
        ("ssh://git:secret@host/r.git", "ssh://git:***@host/r.git"),
        ("git@host:org/r.git", "git@host:org/r.git"),
        ("/srv/r.git", "/srv/r.git"),
    ],
)
def test_an_address_is_shown_without_what_is_secret_in_it(address: str, shown: str) -> None:
    assert GitRegister(address).url == shown


def test_a_password_that_cannot_be_told_from_the_path_is_refused_and_not_shown() -> None:
    with pytest.raises(RegisterUnavailable, match="write / as %2F") as refused:
        GitRegister("https://ann:se/cr@et@host/r.git")
    assert "cr" not in str(refused.value).replace("https", "")


async def test_a_connection_that_breaks_again_and_again_is_not_knowing(remote: Path) -> None:
    with over_http(remote.parent) as (address, to_come):
        async with using_git(f"{address}/remote.git") as register:
            to_come.extend(["after"] * 9)
            with pytest.raises(OutcomeUnknown):
                await register.swap(NAME, None, "x", "m")
            assert (await register.read(NAME)).text == "x"
