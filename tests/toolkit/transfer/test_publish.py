"""Publishing to a real S3 server, and fetching from it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen
from xml.etree import ElementTree as ET

import pytest

from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Options
from image_service.common.transfer.manifest import parse_import_manifest
from image_service.core.errors import TransferFailed
from tests.acceptance.clients import run_client
from tests.acceptance.service import fetch
from tests.s3_server import (
    BUCKET,
    PREFIX,
    SECRET_KEY,
    S3Server,
    S3User,
    running_s3_server,
    running_s3_server_with_user,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.toolkit.transfer.conftest import Toolkit

pytestmark = pytest.mark.acceptance

MIB = 1 << 20
SIZE = 12 * MIB
SIGNATURE = "X-Amz-Signature"


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run a server for the tests of this module."""
    with running_s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Let botocore find the server."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sparse raw disk with a boot sector."""
    path = tmp_path_factory.mktemp("images") / "disk.raw"
    with path.open("wb") as file:
        file.truncate(SIZE)
        for offset in range(0, SIZE, 3 * MIB):
            file.seek(offset)
            file.write(offset.to_bytes(4) * 1000)
    return path


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def keys_below(store: S3Server, prefix: str) -> list[str]:
    directory = store.directory / prefix
    return sorted(str(path.relative_to(store.directory)) for path in directory.rglob("*") if path.is_file())


def allow(store: S3Server) -> list[str]:
    return ["--allow-host", store.environment["AWS_ENDPOINT_URL"]]


