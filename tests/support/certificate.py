"""A self-signed certificate for a test's own TLS server, made by the openssl command."""

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """Certificate and key in PEM, valid for a day."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "1", "-subj", f"/CN={name}", "-keyout", str(key)]
    command += ["-out", str(certificate), "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
