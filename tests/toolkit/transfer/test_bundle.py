"""Image bundles made by GNU tar and openssl: unpacked to the same image, or refused without a trace."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.transfer.bundle_manifest import parse_bundle_manifest
from image_service.core.errors import FormatError
from tests.nginx import running_nginx
from tests.toolkit.measured_calls import measured_calls
from tests.toolkit.transfer.bundles import BundleMaker, RsaKey, encrypt, gzip, sha1_of, tar_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.toolkit.transfer.conftest import Toolkit, ToolkitResult

pytestmark = pytest.mark.acceptance

SIZE = 8 << 20
MARK = b"decrypted bytes of the test "


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> RsaKey:
    return RsaKey.make(tmp_path_factory.mktemp("user"), "user")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> RsaKey:
    return RsaKey.make(tmp_path_factory.mktemp("service"), "service")


@pytest.fixture(scope="module")
def maker(user: RsaKey, service: RsaKey) -> BundleMaker:
    return BundleMaker(user, service)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a raw image with 24 runs of data, more than the header of a GNU tar has room for, and holes."""
    path = tmp_path_factory.mktemp("image") / "disk image"
    with path.open("wb") as file:
        for number in range(24):
            file.seek(number * SIZE // 25 // 4096 * 4096)
            file.write(MARK + os.urandom(20_000))
        file.truncate(SIZE)
    return path


@pytest.fixture(scope="module")
def tar(image: Path) -> bytes:
    return tar_of(image, "--format=gnu")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "scratch").mkdir()
    return tmp_path / "out" / "disk"