@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("raw", ()),
        ("vmdk", ("-O", "vmdk", "-o", "subformat=streamOptimized")),
        ("vhd", ("-O", "vpc", "-o", "subformat=fixed,force_size=on")),
        ("vhd", ("-O", "vpc", "-o", "subformat=dynamic,force_size=on")),
    ],
    ids=["raw", "vmdk", "fixed vhd", "dynamic vhd"],
)
def test_published_image_is_fetched_equal(  # noqa: PLR0913, PLR0917 - fixtures
    format_: str, options: tuple[str, ...], raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    image = raw
    if options:
        image = tmp_path / "image"
        run_client("qemu-img", "convert", "-f", "raw", *options, raw, image)
    manifest, url_file = tmp_path / "manifest.xml", tmp_path / "url"
    done = toolkit(
        "publish", image, f"s3://{BUCKET}/{format_}/a b", "--input-format", format_, "--part-size", "1M",
        "--manifest-file", manifest, "--manifest-url-file", url_file,
    )  # fmt: skip
    assert done.status == 0, done.printed
    assert url_file.stat().st_mode & 0o777 == 0o600
    assert fetch(url_file.read_text().strip()).body == manifest.read_bytes()
    assert done.report["input"]["sha256"] == digest_of(image)
    assert manifest.stat().st_mode & 0o777 == 0o600
    assert done.report["output"]["url"].startswith(store.environment["AWS_ENDPOINT_URL"])
    assert "?" not in done.report["output"]["url"]
    key = done.report["output"]["location"].removeprefix(f"s3://{BUCKET}/")
    assert (store.directory / key).read_bytes() == manifest.read_bytes()

    fetched = tmp_path / "fetched"
    again = toolkit("fetch", manifest, fetched, *allow(store), "--delete")
    assert again.status == 0, again.printed
    assert again.report["notes"] == []
    assert again.report["output"]["sha256"] == digest_of(image) == digest_of(fetched)
    assert keys_below(store, format_) == []
    assert SIGNATURE not in done.printed + again.printed
    assert SECRET_KEY not in done.printed + again.printed + manifest.read_text()


@pytest.mark.parametrize("format_", ["raw", "vmdk"])
def test_manifest_follows_the_rules_of_its_consumer(
    format_: str, raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    """Read by no code of ours: elements in order, ranges without gaps, and every URL does what it is for."""
    image, manifest = tmp_path / "image", tmp_path / "manifest.xml"
    run_client(
        "qemu-img", "convert", "-f", "raw", "-O", format_,
        *(["-o", "subformat=streamOptimized"] if format_ == "vmdk" else []), raw, image,
    )  # fmt: skip
    done = toolkit(
        "publish", image, f"s3://{BUCKET}/rules", "--part-size", "64K", "--manifest-file", manifest
    )
    assert done.status == 0, done.printed
    root = ET.fromstring(manifest.read_bytes())  # noqa: S314 - our own
    assert (root.tag, root.attrib) == ("manifest", {})
    assert [each.tag for each in root] == [
        "version", "file-format", "importer", "self-destruct-url", "import",
    ]  # fmt: skip
    assert root.findtext("version") == "2010-11-15"
    assert root.findtext("file-format") == format_.upper()
    assert [each.tag for each in root.find("importer") or ()] == ["name", "version", "release"]
    assert [each.tag for each in root.find("import") or ()] == ["size", "volume-size", "parts"]
    assert root.findtext("import/size") == str(SIZE)  # of the disk, for VMDK too
    assert root.findtext("import/volume-size") == "1"
    parts = root.findall("import/parts/part")
    counted = root.find("import/parts")
    assert counted is not None
    assert counted.attrib == {"count": str(len(parts))}
    content = image.read_bytes()
    end, urls = 0, []
    for index, part in enumerate(parts):
        assert [each.tag for each in part] == ["byte-range", "key", "head-url", "get-url", "delete-url"]
        ranges = part.find("byte-range")
        assert ranges is not None
        assert part.attrib == {"index": str(index)}
        assert int(ranges.attrib["start"]) == end
        start, end = end, int(ranges.attrib["end"]) + 1
        assert end - start == min(64 << 10, len(content) - start)
        with request("HEAD", part.findtext("head-url")) as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (200, str(end - start))
        with request("GET", part.findtext("get-url")) as answer:
            assert (answer.status, answer.read()) == (200, content[start:end])
        urls.append(part.findtext("delete-url"))
    assert end == len(content)
    for url in [*urls, root.findtext("self-destruct-url")]:
        with request("DELETE", url) as answer:
            assert answer.status == 204
    assert keys_below(store, "rules") == []


def request(method: str, url: str | None) -> Any:
    """Send a request without credentials but those of the URL."""
    assert url
    assert url.startswith("http://")
    return urlopen(Request(url, method=method))  # noqa: S310 - checked


def test_manifest_says_what_euca2ools_says(
    raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    manifest = tmp_path / "manifest.xml"
    toolkit("publish", raw, f"s3://{BUCKET}/plain", "--manifest-file", manifest)
    parsed = parse_import_manifest(manifest.read_bytes())
    assert [(part.offset, part.length) for part in parsed.parts] == [(0, 10 * MIB), (10 * MIB, 2 * MIB)]
    assert (parsed.size, parsed.volume_gib) == (SIZE, 1)
    assert all("X-Amz-Algorithm=AWS4-HMAC-SHA256" in url for _, url in parsed.urls())
    assert all((store.directory / part.key).stat().st_size == part.length for part in parsed.parts)


def test_any_file_is_published_as_it_is(store: S3Server, tmp_path: Path, toolkit: Toolkit) -> None:
    archive, where = tmp_path / "boot.tar.xz", f"s3://{BUCKET}/as-is/boot.tar.xz"
    archive.write_bytes(b"\xfd7zXZ\0" + bytes(MIB))
    assert toolkit("publish", archive, where, "--single").status == 6
    options = ("--single", "--as-is", "--content-type", "application/x-xz", "--public")
    done = toolkit("publish", archive, where, *options)
    assert done.status == 0, done.printed
    assert done.report["input"] == {"format": None, "size": MIB + 6, "sha256": digest_of(archive)}
    assert digest_of(store.directory / "as-is/boot.tar.xz") == digest_of(archive)
    url = S3Client(S3Options()).presign("head_object", BucketLocation.of(where), 60)
    with request("HEAD", url) as answer:
        assert answer.headers["Content-Type"] == "application/x-xz"


def test_parts_are_never_published_as_they_are(raw: Path, store: S3Server, toolkit: Toolkit) -> None:
    refused = toolkit("publish", raw, f"s3://{store.directory.name}/parts", "--as-is")
    assert (refused.status, refused.reason) == (2, "--as-is needs --single, and excludes --input-format")


def test_single_object_is_the_image_and_is_not_replaced(
    raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    where = f"s3://{BUCKET}/single/disk.raw"
    done = toolkit("publish", raw, where, "--single", "--part-size", "5M")
    assert done.status == 0, done.printed
    assert done.report["output"]["location"] == where
    assert done.report["output"]["parts"] == 3
    assert digest_of(store.directory / "single/disk.raw") == digest_of(raw)
    other = tmp_path / "other"
    other.write_bytes(bytes(MIB))
    refused = toolkit("publish", other, where, "--single")
    assert refused.status == 4
    assert "exists; --force replaces it" in refused.reason
    assert digest_of(store.directory / "single/disk.raw") == digest_of(raw)
    assert toolkit("publish", other, where, "--single", "--force").status == 0
    assert digest_of(store.directory / "single/disk.raw") == digest_of(other)


def test_object_that_appears_meanwhile_is_not_replaced(
    raw: Path, store: S3Server, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys_below(store, "raced") == []
    monkeypatch.setattr(S3Client, "exists", lambda *_: False)
    where = f"s3://{BUCKET}/raced/disk.raw"
    assert toolkit("publish", raw, where, "--single").status == 0
    refused = toolkit("publish", raw, where, "--single")
    assert refused.status == 4
    assert "PreconditionFailed (status 412)" in refused.reason


def test_failed_publish_removes_its_parts(
    raw: Path, store: S3Server, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = S3Client.put

    def fail(self: S3Client, location: BucketLocation, body: bytes) -> None:
        put(self, location, body)
        if location.key.endswith("part7"):
            raise TransferFailed("the store is full")

    monkeypatch.setattr(S3Client, "put", fail)
    done = toolkit("publish", raw, f"s3://{BUCKET}/failed", "--part-size", "1M")
    assert (done.status, done.reason) == (4, "the store is full")
    assert keys_below(store, "failed") == []


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3User]:
    """A user of a server with users."""
    with running_s3_server_with_user(tmp_path_factory.mktemp("s3-users")) as running:
        yield running


@pytest.mark.parametrize(
    ("permitted", "key", "options", "told"),
    [
        (
            ("PutObject",),
            f"{PREFIX}/disk",
            ("--single",),
            "exists (403 (status 403)): permit s3:GetObject and s3:ListBucket, or replace it by --force",
        ),
        (("GetObject",), f"{PREFIX}/disk", ("--single",), "AccessDenied (status 403)"),
        (("GetObject",), f"{PREFIX}/disk", (), "AccessDenied (status 403)"),
        (("GetObject", "PutObject"), "other/disk", ("--single", "--force"), "AccessDenied (status 403)"),
    ],
    ids=["no-read", "no-write", "no-write-of-parts", "other-prefix"],
)
def test_right_that_is_missing_is_told_at_once(  # noqa: PLR0913, PLR0917 - fixtures
    raw: Path,
    user: S3User,
    toolkit: Toolkit,
    monkeypatch: pytest.MonkeyPatch,
    permitted: tuple[str, ...],
    key: str,
    options: tuple[str, ...],
    told: str,
) -> None:
    for name, value in user.environment.items():
        monkeypatch.setenv(name, value)
    user.permit(*permitted)
    refused = toolkit("publish", raw, f"s3://{BUCKET}/{key}", *options)
    assert refused.status == 4
    assert told in refused.reason
    assert keys_below(user.server, "") == []


def test_object_is_published_with_the_right_to_write_alone(
    raw: Path, user: S3User, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in user.environment.items():
        monkeypatch.setenv(name, value)
    user.permit("PutObject")
    done = toolkit("publish", raw, f"s3://{BUCKET}/{PREFIX}/disk", "--single", "--force")
    assert done.status == 0, done.printed

    def fail(*_: object, **__: object) -> None:
        raise TransferFailed("the store is full")

    monkeypatch.setattr(S3Client, "complete_upload", fail)
    failed = toolkit("publish", raw, f"s3://{BUCKET}/{PREFIX}/disk", "--single", "--force")
    assert re.fullmatch("the store is full; the parts of upload .* cannot be deleted", failed.reason)
    assert digest_of(user.server.directory / PREFIX / "disk") == digest_of(raw)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch (status 403)"),
        ({"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, "XAdminUserNotFound (status 404)"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "the endpoint is not an http or https URL with a valid host"),
    ],
)
def test_refusals_of_the_store_are_told(  # noqa: PLR0913, PLR0917 - fixtures
    changes: dict[str, str],
    told: str,
    raw: Path,
    store: S3Server,
    toolkit: Toolkit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    done = toolkit("publish", raw, f"s3://{BUCKET}/refused")
    assert done.status == 4
    assert told in done.reason
    assert keys_below(store, "refused") == []


def test_missing_bucket_and_credentials_are_told(
    raw: Path, store: S3Server, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "NoSuchBucket" in toolkit("publish", raw, "s3://no-such-bucket/a").reason
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    done = toolkit("publish", raw, f"s3://{BUCKET}/a")
    assert done.status == 4
    assert "no credentials" in done.reason
    assert keys_below(store, "a") == []


def test_usage_errors(raw: Path, toolkit: Toolkit) -> None:
    assert toolkit("publish", raw, "http://bucket/key").status == 2
    assert toolkit("publish", raw, "s3://B/key").status == 2
    assert toolkit("publish", raw, "s3://bucket/key", "--part-size", "65M").status == 2
    assert toolkit("publish", raw, "s3://bucket/key", "--expires", "604801").status == 2
    assert toolkit("fetch", raw, "out", "--allow-host", "https://host/path").status == 2
    done = toolkit("publish", raw, "s3://bucket/key", "--part-size", "1K")
    assert done.status == 6
    assert "--part-size must be at least 1259" in done.reason


def publish_slowly(raw: Path, prefix: str, *options: str) -> subprocess.Popen[bytes]:
    """Start to publish in a process of its own, so slowly that it goes on when a test has seen a part."""
    command = [sys.executable, "-m", "image_service.toolkit", "publish", raw, f"s3://{BUCKET}/{prefix}"]
    return subprocess.Popen(
        [*map(str, command), "--part-size", "1M", "--io-rate", "1M", "--progress=json", *options],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def wait_for_keys(store: S3Server, prefix: str) -> None:
    deadline = time.monotonic() + 60
    while not keys_below(store, prefix):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_terminated_publish_removes_its_parts(raw: Path, store: S3Server) -> None:
    with publish_slowly(raw, "terminated") as process:
        wait_for_keys(store, "terminated")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert keys_below(store, "terminated") == []


def test_terminated_fetch_leaves_nothing(
    raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    manifest, out, scratch = tmp_path / "manifest.xml", tmp_path / "out" / "disk", tmp_path / "scratch"
    out.parent.mkdir()
    scratch.mkdir()
    toolkit("publish", raw, f"s3://{BUCKET}/ended", "--part-size", "1M", "--manifest-file", manifest)
    command = ["-m", "image_service.toolkit", "fetch", manifest, out, *allow(store), "--scratch", scratch]
    with subprocess.Popen(
        [sys.executable, *map(str, command), "--io-rate", "1M"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 60
        while not list(out.parent.glob(".*/content/image")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert list(out.parent.iterdir()) == list(scratch.iterdir()) == []


def test_killed_fetch_is_resumed_with_the_verified_parts(
    raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    manifest, out, kept = tmp_path / "manifest.xml", tmp_path / "out" / "disk", tmp_path / "kept"
    out.parent.mkdir()
    toolkit("publish", raw, f"s3://{BUCKET}/resumed", "--part-size", "1M", "--manifest-file", manifest)
    command = ["-m", "image_service.toolkit", "fetch", manifest, out, *allow(store), "--resume", kept]
    with subprocess.Popen(
        [sys.executable, *map(str, command), "--io-rate", "1M"], stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 60
        while not (kept / "parts").exists() or len((kept / "parts").read_text().split("\n")) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
    assert list(out.parent.iterdir()) == []
    lines = [line for line in (kept / "parts").read_text().splitlines() if line]
    assert 0 < len(lines) < 12
    parts = parse_import_manifest(manifest.read_bytes()).parts
    # One of the verified parts is damaged, one is replaced in the store by another version.
    first, second = (int(line.split('"')[1].split()[0]) // MIB for line in lines[:2])
    with (kept / "image").open("r+b") as file:
        os.pwrite(file.fileno(), b"damaged", parts[first].offset)
    changed = store.directory / parts[second].key
    changed.write_bytes(changed.read_bytes())
    store.publish(parts[second].key, "f" * 32 + "-2")
    asked = toolkit("fetch", manifest, out, *allow(store), "--resume", kept)
    assert asked.status == 0, asked.printed
    assert digest_of(out) == digest_of(raw)
    assert not kept.exists()


def test_one_call_at_a_time_uses_a_directory(
    raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    manifest, kept = tmp_path / "manifest.xml", tmp_path / "kept"
    toolkit("publish", raw, f"s3://{BUCKET}/locked", "--manifest-file", manifest)
    kept.mkdir()
    with (kept / "parts").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = toolkit("fetch", manifest, tmp_path / "out", *allow(store), "--resume", kept)
    assert done.status == 4
    assert "another call uses" in done.reason


def test_fetch_waits_for_parts_that_come_later(
    raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit
) -> None:
    manifest, out = tmp_path / "manifest.xml", tmp_path / "out"
    toolkit("publish", raw, f"s3://{BUCKET}/later", "--manifest-file", manifest)
    part = store.directory / parse_import_manifest(manifest.read_bytes()).parts[1].key
    part.rename(part.with_name("away"))
    absent = toolkit("fetch", manifest, out, *allow(store))
    assert absent.status == 6
    assert "status 404" in absent.reason
    with subprocess.Popen(["sh", "-c", f"sleep 1; mv '{part.with_name('away')}' '{part}'"]):
        done = toolkit("fetch", manifest, out, *allow(store), "--wait", "60")
    assert done.status == 0, done.printed
    assert digest_of(out) == digest_of(raw)


def test_failing_deletion_is_a_note(raw: Path, store: S3Server, tmp_path: Path, toolkit: Toolkit) -> None:
    manifest, out = tmp_path / "manifest.xml", tmp_path / "out"
    toolkit("publish", raw, f"s3://{BUCKET}/kept", "--manifest-file", manifest)
    before, element, after = manifest.read_text().partition("<delete-url>")
    manifest.write_text(before + element + after.replace(f"{SIGNATURE}=", f"{SIGNATURE}=0", 1))
    done = toolkit("fetch", manifest, out, *allow(store), "--delete")
    assert done.status == 0
    assert len(done.report["notes"]) == 1
    assert "status 403" in done.report["notes"][0]
    assert SIGNATURE not in done.printed
    assert len(keys_below(store, "kept")) == 1
