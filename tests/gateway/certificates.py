"""Certificates made for a test: an authority, and what it signs."""

import datetime as dt
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "Signed"]

HERE = ("localhost", "127.0.0.1", "::1")
PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Signed:
    """The files of a certificate and of its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority; ``file`` holds its own certificate, in ``folder``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._numbers = count()
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        root = (
            self._begun(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(own, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "ca.crt"
        self.file.write_bytes(root.public_bytes(PEM))

    def sign(
        self, name: str, password: bytes | None = None, hosts: tuple[str, ...] = HERE
    ) -> Signed:
        """A certificate of that common name for these hosts; ``password`` hides its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        cert = (
            self._begun(_name(name), key)
            .add_extension(x509.SubjectAlternativeName(map(_alternative, hosts)), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = self._folder / f"{name}-{next(self._numbers)}"
        signed = Signed(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        signed.cert.write_bytes(cert.public_bytes(PEM))
        hidden = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password)
        )
        signed.key.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, hidden))
        signed.key.chmod(0o600)
        return signed

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
