"""A git remote over HTTPS: git's settings decide about trust, and an untrusted certificate fails at once."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import RetryOptions
from asterism.series.git_register import GitRegister
from asterism.series.register import RegisterUnavailable, RevisionConflict, Snapshot
from tests.forked_commands import run_command
from tests.series.register_openers import bare_repository, certificate, over_http
from tests.series.series_processes import all_at_once

NAME = "RFC-093"
REF = "refs/asterism/series/RFC-093"
EAGER = RetryOptions(tries=5, jitter=(0.0, 0.01), deadline=None)


@pytest.fixture(autouse=True)
def nothing_said_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GIT_SSL_CAINFO", raising=False)
    monkeypatch.delenv("GIT_SSL_NO_VERIFY", raising=False)


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    return certificate(tmp_path)


@pytest.fixture
def remote(tmp_path: Path, trusted: Path) -> Iterator[str]:
    bare_repository(tmp_path / "remote.git")
    with over_http(tmp_path, trusted) as (address, _):
        yield f"{address}/remote.git"


@asynccontextmanager
async def using(url: str, **environment: str) -> AsyncIterator[GitRegister]:
    register = GitRegister(url, environment={**os.environ, **environment})
    try:
        yield register
    finally:
        await register.close()


def asterism(*words: str, **environment: str) -> tuple[int, str, str]:
    done = run_command("series", *words, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def another_writer_is_always_first(repository: Path) -> None:
    """Each push finds that the ref was changed a moment before, by a commit of another writer on top of its state."""
    hook = repository / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    who = "-c user.name=else -c user.email=else@example.invalid"
    hook.write_text(
        "#!/bin/sh\n"
        "unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES\n"
        f"other=$(echo $$ $(date +%s%N) | git {who} commit-tree -p {REF} '{REF}^{{tree}}')\n"
        f"git update-ref {REF} $other\n"
    )
    hook.chmod(0o755)


@pytest.mark.long
def test_a_series_is_claimed_looked_at_and_contended_over_https(remote: str, trusted: Path, tmp_path: Path) -> None:
    place = ("--remote", remote)
    trusts = {"GIT_SSL_CAINFO": str(trusted)}
    claimed = asterism("claim", NAME, "--issue", "1", *place, **trusts)
    assert claimed[:2] == (0, "claimed RFC-093 for #1 (revision 1)\n"), claimed
    assert asterism("claim", NAME, "--issue", "2", *place, **trusts)[0] == 75
    code, out, _ = asterism("status", NAME, "--json", *place, **trusts)
    assert (code, json.loads(out)["active_issue"], json.loads(out)["queue"]) == (0, 1, [2])
    another_writer_is_always_first(tmp_path / "remote.git")
    code, _, said = asterism("claim", NAME, "--issue", "3", "--tries", "2", *place, **trusts)
    assert (code, "other writers won all 2 tries" in said) == (76, True), said
    assert json.loads(asterism("status", NAME, "--json", *place, **trusts)[1])["queue"] == [2]


@pytest.mark.long
def test_many_claim_at_once_over_https(remote: str, trusted: Path, tmp_path: Path) -> None:
    words = [
        ["series", "claim", NAME, "--issue", str(number), "--tries", "0", "--remote", remote] for number in range(1, 4)
    ]
    ended = all_at_once(words, tmp_path, GIT_SSL_CAINFO=str(trusted))
    assert Counter(process.code for process in ended) == {0: 1, 75: 2}, [
        process.err for process in ended if process.code not in (0, 75)
    ]


async def test_the_swap_and_the_history_are_the_same_over_https(remote: str, trusted: Path) -> None:
    async with using(remote, GIT_SSL_CAINFO=str(trusted)) as register:
        first = await register.swap(NAME, None, "one", "the first")
        await register.swap(NAME, first, "two", "the second")
        with pytest.raises(RevisionConflict):
            await register.swap(NAME, first, "late", "late")
        assert [change.message for change in await register.history(NAME, 9)] == ["the second", "the first"]


async def test_the_authority_that_the_settings_of_git_name_is_trusted(
    remote: str, trusted: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[http "{remote.rpartition("/")[0]}"]\n\tsslCAInfo = {trusted}\n')
    async with using(remote, GIT_CONFIG_GLOBAL=str(settings)) as register:
        assert (await claim(register, NAME, Claim(1), retry=EAGER)).after.active == 1


async def test_a_connection_that_breaks_in_the_middle_is_looked_after_over_https(tmp_path: Path, trusted: Path) -> None:
    bare_repository(tmp_path / "remote.git")
    with over_http(tmp_path, trusted) as (address, to_come):
        async with using(f"{address}/remote.git", GIT_SSL_CAINFO=str(trusted)) as register:
            to_come.extend(["after", "before"])
            assert (await claim(register, NAME, Claim(1), retry=EAGER)).after.active == 1
            assert len(await register.history(NAME, 9)) == 1


# -- not trusted -------------------------------------------------------------------------------------------------------


def test_a_certificate_that_nobody_vouches_for_is_told_at_once(remote: str, tmp_path: Path) -> None:
    """At the first try, and not as a change whose outcome is unknown."""
    other = certificate(tmp_path)
    for trusts in ({"GIT_SSL_CAINFO": str(other)}, {}):
        code, out, said = asterism("claim", NAME, "--issue", "1", "--tries", "0", "--remote", remote, **trusts)
        assert (code, out) == (69, "")
        assert f"{remote} cannot be reached: " in said
        assert "certificate" in said
    refs = ["git", "-C", str(tmp_path / "remote.git"), "for-each-ref"]
    assert subprocess.run(refs, capture_output=True, check=True).stdout == b""


def test_a_certificate_that_has_run_out_is_told(tmp_path: Path) -> None:
    bare_repository(tmp_path / "remote.git")
    old = certificate(tmp_path, expired=True)
    with over_http(tmp_path, old) as (address, _):
        code, _, said = asterism("status", NAME, "--remote", f"{address}/remote.git", GIT_SSL_CAINFO=str(old))
    assert (code, "certificate" in said) == (69, True), said


class Exchanged(GitRegister):
    """Reads see one certificate, and the push then sees another."""

    reads = 0
    files: tuple[Path, Path]

    async def read(self, name: str) -> Snapshot:
        self.reads += 1
        self._repository._environment["GIT_SSL_CAINFO"] = str(self.files[0])
        seen = await super().read(name)
        self._repository._environment["GIT_SSL_CAINFO"] = str(self.files[1])
        return seen


async def test_a_push_that_meets_a_certificate_it_does_not_trust_has_not_begun(remote: str, trusted: Path) -> None:
    """So there is nothing to be unsure of, and nothing to try again."""
    register = Exchanged(remote)
    register.files = (trusted, certificate(trusted.parent))
    try:
        with pytest.raises(RegisterUnavailable, match=r"accepts no changes: .*certificate"):
            await claim(register, NAME, Claim(1), retry=EAGER)
        assert register.reads == 1
    finally:
        await register.close()
