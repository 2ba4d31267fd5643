"""Series of issues: at most one active issue per series, whichever process or person assigns.

A series is a name, an active issue and a queue. Its state is one small text in a *register*, changed only by
compare-and-swap. Three registers exist: in refs of a git remote, in refs of a GitHub repository, and in a store. ::

    import asyncio
    from asterism.series import Claim, Release, claim, open_register, release

    async def main() -> None:
        register = await open_register("git@example.org:acme/rocket.git")
        try:
            outcome = await claim(register, "RFC-093", Claim(120, by="ci", lease=3600.0))
            if outcome.after.active == 120:
                ...                                        # it is our turn
                await release(register, "RFC-093", Release(120, by="ci"))
        finally:
            await register.close()

    asyncio.run(main())

The names in ``__all__`` are the interface for programs. They are imported when first used, so that a command that uses
git does not load stores or the GitHub client.

Modules:

- ``register``: the protocol ``SeriesRegister``, its errors, and how names become refs and keys.
- ``compare_and_swap``: ``update``, the only loop that changes a series; retries, deadlines, lost replies.
- ``claims``: the steps ``Claim`` and ``Release``, with ``claim`` and ``release``, which apply them; all other steps.
- ``git_register``, with ``git_process`` (git in a private repository, addresses without secrets).
- ``store_register``: the register in a store.
- ``github``: the register on GitHub, and the sync of issues, states and assignments.
- ``series_metrics``: counts of what happened, as JSON and for Prometheus.

The pure state machine is ``asterism.core.series``. Invariants of this room:

- A state is written only in place of the state that was read. An unreadable state is never taken for a free series.
- An update that may have happened ends with OutcomeUnknown, never with an error that says nothing was written.
- The type of an error identifies the failure. Only ``git_register`` has to read the messages of git.
- Secrets of an address appear neither in process arguments nor in messages.

To add a register, implement ``SeriesRegister``, and let ``tests.laboratory.register_conformance`` test it. To add a
change, write a step (a pure function of a series and the time), and apply it with ``update``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.core.series.machine import Series as Series
    from asterism.core.series.machine import UnreadableSeries as UnreadableSeries
    from asterism.series.claims import Claim as Claim
    from asterism.series.claims import Release as Release
    from asterism.series.claims import claim as claim
    from asterism.series.claims import release as release
    from asterism.series.claims import take_next as take_next
    from asterism.series.compare_and_swap import Contended as Contended
    from asterism.series.compare_and_swap import Outcome as Outcome
    from asterism.series.compare_and_swap import RetryOptions as RetryOptions
    from asterism.series.compare_and_swap import UpdateCounts as UpdateCounts
    from asterism.series.compare_and_swap import update as update
    from asterism.series.git_register import GitRegister as GitRegister
    from asterism.series.github.github_register import open_github as open_github
    from asterism.series.github.series_sync import SyncSettings as SyncSettings
    from asterism.series.github.sync import SyncService as SyncService
    from asterism.series.register import BadSeriesName as BadSeriesName
    from asterism.series.register import Change as Change
    from asterism.series.register import NotClaimable as NotClaimable
    from asterism.series.register import OutcomeUnknown as OutcomeUnknown
    from asterism.series.register import RateLimited as RateLimited
    from asterism.series.register import RegisterBusy as RegisterBusy
    from asterism.series.register import RegisterUnavailable as RegisterUnavailable
    from asterism.series.register import RevisionConflict as RevisionConflict
    from asterism.series.register import SeriesError as SeriesError
    from asterism.series.register import SeriesRegister as SeriesRegister
    from asterism.series.register import Snapshot as Snapshot
    from asterism.series.register import read_all as read_all
    from asterism.series.store_register import StoreRegister as StoreRegister

__getattr__, __dir__ = lazy_names(__name__)


async def open_register(place: str, *, create: bool = True) -> SeriesRegister:
    """Open the register at a place, and close it with its ``close``.

    :param place: ``github:owner/name`` for a repository on GitHub, with credentials from the environment;
        ``sqlite:…``, ``postgresql:…`` or ``memory:`` for a store; any other address is a git remote (https, ssh, file,
        or a path).
    :param create: create a store that does not exist; otherwise StoreMissing is raised.
    """
    scheme = place.partition(":")[0].lower() if ":" in place else ""
    if scheme == "github":
        from asterism.series.github.github_register import open_github

        return open_github(place.partition(":")[2])
    if scheme in ("sqlite", "postgresql", "postgres", "memory"):
        from asterism.series.store_register import StoreRegister
        from asterism.store.url import open_store

        return StoreRegister(await open_store(place, create=create))
    from asterism.series.git_register import GitRegister

    return GitRegister(place)
