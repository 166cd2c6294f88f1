from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.files.local_file import LocalFile
from image_service.common.programs import sandbox
from image_service.core.errors import BaseImageError, ConfigurationError, Unavailable
from image_service.server.catalog.lifecycle.signature import KeyRing
from tests.acceptance.clients import needs_client
from tests.common.files.partly_absent import PartlyAbsent
from tests.server.catalog.spies import SEEN, WARNING, spying

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.base_file import BaseFile
    from tests.server.catalog.lines import Lines

CONTENT = b"an image " * 100_000
PUBLIC_KEY = b"\x99\x01\x0d"  # the header of one, for a gpgv that does not read it


@attrs.frozen
class Signer:
    """Somebody with a key.

    Args:
        home: of gpg.
        name: of the key.
    """

    home: Path
    name: str

    def gpg(self, *arguments: str, content: bytes = b"") -> bytes:
        """Run gpg."""
        command = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "", *arguments]
        environment = {**os.environ, "GNUPGHOME": str(self.home)}
        return subprocess.run(command, input=content, env=environment, check=True, stdout=-1).stdout

    def public(self, *options: str) -> bytes:
        """The public key."""
        return self.gpg(*options, "--export", self.name)

    def sign(self, *options: str, content: bytes = CONTENT) -> bytes:
        """A detached signature."""
        return self.gpg(*options, "-u", self.name, "--detach-sign", content=content)


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Signer, Signer]]:
    """Two signers."""
    needs_client("gpg")
    home: Path = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    made = Signer(home, "one@example.com"), Signer(home, "two@example.com")
    for signer in made:
        signer.gpg("--quick-gen-key", signer.name, "ed25519", "sign", "never")
    yield made
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BaseFile]:
    """What was signed; it is open, and may have no name any more."""
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    with path.open("rb") as opened:
        path.unlink()
        yield LocalFile(opened.fileno(), len(CONTENT), str(path))


def ring(tmp_path: Path, *keys: bytes) -> KeyRing:
    (tmp_path / "ring").write_bytes(b"".join(keys))
    return KeyRing.read(tmp_path / "ring")


@pytest.mark.parametrize("armor", [(), ("--armor",)], ids=["binary", "armour"])
def test_good_signature_is_accepted(
    signers: tuple[Signer, Signer], file: BaseFile, tmp_path: Path, armor: tuple[str, ...]
) -> None:
    one, two = signers
    keys = ring(tmp_path, one.public(*armor), two.public(*armor))
    for signer in signers:
        keys.verify(file, signer.sign(*armor), Interruption())


def test_partly_absent_file_is_verified_whole(signers: tuple[Signer, Signer], tmp_path: Path) -> None:
    signer, _ = signers
    absent = PartlyAbsent(tmp_path / "remote.iso", CONTENT).file
    ring(tmp_path, signer.public()).verify(absent, signer.sign(), Interruption())
    absent.close()


def test_signature_by_another_key_is_refused(
    signers: tuple[Signer, Signer], file: BaseFile, tmp_path: Path
) -> None:
    one, two = signers
    reason = r"signature is not valid: gpgv exited with status 2, ERRSIG .*NO_PUBKEY"
    with pytest.raises(BaseImageError, match=reason):
        ring(tmp_path, one.public()).verify(file, two.sign(), Interruption())


def test_one_good_signature_of_several_is_enough(
    signers: tuple[Signer, Signer], file: BaseFile, tmp_path: Path
) -> None:
    one, two = signers
    ring(tmp_path, one.public()).verify(file, two.sign() + one.sign(), Interruption())


