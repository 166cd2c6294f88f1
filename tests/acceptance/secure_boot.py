"""Keys of our own for Secure Boot: programs that they sign, and firmware that starts no others."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from tests.acceptance.clients import needs_client, run_client

_OWNER = "3b053091-6c9f-04cc-b1ac-e2a51e3be5f5"  # of the certificate, in the firmware's list
_NO_OTHERS = ("--microsoft-db", "none", "--secure-boot")


@attrs.frozen
class SigningKey:
    """A private key and its certificate, files in PEM."""

    key: Path
    certificate: Path

    def sign(self, program: bytes) -> bytes:
        """Return a program for UEFI with a signature."""
        with TemporaryDirectory() as directory:
            image = Path(directory) / "program.efi"
            image.write_bytes(program)
            run_client("sbsign", "--key", self.key, "--cert", self.certificate, "--output", image, image)
            return image.read_bytes()

    def enroll(self, directory: Path) -> Path:
        """Return the variables of a firmware that starts only what the key has signed."""
        empty, variables = (
            Path(needs_client("/usr/share/OVMF")) / "OVMF_VARS_4M.fd",
            directory / "enrolled.fd",
        )
        enrolled = ("--enroll-cert", self.certificate, "--add-db", _OWNER, self.certificate)
        run_client("virt-fw-vars", "--input", empty, "--output", variables, *enrolled, *_NO_OTHERS)
        return variables


def make_signing_key(directory: Path, name: str = "signer") -> SigningKey:
    """Return a new key; its files are in the directory."""
    made = SigningKey(directory / f"{name}.key", directory / f"{name}.pem")
    request = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}")
    run_client("openssl", *request, "-keyout", made.key, "-out", made.certificate)
    return made
