"""A certificate that this machine signs for itself: browsers give WebGPU to https pages alone, but on the same machine."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path


def context(hosts: Sequence[str]) -> ssl.SSLContext:
    """For a server at these addresses, under a key that exists in this process alone.

    Raises:
        ModuleNotFoundError: without the package cryptography.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "torch-webgpu")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(h)) for h in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    pem += key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with tempfile.TemporaryDirectory(prefix="torch-webgpu-") as folder:  # Python loads keys from files alone
        path = Path(folder) / "own.pem"
        path.touch(0o600)
        path.write_bytes(pem)
        made.load_cert_chain(path)
    return made
