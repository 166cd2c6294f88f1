"""Tokens of SoftHSM with keys, as an administrator makes them."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tests.acceptance.clients import needs_client, run_client

PIN = "13579"
_MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so")


@attrs.frozen
class SoftToken:
    """A token in a directory.

    Attributes:
        variables: with which processes find it.
    """

    directory: Path
    variables: dict[str, str]

    def uri(self, **names: str) -> str:
        """Return the URI of a key."""
        path = ";".join(f"{name}={value}" for name, value in names.items())
        module = next(path for path in _MODULES if Path(path).exists())
        return f"pkcs11:token=images;{path}?module-path={module}&pin-source={self.directory / 'pin'}"

    def run(self, *arguments: str | Path) -> None:
        """Run SoftHSM's command."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.variables.items():
                patch.setenv(name, value)
            run_client("softhsm2-util", *arguments, "--pin", PIN)

    def import_key(self, label: str, key_id: str, pem: bytes) -> None:
        """Import a key, PKCS#8 in PEM."""
        file = self.directory / f"{label}.pem"
        file.write_bytes(pem)
        self.run("--import", file, "--token", "images", "--label", label, "--id", key_id)


def make_token(directory: Path) -> SoftToken:
    """Make a token named images."""
    needs_client("softhsm2-util")
    (directory / "tokens").mkdir()
    config = directory / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {directory / 'tokens'}\nlog.level = ERROR\n")
    (directory / "pin").write_text(f"{PIN}\n")
    token = SoftToken(directory, {"SOFTHSM2_CONF": str(config)})
    token.run("--init-token", "--free", "--label", "images", "--so-pin", PIN)
    return token
