"""Series on GitHub: a register in refs of a repository, and a sync of issues, states and assignments.

It needs the extra ``github``. Layers, from the bottom:

- ``github_client``: one authenticated request (``Connection``); then cached responses, rate limits and retries. Only
  ``GitHubClient`` decides whether a request may be repeated.
- ``github_register``: the register (``SeriesRegister``) on refs of the repository; ``open_github`` opens it.
- ``discovery``, ``observed_state``: which issues belong to a series, which are open and assigned, and why others left.
- ``assignment``: the assignment lock of a series, and assignments that are verified.
- ``tracking_issue``: what people see. It is written from the state and decides nothing.
- ``series_sync``, ``sync``, ``sync_report``: one sync of one series, with the pure step from the
  observed issues to the state (``Reconciliation``); the sync of all series, once or on request.
- ``webhook``: requests syncs, for ``asterism series serve``.
- ``issue_claims``: claims for the command line that check the issues first.

Invariants:

- The compare-and-swap of the state alone decides about the active issue. Labels, comments and tracking issues never do.
- Every assignment is made under the assignment lock, after the state was read again, and is verified by a read.
- A read of a stale replica is never taken for an empty state: it raises RegisterUnavailable.
- A sync with other discovery rules than those stored with a series leaves the series alone.

To add a way for an issue to leave, extend ``Departure``. To add something that people see on issues, write it in
``SeriesSync._mark_issues``, and make a failure there harmless.
"""