def replaced(before: str, after: str, text: str) -> str:
    assert before in text
    return text.replace(before, after, 1)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_refused(done: ToolkitResult, out: Path, status: int, told: str) -> None:
    """Check status and reason, and that no byte is left."""
    assert (done.status, told in done.reason) == (status, True), done.reason
    assert list(out.parent.iterdir()) == list((out.parents[1] / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--format=gnu"],
        ["--format=posix"],
        ["--format=posix", "--sparse-version=0.0"],
        ["--format=posix", "--sparse-version=0.1"],
        ["--format=gnu", "--hole-detection=raw"],
    ],
    ids=" ".join,
)
def test_bundle_becomes_the_image(  # noqa: PLR0913, PLR0917 - fixtures
    options: list[str], image: Path, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = maker.make(tmp_path / "bundle", tar_of(image, *options), SIZE)
    done = toolkit("fetch", manifest, out, "--key", maker.user.key)
    assert done.status == 0, done.printed
    assert done.report["input"]["format"] == "image-bundle"
    assert done.report["output"]["sha256"] == digest_of(out) == digest_of(image)
    assert out.stat().st_blocks * 512 < SIZE


def test_service_decrypts_by_its_key_and_verifies_by_the_users_certificate(  # noqa: PLR0913, PLR0917 - fixtures
    image: Path, tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = maker.make(tmp_path / "bundle", tar, SIZE)
    key = ["--key", maker.service.key]
    done = toolkit("fetch", manifest, out, *key, "--certificate", maker.user.certificate)
    assert done.status == 0, done.printed
    assert digest_of(out) == digest_of(image)
    out.unlink()
    check_refused(toolkit("fetch", manifest, out, *key), out, 6, "signature of the bundle's manifest")


def test_bundle_is_fetched_by_http(  # noqa: PLR0913, PLR0917 - fixtures
    image: Path, tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    with running_nginx(tmp_path) as server:
        maker.make(server.files, tar, SIZE)
        url = server.url("/image.manifest.xml?secret")
        done = toolkit("fetch", url, out, "--key", maker.user.key, "--allow-host", server.url(""))
        assert done.status == 0, done.printed
        assert "secret" not in done.printed
        assert digest_of(out) == digest_of(image)
        out.unlink()
        (server.files / "image.part.01").write_bytes(b"other")
        done = toolkit("fetch", url, out, "--key", maker.user.key, "--allow-host", server.url(""))
        check_refused(done, out, 4, "image.part.01 has another SHA1")
        check_refused(toolkit("fetch", url, out, "--key", maker.user.key), out, 6, "which is not public")


def test_bundle_without_key_is_refused_with_the_reason(
    tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = maker.make(tmp_path / "bundle", tar, SIZE)
    check_refused(toolkit("fetch", manifest, out), out, 6, "--key names the RSA key")
    done = toolkit("fetch", manifest, out, "--key", maker.user.certificate)
    check_refused(done, out, 6, "not an RSA private key")
    done = toolkit("fetch", manifest, out, "--key", maker.user.key, "--certificate", maker.user.key)
    check_refused(done, out, 6, "no certificate")
    done = toolkit("fetch", manifest, out, "--key", maker.user.key, "--max-bytes", "1M")
    check_refused(done, out, 7, "--max-bytes")


def test_wrong_key_and_wrong_padding_have_the_same_text(
    tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    """The manifest is signed by the user each time; key and padding are wrong in each way."""
    other = RsaKey.make(tmp_path, "other")
    certificate = ["--certificate", maker.user.certificate]
    reasons = set()

    def change(pattern: str) -> Callable[[str], str]:
        def replace(signed: str) -> str:
            for owner in ("ec2", "user"):
                before, element, after = signed.partition(f'<{owner}_encrypted_key algorithm="AES-128-CBC">')
                signed = before + element + pattern + after[len(pattern) :]
            return signed

        return replace

    for name, made, key in (
        ("key", maker, other.key),
        ("text", attrs.evolve(maker, key_text=b"no hexadecimal text of 32 digits"), maker.user.key),
        ("short", attrs.evolve(maker, key_text=b"00"), maker.user.key),
        ("padding", attrs.evolve(maker, change_signed=change("00" * 256)), maker.user.key),
        ("length", attrs.evolve(maker, change_signed=change("ff" * 256)), maker.user.key),
    ):
        manifest = made.make(tmp_path / name, tar, SIZE)
        done = toolkit("fetch", manifest, out, "--key", key, *certificate)
        check_refused(done, out, 6, "cannot be decrypted with this key")
        reasons.add(done.reason)
    assert len(reasons) == 1


def test_changed_manifest_is_refused_by_its_signature(
    tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    for before, after in (("x86_64", "i386"), (f"<size>{SIZE}", f"<size>{SIZE - 512}"), (".00<", ".01<")):
        changed = attrs.evolve(maker, change_manifest=partial(replaced, before, after))
        manifest = changed.make(tmp_path / "bundle", tar, SIZE)
        check_refused(toolkit("fetch", manifest, out, "--key", maker.user.key), out, 6, "signature")


@pytest.mark.parametrize(
    "added",
    [
        "<!-- <image>x</image> -->",
        "<image><size>1</size></image>",
        "<![CDATA[<image></image>]]>",
        "<bundler2><image></image></bundler2>",
    ],
)
def test_what_is_used_is_what_is_signed(  # noqa: PLR0913, PLR0917 - fixtures
    added: str, tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    """A second image element before the signed one is what would be used, so its signature is what fails."""
    changed = attrs.evolve(maker, change_manifest=lambda text: text.replace("<bundler>", f"{added}<bundler>"))
    manifest = changed.make(tmp_path / "bundle", tar, SIZE)
    assert toolkit("fetch", manifest, out, "--key", maker.user.key).status == 6
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../image.part.00", "/etc/passwd", "a/b", ".hidden", "..", "", "a\u0000b", "-x", "a\nb"]
)
def test_part_that_is_no_plain_name_is_refused(  # noqa: PLR0913, PLR0917 - fixtures
    name: str, tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    changed = attrs.evolve(maker, change_signed=lambda text: text.replace("image.part.00", name))
    manifest = changed.make(tmp_path / "bundle", tar, SIZE)
    check_refused(toolkit("fetch", manifest, out, "--key", maker.user.key), out, 6, "")


def test_part_that_is_a_symlink_or_damaged_is_refused(
    tar: bytes, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = maker.make(tmp_path / "bundle", tar, SIZE)
    part = manifest.with_name("image.part.02")
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    check_refused(
        toolkit("fetch", manifest, out, "--key", maker.user.key), out, 4, "image.part.02 has another"
    )
    part.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(content)
    part.symlink_to(tmp_path / "elsewhere")
    check_refused(toolkit("fetch", manifest, out, "--key", maker.user.key), out, 1, "image.part.02")
    part.unlink()
    os.mkfifo(part)
    check_refused(toolkit("fetch", manifest, out, "--key", maker.user.key), out, 4, "is not a file")


def one_file(size: int, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo("/etc/../disk")
    info.size = size
    for name, value in fields.items():
        setattr(info, name, value)
    return info


def python_tar(*members: tuple[tarfile.TarInfo, bytes], **options: object) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", **options) as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def sparse_tar(archived: int, size: str, runs: str) -> bytes:
    """Return a tar of a sparse file (pax, 0.1) with a map of our own."""
    fields = {"GNU.sparse.size": size, "GNU.sparse.map": runs, "GNU.sparse.numblocks": "2"}
    info = one_file(archived, pax_headers=fields)
    return python_tar(
        (info, MARK * (archived // len(MARK)) + bytes(archived % len(MARK))), format=tarfile.PAX_FORMAT
    )


SMALL = 64 << 10
CONTENT = (MARK * SMALL)[:SMALL]


def test_member_whose_name_is_a_path_is_unpacked_to_the_output(
    maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = maker.make(tmp_path / "bundle", python_tar((one_file(SMALL), CONTENT)), SMALL)
    assert toolkit("fetch", manifest, out, "--key", maker.user.key).status == 0
    assert out.read_bytes() == CONTENT
    manifest = maker.make(tmp_path / "sparse", sparse_tar(8192, str(SMALL), "0,4096,8192,4096"), SMALL)
    done = toolkit("fetch", manifest, out, "--key", maker.user.key)
    assert done.status == 0, done.printed
    packed = (MARK * 8192)[: 8192 // len(MARK) * len(MARK)] + bytes(8192 % len(MARK))
    expected = packed[:4096] + bytes(4096) + packed[4096:] + bytes(SMALL - 3 * 4096)
    assert out.read_bytes() == expected


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (b"no tar" * 1000, "tar is damaged"),
        (b"", "tar is damaged"),
        (bytes(10240), "does not begin with a file"),
        (python_tar((one_file(SMALL - 1), CONTENT)), f"begin with a file of {SMALL} bytes"),
        (python_tar((one_file(SMALL + 1), CONTENT + b"1")), f"begin with a file of {SMALL} bytes"),
        (python_tar((one_file(SMALL), CONTENT), (one_file(SMALL), CONTENT)), "more than one file"),
        (python_tar((one_file(0, type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")), "begin with a file"),
        (python_tar((one_file(0, type=tarfile.LNKTYPE, linkname="/etc/passwd"), b"")), "begin with a file"),
        (python_tar((one_file(0, type=tarfile.DIRTYPE), b"")), "begin with a file"),
        (python_tar((one_file(0, type=tarfile.BLKTYPE), b"")), "begin with a file"),
        (python_tar((one_file(SMALL), CONTENT))[:20_000], "damaged"),
        (python_tar((one_file(SMALL), CONTENT)) + bytes(5 << 20), "larger than its manifest says"),
        (
            python_tar(
                (one_file(SMALL, pax_headers={"a": "b" * (5 << 20)}), CONTENT), format=tarfile.PAX_FORMAT
            ),
            "header is too large",
        ),
        (sparse_tar(8192, str(SMALL), "0,4096,2048,4096"), "not in order"),
        (sparse_tar(8192, str(SMALL), "8192,4096,0,4096"), "not in order"),
        (sparse_tar(8192, str(SMALL), f"0,4096,{SMALL},4096"), "not in order"),
        (sparse_tar(8192, str(SMALL), "-4096,4096,0,4096"), "not in order"),
        (sparse_tar(8192, str(SMALL), "0,-4096,4096,4096"), "not in order"),
        (sparse_tar(8192, str(SMALL), "0,x"), "damaged"),
        (sparse_tar(8192, str(1 << 62), "0,4096,4096,4096"), "does not begin"),
        (sparse_tar(4096, str(SMALL), "0,4096,8192,40960"), "bundle's tar"),
    ],
)
def test_hostile_tar_is_refused_without_a_trace(  # noqa: PLR0913, PLR0917 - fixtures
    made: bytes, told: str, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = maker.make(tmp_path / "bundle", made, SMALL)
    done = toolkit("fetch", manifest, out, "--key", maker.user.key, "--scratch", tmp_path / "scratch")
    check_refused(done, out, 6, told)
    assert MARK.decode() not in done.printed


GOOD = python_tar((one_file(SMALL), CONTENT))


@pytest.mark.parametrize(
    "changes",
    [
        {"encrypt": lambda data: encrypt(data, "-nopad") if len(data) % 16 == 0 else encrypt(data)[:-16]},
        {"encrypt": lambda data: encrypt(data)[:-1]},
        {"encrypt": lambda data: bytes(16) + encrypt(data)[16:]},
        {"encrypt": lambda data: encrypt(data)[:-32] + bytes(32)},
        {"compress": lambda data: gzip(data)[:-4]},
        {"compress": lambda data: gzip(data)[:-8] + bytes(8)},
        {"compress": lambda data: gzip(data) + gzip(data)},
        {"compress": lambda data: gzip(data) + b"x"},
        {"compress": zlib.compress},
        {"compress": bytes},
        {"compress": lambda _: b""},
    ],
    ids=range(11),
)
def test_damaged_stream_is_refused_with_one_text(
    changes: dict[str, Any], maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = attrs.evolve(maker, **changes).make(tmp_path / "bundle", GOOD, SMALL)
    done = toolkit("fetch", manifest, out, "--key", maker.user.key)
    check_refused(done, out, 6, "content is damaged, or was encrypted with another key")


def test_other_digest_and_size_of_the_tar_are_refused(
    maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    digest = sha1_of(GOOD)
    for before, after, told in (
        (digest, "0" * 40, "tar has another SHA1"),
        ("<bundled_size>", "<bundled_size>1", "bundled_size is"),
    ):
        changed = attrs.evolve(maker, change_signed=partial(replaced, before, after))
        manifest = changed.make(tmp_path / "bundle", GOOD, SMALL)
        check_refused(toolkit("fetch", manifest, out, "--key", maker.user.key), out, 6, told)


def test_decompression_bomb_ends_at_the_size_of_the_image_in_little_memory(
    maker: BundleMaker, tmp_path: Path, out: Path
) -> None:
    """160 MiB of zeros in 160 KiB, in a tar that says 64 KiB."""
    bomb = GOOD[: 512 + SMALL] + bytes(160 << 20)
    manifest = maker.make(tmp_path / "bundle", bomb, SMALL)
    with measured_calls() as call:
        done = call(["fetch", manifest, out, "--key", maker.user.key])
    assert done.status == 6, done.messages
    assert "larger than its manifest says" in done.messages
    assert done.peak_bytes < 128 << 20
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("runs", range(4))
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_image_of_few_runs_becomes_the_image(  # noqa: PLR0913, PLR0917 - fixtures
    runs: int, form: str, maker: BundleMaker, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    """A header of GNU tar has room for four runs, and zeros where there are fewer."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        for number in range(runs):
            file.seek((2 * number + 1) << 20)
            file.write(MARK * 1000)
        file.truncate(SIZE)
    manifest = maker.make(tmp_path / "bundle", tar_of(image, f"--format={form}"), SIZE)
    done = toolkit("fetch", manifest, out, "--key", maker.user.key)
    assert done.status == 0, done.printed
    assert digest_of(out) == digest_of(image)


@given(data=st.data())
def test_mutated_manifest_is_a_format_error_or_values_of_what_is_signed(
    data: st.DataObject, maker: BundleMaker, tmp_path: Path
) -> None:
    path = tmp_path / "bundle" / "image.manifest.xml"
    if not path.exists():
        maker.make(tmp_path / "bundle", GOOD, SMALL)
    text = path.read_bytes()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    try:
        bundle = parse_bundle_manifest(text[:start] + data.draw(st.binary(max_size=20)) + text[end:])
    except FormatError:
        return
    assert f"<size>{bundle.size}</size>".encode() in bundle.signed
    assert all(part.file_name.encode() in bundle.signed for part in bundle.parts)
