"""Download clients of people and hypervisors, over HTTP and HTTPS: each gets the whole image."""

from __future__ import annotations

import filecmp
import hashlib
import json
import signal
import ssl
import subprocess
import time
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.expected import check_image
from tests.acceptance.service import Certificate, Service, os_image, run_service
from tests.core.formats.filesystems.iso_builder import KERNEL_ARGUMENTS, live_files, write_sparse_iso

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

VERSION = "large"
ROOTFS_BYTES = 48 * 1024 * 1024
CONFIG = {"ignition": {"version": "3.2.0"}, "systemd": {"units": [{"name": "sshd.service", "mask": True}]}}
APPENDED = ["rd.neednet=1", "ip=dhcp"]
RATE = "16M"  # bytes per second; slow enough that a kill at a tenth of the image lands in its middle

_POLL_SECONDS = 0.01


@attrs.frozen
class Image:
    """An image and its expected content.

    Args:
        url: of the image.
        expected: file of the same bytes.
        ca: PEM file of the CA of the server's certificate; None for plain HTTP.
    """

    url: str
    expected: Path
    ca: Path | None

    def trust(self, *options: str) -> list[str]:
        """Return a client's options with the CA file in place of each ``{}``."""
        return [option.format(self.ca) for option in options] if self.ca else []

    def check(self, result: Path) -> None:
        """Compare the download with the expected file."""
        assert filecmp.cmp(result, self.expected, shallow=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a live ISO that is large enough to be interrupted, without two equal blocks."""
    path: Path = tmp_path_factory.mktemp("base") / "large.iso"
    rootfs = hashlib.shake_128(b"rootfs").digest(ROOTFS_BYTES)
    write_sparse_iso(path, live_files(rootfs=rootfs), {})
    yield path
    path.unlink()  # pytest keeps the directories of its last runs


@pytest.fixture(scope="module", params=["http", "https"])
def service(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    base: Path,
    certificate: Certificate,
) -> Iterator[Service]:
    """Run the service over HTTP, then over HTTPS."""
    given = certificate if request.param == "https" else None
    directory = tmp_path_factory.mktemp(request.param)
    with run_service(directory, [os_image(base, VERSION)], certificate=given) as running:
        yield running


@pytest.fixture(scope="module")
def image(service: Service, base: Path) -> Iterator[Image]:
    """Register an infra-env; check its whole image."""
    infra_env_id = service.register(VERSION, CONFIG, APPENDED)
    path = f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
    expected = service.directory / "expected.iso"
    expected.write_bytes(service.get_image(path).body)
    arguments = " ".join([KERNEL_ARGUMENTS, *APPENDED])
    check_image(expected, base, service.ignition_config(infra_env_id), arguments)
    yield Image(service.url + path, expected, service.ca)
    expected.unlink()


@pytest.fixture
def result(tmp_path: Path) -> Iterator[Path]:
    """Return the path of the download."""
    path = tmp_path / "result.iso"
    yield path
    path.unlink(missing_ok=True)


def test_curl_resumes_after_a_kill(image: Image, result: Path) -> None:
    options = ["--silent", "--show-error", "--fail", *image.trust("--cacert", "{}"), "--output", str(result)]
    _kill_in_the_middle(["curl", *options, "--limit-rate", RATE, image.url], result)
    assert 0 < result.stat().st_size < image.expected.stat().st_size
    run_client("curl", *options, "--continue-at", "-", image.url)
    image.check(result)


def read_as_uefi(image: Image, count: int, fields: dict[str, str]) -> tuple[int, str, bytes]:
    """Return the status and the ETag of a request, and the content up to a cut."""
    parts = urlsplit(image.url)
    context = None if image.ca is None else ssl.create_default_context(cafile=image.ca)
    make = HTTPConnection if context is None else partial(HTTPSConnection, context=context)
    with closing(make(parts.netloc)) as connection:
        connection.request("GET", parts.path, headers={"User-Agent": "UefiHttpBoot/1.0", **fields})
        with connection.getresponse() as response:
            return response.status, response.headers.get("ETag", ""), response.read(count)


def test_uefi_resumes_after_five_cuts(image: Image) -> None:
    """By the fields that OVMF 2026.08 sends."""
    expected = image.expected.read_bytes()
    piece = len(expected) // 6 - 1000
    status, etag, received = read_as_uefi(image, piece, {})
    assert status == 200
    last = len(expected) - 1
    for count in (piece, piece, piece, piece, len(expected)):
        fields = {"Range": f"bytes={len(received)}-{last}", "If-Match": etag}
        status, _, content = read_as_uefi(image, count, fields)
        assert status == 206
        received += content
    assert received == expected
    changed = {"Range": f"bytes={piece}-{last}", "If-Match": '"of-an-earlier-image"'}
    assert read_as_uefi(image, 0, changed)[0] == 412


def test_aria2_downloads_in_eight_parts(image: Image, result: Path) -> None:
    digest = hashlib.sha256(image.expected.read_bytes()).hexdigest()
    target = [f"--dir={result.parent}", f"--out={result.name}", f"--checksum=sha-256={digest}"]
    parts = ["-x8", "-s8", "-k1M", "--file-allocation=none", "--quiet"]
    run_client("aria2c", *parts, *target, *image.trust("--ca-certificate={}"), image.url)
    image.check(result)


def test_wget_continues_a_part(image: Image, result: Path) -> None:
    with image.expected.open("rb") as whole:
        result.write_bytes(whole.read(ROOTFS_BYTES // 2 + 1))
    options = ["--quiet", "--continue", f"--output-document={result}", *image.trust("--ca-certificate={}")]
    run_client("wget", *options, image.url)
    image.check(result)


def test_axel_downloads_over_eight_connections(image: Image, result: Path) -> None:
    insecure = ["--insecure"] if image.ca else []  # it takes no other CAs than the system's
    run_client("axel", "--quiet", "--num-connections=8", *insecure, f"--output={result}", image.url)
    image.check(result)


def test_qemu_reads_the_image_through_its_curl_driver(image: Image, result: Path) -> None:
    scheme = image.url.partition(":")[0]
    unverified = {"sslverify": "off"} if image.ca else {}  # same
    source = {"driver": "raw", "file": {"driver": scheme, "url": image.url, **unverified}}
    # One request at a time: with several, the driver of qemu 7.2 hangs now and then, whatever the server.
    run_client("qemu-img", "convert", "-m", "1", "-O", "raw", f"json:{json.dumps(source)}", result)
    image.check(result)


def test_qemu_reads_the_image_through_nbdkit(image: Image, result: Path) -> None:
    needs_client("qemu-img")
    plugin = ["curl", f"url={image.url}", *image.trust("cainfo={}")]
    run_client("nbdkit", "-U", "-", *plugin, "--run", f'qemu-img convert -f raw -O raw "$uri" {result}')
    image.check(result)


def _kill_in_the_middle(command: list[str], result: Path) -> None:
    """Run a client until it has written a tenth of the image, and kill it."""
    with subprocess.Popen([needs_client(command[0]), *command[1:]]) as client:
        while client.poll() is None:
            if result.exists() and result.stat().st_size > ROOTFS_BYTES // 10:
                client.kill()
            time.sleep(_POLL_SECONDS)
    assert client.returncode == -signal.SIGKILL