@pytest.mark.parametrize(
    ("signature", "says"),
    [(None, "BADSIG"), (b"", "NODATA"), (b"<html>not found</html>", "NODATA"), (b"\xc2\xff", "exited with")],
    ids=["of other content", "empty", "a page", "garbage"],
)
def test_bad_signature_is_refused(
    signers: tuple[Signer, Signer], file: BaseFile, tmp_path: Path, signature: bytes | None, says: str
) -> None:
    one, _ = signers
    signature = one.sign(content=CONTENT + b"!") if signature is None else signature
    with pytest.raises(BaseImageError, match=says):
        ring(tmp_path, one.public()).verify(file, signature, Interruption())


def test_signed_message_is_no_detached_signature(
    signers: tuple[Signer, Signer], file: BaseFile, tmp_path: Path
) -> None:
    """One that brings its own content says nothing about ours."""
    one, _ = signers
    with pytest.raises(BaseImageError):
        ring(tmp_path, one.public()).verify(file, one.gpg("--sign", content=b"other"), Interruption())


def test_proof_depends_on_keys_signature_and_file(signers: tuple[Signer, Signer], tmp_path: Path) -> None:
    one, two = signers
    keys, other = ring(tmp_path, one.public()), ring(tmp_path, two.public())
    proofs = {
        keys.proof("a" * 64, b"signature"),
        keys.proof("b" * 64, b"signature"),
        keys.proof("a" * 64, b"another"),
        other.proof("a" * 64, b"signature"),
    }
    assert len(proofs) == 4
    assert keys.proof("a" * 64, b"signature") in proofs


def test_missing_gpgv_is_reported(file: BaseFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="gpgv is not installed"):
        ring(tmp_path, PUBLIC_KEY).verify(file, b"x", Interruption())


def test_verification_is_interrupted(file: BaseFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(Interruption):
        """Comes when gpgv runs."""

        def raise_if_interrupted(self) -> None:
            if (tmp_path / "started").exists():
                self.interrupt()
            super().raise_if_interrupted()

    program = tmp_path / "bin" / "gpgv"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/started\nexec sleep 999\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(sandbox, "find_isolation", lambda: "none")  # it writes a file of the test
    with pytest.raises(Interrupted):
        ring(tmp_path, PUBLIC_KEY).verify(file, b"x", Later())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)


def test_absent_key_ring_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="SIGNING_KEYS cannot be read"):
        KeyRing.read(tmp_path / "ring")


def test_file_that_is_no_key_ring_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ring").write_bytes(b"no key")
    with pytest.raises(ConfigurationError, match=r"SIGNING_KEYS .*ring is not a key ring: it does not begin"):
        KeyRing.read(tmp_path / "ring")


def test_file_in_memory_is_verified(signers: tuple[Signer, Signer]) -> None:
    signer, other = signers
    ring = KeyRing(signer.public())
    ring.verify_bytes(CONTENT, signer.sign(), Interruption())
    for content, signature in ((CONTENT + b"!", signer.sign()), (CONTENT, other.sign())):
        with pytest.raises(BaseImageError, match="not valid"):
            ring.verify_bytes(content, signature, Interruption())


# Isolation.


def test_what_gpgv_reaches(
    isolation: str, file: BaseFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bwrap neither a file of the host nor the network, without bwrap at least no network."""
    keys = ring(tmp_path, PUBLIC_KEY)
    with (
        spying("gpgv", tmp_path, monkeypatch),
        pytest.raises(Unavailable, match=f"gpgv could not be run: status {8 + SEEN[isolation]}: "),
    ):
        keys.verify(file, b"x", Interruption())


def test_signatures_are_verified_in_each_isolation(
    isolation: str, signers: tuple[Signer, Signer], file: BaseFile, tmp_path: Path, lines: Lines
) -> None:
    one, two = signers
    keys = ring(tmp_path, one.public())
    keys.verify(file, one.sign(), Interruption())
    with pytest.raises(BaseImageError, match="gpgv exited with status 2, ERRSIG"):
        keys.verify(file, two.sign(), Interruption())
    warnings = [line for line in lines.text.splitlines() if WARNING in line]
    assert warnings == ([f"gpgv: {WARNING}"] if isolation == "none" else [])
