"""The TLS identity of a store: a private key and a self-signed certificate in a file beside it.

The file of ``laptop.db`` is ``laptop.db-identity.pem``. A peer recognises the certificate by its fingerprint, which is
part of the invitation, and trusts no other. The certificate is valid for 20 years, but peers ignore its dates, since
their clocks may be days apart.
"""

from __future__ import annotations

import datetime
import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from asterism.base.startup import install_hint
from asterism.core.errors import AsterismError
from asterism.peers.private_files import UnusableSecret, path_beside, read_private, write_private
from asterism.store.protocol import Store

IDENTITY_SUFFIX = "-identity.pem"
VALID_YEARS = 20
BACKDATED = datetime.timedelta(days=365)
"""How long before its creation the certificate is valid, for other tools and slow clocks."""


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """``path`` is the file with the key and the certificate; ``fingerprint`` is the SHA-256 of the certificate in
    hexadecimal."""

    path: Path
    fingerprint: str


def tls_identity(store: Store) -> TlsIdentity:
    """The identity of a store; created if there is none. Raises UnusableSecret, and AsterismError if ``cryptography``
    is not installed."""
    path = path_beside(store, IDENTITY_SUFFIX)
    data = read_private(path)
    if data is None:
        write_private(path, _new_identity(), replace=False)  # if another process was faster, its identity stays
        data = read_private(path) or b""
    return TlsIdentity(path, _checked(path, data))


def fingerprint(certificate: bytes) -> str:
    """The fingerprint of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def _checked(path: Path, data: bytes) -> str:
    """The fingerprint, after checking that key and certificate belong together."""
    try:
        text = data.decode("ascii")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        certificate = ssl.PEM_cert_to_DER_cert(text[begin:])
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    except (ValueError, ssl.SSLError):
        raise UnusableSecret(
            f"{path} is damaged: it does not contain a key and its certificate. Restore it from a backup, or remove it "
            "and invite the peers again"
        ) from None
    return fingerprint(certificate)


def _new_identity() -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise AsterismError(f"peers need cryptography: {install_hint('peers')}") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "asterism")])
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
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("asterism")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
