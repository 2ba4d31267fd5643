"""Private files beside the store: its TLS identity, and the secrets with which it calls its peers.

``laptop.db-peers.json`` contains the secrets with which this store calls its peers, and invitations that were not
exchanged yet (invitations.py). The store itself contains no token, so dumps and backups do not either.

``laptop.db-identity.pem`` contains a private key and a self-signed certificate. A peer recognises the certificate by
its fingerprint, which is part of the invitation, and trusts no other. The certificate is valid for 20 years, but peers
ignore its dates, since their clocks may be days apart.

Files are written atomically and are never readable by others. A file that others can read is refused, since its content
is no longer secret.
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asterism.base.https_session import pem_fingerprint
from asterism.base.private_file import PrivateDocument, UnusableSecret, read_private, write_private
from asterism.base.startup import install_hint
from asterism.core.errors import AsterismError
from asterism.store.protocol import Store

TOKENS_SUFFIX = "-peers.json"
IDENTITY_SUFFIX = "-identity.pem"
SERVER_NAME = "asterism"
"""The name in the certificate. A server with another certificate for other clients shows this one to who asks for this
name."""

VALID_YEARS = 20
BACKDATED = datetime.timedelta(days=365)
"""How long before its creation the certificate is valid, for other tools and slow clocks."""

_ADVICE = "inspect it, remove it, and invite the peers again"


def path_beside(store: Store, ending: str) -> Path:
    """The path of a private file of a store. Raises AsterismError for a store that cannot have peers."""
    path = getattr(store, "path", None)
    if not isinstance(path, Path):
        raise AsterismError(
            f"only a SQLite file such as sqlite:///laptop.db can have peers, not {store.url}; devices that share a "
            "store need no peers"
        )
    return path.with_name(f"{path.name}{ending}")


# -- tokens ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Token:
    """The secret that authenticates this store at a peer. ``invitation`` has to be exchanged for it first, None once
    that is done. ``repr`` hides both."""

    secret: str = field(repr=False)
    invitation: str | None = field(default=None, repr=False)

    def to_json(self) -> str | dict[str, str]:
        return self.secret if self.invitation is None else {"secret": self.secret, "invitation": self.invitation}

    @classmethod
    def from_json(cls, data: Any) -> Token:
        """Raises KeyError, TypeError, ValueError."""
        if isinstance(data, str):
            return cls(data)
        if not isinstance(data["secret"], str) or not isinstance(data["invitation"], str):
            raise ValueError("a secret has to be a string")
        return cls(data["secret"], data["invitation"])


class TokenFile:
    """The tokens with which a store calls its peers, by peer name. Several processes may change them at once."""

    def __init__(self, store: Store) -> None:
        self._document = PrivateDocument(path_beside(store, TOKENS_SUFFIX), _tokens, _ADVICE)

    def get(self, peer: str) -> Token | None:
        """Raises UnusableSecret."""
        return (self._document.read() or {}).get(peer)

    def put(self, peer: str, token: Token) -> None:
        """Store a token durably."""
        with self._document.locked():
            self._write({**(self._document.read() or {}), peer: token})

    def remove(self, peer: str) -> None:
        with self._document.locked():
            tokens = self._document.read() or {}
            if tokens.pop(peer, None) is not None:
                self._write(tokens)

    def _write(self, tokens: dict[str, Token]) -> None:
        self._document.write({peer: token.to_json() for peer, token in tokens.items()})


def _tokens(data: Any) -> dict[str, Token]:
    return {peer: Token.from_json(token) for peer, token in data.items()}


# -- the TLS identity --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """``path`` is the file with the key and the certificate; ``fingerprint`` is the SHA-256 of the certificate in
    hexadecimal."""

    path: Path
    fingerprint: str


def tls_identity(store: Store) -> TlsIdentity:
    """The identity of a store, created at the first call. Raises UnusableSecret, and AsterismError if ``cryptography``
    is not installed."""
    path = path_beside(store, IDENTITY_SUFFIX)
    data = read_private(path, _ADVICE)
    if data is None:
        write_private(path, _new_identity(), replace=False)  # if another process was faster, its identity stays
        data = read_private(path, _ADVICE) or b""
    return TlsIdentity(path, _checked(path, data))


def _checked(path: Path, data: bytes) -> str:
    """The fingerprint, after checking that key and certificate belong together."""
    try:
        own = pem_fingerprint(data.decode("ascii"))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    except (ValueError, ssl.SSLError):
        raise UnusableSecret(
            f"{path} is damaged: it does not contain a key and its certificate. Restore it from a backup, or remove it "
            "and invite the peers again"
        ) from None
    return own


def _new_identity() -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise AsterismError(f"peers need cryptography: {install_hint('peers')}") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, SERVER_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=365 * VALID_YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
