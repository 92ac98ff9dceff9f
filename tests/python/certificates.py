"""Certificates for tests."""

import subprocess
from pathlib import Path

import fetch
from conftest import fetched

#: openssl's configuration: the extensions of an authority's certificate, and of those that it signs.
EXTENSIONS = """
[req]
distinguished_name = name
prompt = no
[name]
CN = paternoster
[authority]
basicConstraints = critical, CA:TRUE
[signed]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1, DNS:localhost
"""


class Certificates:
    """A certificate authority, and certificates that it signed, as PEM files created by openssl."""

    def __init__(self, folder):
        self.openssl = fetched(fetch.openssl)
        self.folder = folder
        Path(self.file("openssl.cnf")).write_text(EXTENSIONS)
        self.authority, _ = self.make("authority", "authority")

    def file(self, name):
        return str(self.folder / name)

    def make(self, name, extensions, *arguments):
        """Creates a certificate with key; returns their files."""
        certificate, key = self.file(f"{name}.pem"), self.file(f"{name}.key")
        command = [
            self.openssl, "req", "-x509", "-config", self.file("openssl.cnf"), "-extensions", extensions, "-days", "2",
            "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", key, "-out", certificate, *arguments,
        ]  # fmt: skip
        made = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        return certificate, key

    def sign(self, name):
        return self.make(name, "signed", "-CA", self.authority, "-CAkey", self.file("authority.key"))
