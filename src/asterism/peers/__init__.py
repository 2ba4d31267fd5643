"""Peers: stores on different machines that sync their runs, and need no common server.

Each machine keeps a store of its own and works while it is offline. Two stores become peers by an invitation. Whenever
one can reach the other, they sync: each sends the records that are new since the last time, and merges what it receives
(core/run/merge.py). After a sync both agree which device owns each run.

How the modules work together:

- Becoming peers: ``invitations`` (the line to paste), ``registry`` (the peers of a store), ``private_files`` (the
  certificate and the secrets beside the store).
- Connection: ``peer_client`` and ``peer_server`` (HTTPS with pinned certificates and bearer tokens). ``peer_service``
  runs both beside a device, and its sync loop calls the peers.
- A sync: ``exchange`` is both sides of the protocol, its progress and its result; ``messages`` has the fields, limits,
  validation and encoding of messages. ``outgoing`` reads batches from our feed of changes, and
  notices a store file that was restored from an older copy. ``ingest`` writes incoming batches; ``record_decisions``
  decides about each record, by what a peer is believed and by ``storage_limits`` (how much it may store).
- Devices: ``remote_devices`` stores the devices of a peer as sessions, so that they can be given work here.
- When something went wrong: ``takeover`` decides about the runs of a silent or removed peer, ``forgotten_runs`` closes
  copies that their authority no longer knows, and ``peer_notices`` tells people, with limits.
- ``takeover`` also has what connects this package to the ports of a fleet (fleet/extensions.py): ``monitor_pass`` and
  ``explain``. ``asterism/__init__`` registers it. No module of another capability imports this package.

Terms: the *feed* of a store is its numbered list of changes; a *cursor* is a position in the feed of a peer. The
*authority* of a run is the store that decides about it; others keep a *copy* that is left to it.

Invariants:

- No peer is believed about another store's devices (``record_decisions``).
- The token of the connection identifies a peer, and the id of its store is bound at the first contact.
- The cursor and the records it covers are one commit, so a sync can break off anywhere. A batch that arrives twice
  changes nothing.
- Exactly one store is the authority of a run once all have synced.
- Nothing that a peer sends grows a store, a record, a log or a table of notices without a limit.
- Message fields and stored registers keep their names, so versions can sync with each other.

To add a message field: ``messages`` (parse it with a default, since older peers omit it), ``Exchange._message`` and the
reader in ``exchange``. To add a reason to refuse a record: ``record_decisions``
(``BatchDecisions.decide``).

A program uses these names::

    from asterism.peers import Exchange, accept_invitation, client_for, find_peer, invite, parse_invitation
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.base.private_file import UnusableSecret as UnusableSecret
    from asterism.peers.exchange import Exchange as Exchange
    from asterism.peers.exchange import PeerUnreachable as PeerUnreachable
    from asterism.peers.exchange import SyncResult as SyncResult
    from asterism.peers.exchange import Transport as Transport
    from asterism.peers.invitations import InvalidInvitation as InvalidInvitation
    from asterism.peers.invitations import Invitation as Invitation
    from asterism.peers.invitations import InvitationUsed as InvitationUsed
    from asterism.peers.invitations import invite as invite
    from asterism.peers.invitations import parse_invitation as parse_invitation
    from asterism.peers.peer_client import PeerClient as PeerClient
    from asterism.peers.peer_client import accept_invitation as accept_invitation
    from asterism.peers.peer_client import client_for as client_for
    from asterism.peers.peer_client import find_peer as find_peer
    from asterism.peers.peer_service import SyncLoop as SyncLoop
    from asterism.peers.peer_service import peer_connections as peer_connections
    from asterism.peers.peer_service import serve_peers as serve_peers
    from asterism.peers.registry import Peer as Peer
    from asterism.peers.registry import PeerExists as PeerExists
    from asterism.peers.registry import PeerRefused as PeerRefused
    from asterism.peers.registry import PeerRegistry as PeerRegistry
    from asterism.peers.registry import UnknownPeer as UnknownPeer
    from asterism.peers.takeover import RemovalResult as RemovalResult
    from asterism.peers.takeover import remove_peer as remove_peer

__getattr__, __dir__ = lazy_names(__name__)
