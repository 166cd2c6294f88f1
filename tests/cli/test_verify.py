"""``image-service verify``: with statements, and without."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.cli.verification.verdict import Evidence
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.canvas import full_canvas, spliced_minimal_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import BootArtifact
from image_service.core.provenance.dsse import load_signing_key, sign_bundle
from image_service.core.provenance.statement import StatedBase, Statement, state_image
from image_service.core.provenance.statement_json import render_statement
from tests.acceptance.clients import needs_client, run_client
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.formats.reading import fixture
from tests.core.images.building import CONFIG, base_file, base_image, bytes_of
from tests.server.catalog.test_signature import Signer, signers
from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage
    from tests.cli.conftest import Run

__all__ = ["signers"]  # a fixture

ISO = live_iso_with_minimal()
BLOCK = 64 << 10
KEY, OTHER_KEY = (
    ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for _ in range(2)
)
KEYS = [load_signing_key(KEY), load_signing_key(OTHER_KEY)]
TIME = datetime(2026, 3, 4, tzinfo=UTC)
ARGUMENTS = (KernelArgument(Operation.APPEND, "ip=dhcp"),)
LONG = (KernelArgument(Operation.APPEND, "a" * 1200),)


def state(image: BootImage, base: BaseImage, config: bytes, signature: bytes | None = None) -> Statement:
    blocks = tuple(sha256(ISO[at : at + BLOCK]).hexdigest() for at in range(0, len(ISO), BLOCK))
    return state_image(
        image,
        base,
        StatedBase(base.sha256, len(ISO), base.version, "x86_64", None, BLOCK, blocks, signature=signature),
        digest=sha256(bytes_of(image)).hexdigest(),
        config=config,
        time=TIME,
        layout=3,
    )


@cache
def made(arguments: tuple[KernelArgument, ...] = ARGUMENTS) -> tuple[bytes, Statement]:
    """Return a full ISO with its statement."""
    with base_image(ISO) as base:
        image = compose(full_canvas(base), Customization(CONFIG, arguments, TIME), "x.iso")
        return bytes_of(image), state(image, base, CONFIG)


@attrs.frozen
class Files:
    """An image, its statement and the key as files."""

    directory: Path

    def write(self, name: str, content: bytes) -> Path:
        """Write a file, and return its path."""
        path = self.directory / name
        path.write_bytes(content)
        return path

    def signed(self, content: bytes, statement: Statement) -> tuple[Path, Path]:
        """Write an image and its signed statement; return the image and the key."""
        self.write("image.iso.intoto.json", sign_bundle(KEYS[0], render_statement(statement)))
        return self.write("image.iso", content), self.write(
            "keys.pem", KEYS[1].public.pem + KEYS[0].public.pem
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def flip(content: bytes, at: int, bit: int = 0) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def test_signed_image_is_verified_and_told(run: Run, files: Files) -> None:
    image, key = files.signed(*made())
    result = run("verify", image, "--key", key)
    assert result.status == 0, result
    first, *rest = result.output.decode().splitlines()
    assert first.endswith(
        f"with the SHA-256 {sha256(ISO).hexdigest()}, plus: Ignition ({len(CONFIG)} bytes), kernel arguments"
        " (+ip=dhcp)"
    )
    assert rest == ["proof: its statement is signed by one of the keys"]


def test_image_whose_customization_is_behind_its_base_is_verified(run: Run, files: Files) -> None:
    image, key = files.signed(*made(LONG))
    result = run("verify", image, "--key", key)
    assert result.status == 0, result
    assert b"boot records (" in result.output


@pytest.mark.parametrize("has_key", [True, False])
def test_statement_counts_with_a_key_only(run: Run, files: Files, has_key: bool) -> None:  # noqa: FBT001
    content, statement = made()
    image, _ = files.signed(content, statement)
    other = files.write("other.pem", KEYS[1].public.pem)
    result = run("verify", image, *(["--key", other] if has_key else []))
    assert result.status == 1
    if has_key:
        assert "none of the keys has signed this statement" in result.errors
    else:
        assert b"its statement counts with --key only" in result.output
        assert b"give --key, --base, --base-sha256 or --vendor-keyring" in result.output


def test_forged_unsigned_statement_cannot_excuse_a_change(run: Run, files: Files) -> None:
    """Its overlays could name any byte of the base as customized."""
    content, statement = made()
    changed = flip(content, len(content) - 1)
    files.write("image.iso.intoto.json", sign_bundle(KEYS[1], render_statement(statement)))
    image, base = files.write("image.iso", changed), files.write("base.iso", ISO)
    result = run("verify", image, "--base", base)
    assert result.status == 1
    assert f"1 bytes at offset {len(content) - 1} (base image)".encode() in result.output


CASES = [(*made(), False), (*made(LONG), False), (*made(), True)]


def check_flip(case: tuple[bytes, Statement, bool], at: int, bit: int) -> None:
    content, statement, has_base = case
    with base_file(flip(content, at, bit)) as file, base_file(ISO) as base:
        evidence = Evidence(
            path="x.iso",
            file=file,
            statement=statement,
            has_statement=True,
            vendor=None,
            base=base if has_base else None,
            base_sha256=None,
        )
        verdict = evidence.judge(lambda _: None)
    assert not verdict.is_verified
    assert verdict.faults
    for fault in verdict.faults:
        assert fault.offset <= at < fault.offset + fault.length
    parts = [*statement.overlays, *statement.tail]
    own = [part for part in parts if part.offset <= at < part.offset + part.length]
    if own:
        assert {fault.path for fault in verdict.faults} == {own[0].purpose.value}
    else:
        assert min(fault.length for fault in verdict.faults) <= (1 if has_base else BLOCK)


@pytest.mark.parametrize("count", [60, soaked(1000)])
def test_flipped_bit_is_found_and_located(count: int) -> None:
    @settings(max_examples=count)
    @given(st.sampled_from(CASES), st.data())
    def check(case: tuple[bytes, Statement, bool], data: st.DataObject) -> None:
        content, statement, _ = case
        # Most bytes are the base's: the others get their share.
        spans = [(0, len(content)), *((part.offset, part.length) for part in statement.overlays)]
        spans += [(part.offset, part.length) for part in statement.tail]
        offset, length = data.draw(st.sampled_from(spans))
        check_flip(case, offset + data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, 7)))

    check()


def test_cut_and_grown_images_are_found(run: Run, files: Files) -> None:
    content, statement = made()
    for changed, told in (
        (content[:-5], f"5 bytes at offset {len(content) - 5} (absent)"),
        (content + b"more", f"4 bytes at offset {len(content)} (behind the end)"),
    ):
        image, key = files.signed(changed, statement)
        result = run("verify", image, "--key", key)
        assert result.status == 1
        assert told in result.output.decode()


def test_json(run: Run, files: Files) -> None:
    content, statement = made()
    image, key = files.signed(flip(content, 5), statement)
    result = run("verify", image, "--key", key, "--json")
    assert result.status == 1
    document = json.loads(result.output)
    assert document["verified"] is False
    assert document["faults"] == [{"offset": 0, "length": BLOCK, "where": "base image"}]
    assert document["sha256"] == sha256(flip(content, 5)).hexdigest()
    assert CONFIG.decode() not in json.dumps(document)


def test_excerpt_is_checked_against_its_statement_and_its_base(run: Run, files: Files) -> None:
    with base_image(ISO) as base:
        image = compose(
            spliced_minimal_canvas(base, "http://h/rootfs"), Customization(CONFIG, (), TIME), "m.iso"
        )
        content, statement = bytes_of(image), state(image, base, CONFIG)
        kernel = compose_artifact(base, BootArtifact.KERNEL)
        kernel_content, kernel_statement = bytes_of(kernel), state(kernel, base, b"")
    path, key = files.signed(content, statement)
    original, other = files.write("base.iso", ISO), files.write("other.iso", flip(ISO, len(ISO) - 2100))
    alone = run("verify", path, "--key", key)
    assert alone.status == 0
    assert b"note: it does not contain its whole base image, and was checked against its own" in alone.output
    with_base = run("verify", path, "--key", key, "--base", original)
    assert (with_base.status, b"note" in with_base.output) == (0, False)
    path, key = files.signed(kernel_content, kernel_statement)
    assert run("verify", path, "--key", key, "--base", original).status == 0
    path, key = files.signed(flip(kernel_content, 3), kernel_statement)
    assert run("verify", path, "--key", key, "--base", original).status == 1
    path, key = files.signed(kernel_content, kernel_statement)
    refused = run("verify", path, "--key", key, "--base", other)
    assert (refused.status, b"other.iso is not its base image" in refused.output) == (1, True)


def test_digest_and_base_are_proofs(run: Run, files: Files) -> None:
    content, _ = made()
    image, base = files.write("alone.iso", content), files.write("base.iso", ISO)
    assert run("verify", image, "--base-sha256", sha256(ISO).hexdigest().upper()).status == 0
    wrong = run("verify", image, "--base-sha256", "0" * 64)
    assert (wrong.status, b"it must be 0000" in wrong.output) == (1, True)
    assert run("verify", image, "--base", base).status == 0
    assert run("verify", base, "--base", base).output.decode().splitlines()[0].endswith("plus: nothing")
    short = files.write("short.iso", ISO[:-3000])
    told = run("verify", image, "--base", short).output
    assert f"3000 bytes at offset {len(ISO) - 3000} (base image)".encode() in told


def test_vendor_signature(run: Run, files: Files, signers: tuple[Signer, Signer]) -> None:
    vendor, stranger = signers
    signature = vendor.sign(content=ISO)
    content, statement = made()
    stated = attrs.evolve(statement, base=attrs.evolve(statement.base, signature=signature))
    image, key = files.signed(content, stated)
    ring = files.write("vendor.gpg", vendor.public())
    result = run("verify", image, "--key", key, "--vendor-keyring", ring)
    assert result.status == 0, result
    assert " as published, plus: Ignition (" in result.output.decode()
    assert b"valid OpenPGP signature of its vendor" in result.output
    alone = run(
        "verify",
        image,
        "--no-statement",
        "--vendor-keyring",
        ring,
        "--vendor-signature",
        files.write("s", signature),
    )
    assert (alone.status, b" as published" in alone.output) == (0, True)
    unsigned = run("verify", image, "--vendor-keyring", ring)  # the signature in it needs no trust
    assert (unsigned.status, b" as published" in unsigned.output) == (0, True)
    other = files.write("stranger.gpg", stranger.public())
    refused = run("verify", image, "--key", key, "--vendor-keyring", other)
    assert refused.status == 1
    assert b"its OpenPGP signature is not valid" in refused.output
    image.write_bytes(flip(content, 5))
    assert (
        run(
            "verify",
            image,
            "--no-statement",
            "--vendor-keyring",
            ring,
            "--vendor-signature",
            files.write("s", signature),
        ).status
        == 1
    )


def test_other_files_are_refused_without_a_statement(run: Run, files: Files) -> None:
    result = run("verify", files.write("x", b"no ISO" * 10_000), "--base-sha256", "0" * 64)
    assert result.status == 1
    assert "image-service: " in result.errors


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--base-sha256", "1"], "must be 64 hexadecimal digits"),
        (["--vendor-signature", "x"], "--vendor-signature needs --vendor-keyring"),
        (["--statement", "x", "--no-statement"], "one at a time"),
    ],
)
def test_wrong_arguments(run: Run, files: Files, arguments: list[str], told: str) -> None:
    result = run("verify", files.write("x.iso", ISO), *arguments)
    assert (result.status, told in result.errors) == (2, True)


@pytest.mark.parametrize(
    "name", ["embed-areas-2021-09.iso", "embed-areas-2022-02.iso", "embed-areas-2023-07.x86_64.iso"]
)
def test_iso_that_coreos_installer_customized(run: Run, files: Files, name: str) -> None:
    needs_client("coreos-installer")
    iso = fixture(name)
    base, target = files.write("base.iso", iso), files.directory / "customized.iso"
    config = files.write("config.ign", b'{"ignition": {"version": "3.3.0"}}')
    run_client("coreos-installer", "iso", "ignition", "embed", "-i", config, "-o", target, base)
    run_client("coreos-installer", "iso", "kargs", "modify", "-a", "ip=dhcp", target)
    result = run("verify", target, "--base", base)
    assert result.status == 0, result
    assert "plus: Ignition (34 bytes), kernel arguments (+ip=dhcp)" in result.output.decode()
    content = bytearray(target.read_bytes())
    content[40_000] ^= 4
    target.write_bytes(content)
    result = run("verify", target, "--base", base)
    assert result.status == 1
    assert b"1 bytes at offset 40000 (base image)" in result.output
    assert b"found in it: Ignition (34 bytes)" in result.output


def test_minimal_iso_that_coreos_installer_extracted(run: Run, files: Files) -> None:
    needs_client("coreos-installer")
    base, target = files.write("base.iso", ISO), files.directory / "minimal.iso"
    config = files.write("config.ign", b'{"ignition": {"version": "3.3.0"}}')
    extract = ("iso", "extract", "minimal-iso", "--rootfs-url", "http://h/rootfs.img")
    run_client("coreos-installer", *extract, base, target)
    run_client("coreos-installer", "iso", "ignition", "embed", "-i", config, target)
    result = run("verify", target, "--base", base)
    assert result.status == 0, result
    first = result.output.decode().splitlines()[0]
    assert f"as in the minimal ISO of {base}, plus: Ignition (34 bytes)" in first
    assert "+coreos.live.rootfs_url=http://h/rootfs.img" in first
    content = bytearray(target.read_bytes())
    content[-2000] ^= 4
    target.write_bytes(content)
    result = run("verify", target, "--base", base)
    assert result.status == 1
    assert f"1 bytes at offset {len(content) - 2000} (base image)".encode() in result.output


@pytest.mark.parametrize("minimal", [(), ("--minimal", "--rootfs-url", "http://h/rootfs.img")])
def test_statement_that_customize_writes(run: Run, files: Files, minimal: tuple[str, ...]) -> None:
    base, image = files.write("base.iso", ISO), files.directory / "image.iso"
    config = files.write("config.ign", CONFIG)
    key = files.write("signing.key", KEY)
    public = files.write("keys.pem", load_signing_key(KEY).public.pem)
    signed = ("--statement", f"{image}.intoto.json", "--signing-key", key)
    result = run("customize", base, "--ignition", config, *minimal, "-o", image, *signed)
    assert result.status == 0, result
    result = run("verify", image, "--key", public, "--base", base)
    assert result.status == 0, result
    assert f"plus: Ignition ({len(CONFIG)} bytes)" in result.output.decode()
    assert b"note" not in result.output
    content = image.read_bytes()
    image.write_bytes(flip(content, len(content) // 2))
    assert run("verify", image, "--key", public).status == 1


def test_wrong_signing_keys_leave_no_image(run: Run, files: Files) -> None:
    base, image = files.write("base.iso", ISO), files.directory / "image.iso"
    config, key = files.write("config.ign", CONFIG), files.write("signing.key", b"?")
    arguments = ("customize", base, "--ignition", config, "-o", image, "--statement", f"{image}.intoto.json")
    assert run(*arguments).status == 2
    result = run(*arguments, "--signing-key", key)
    assert (result.status, "the signing key is not" in result.errors) == (1, True)
    key.write_bytes(KEY)
    customized = files.write("base.iso", made()[0])
    result = run("customize", customized, "--reset", *arguments[2:], "--signing-key", key)
    assert (result.status, "needs a published image as its base" in result.errors) == (1, True)
    assert not image.exists()
