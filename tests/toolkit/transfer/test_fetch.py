"""Fetching in parts, from servers that make each mistake: what is requested from whom, and what is left."""

from __future__ import annotations

import socket
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trustme

from image_service.common.http.origins import parse_origin
from image_service.common.transfer.client import TransferTimes
from image_service.common.transfer.manifest import parse_import_manifest, render_import_manifest
from image_service.core.errors import FormatError, ImageServiceError, TransferFailed, UnsafeImage
from image_service.toolkit.transfer.fetch import (
    FetchOptions,
    fetch_parts,
    read_manifest,
)
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace
from tests.common.transfer.manifests import PART_BYTES, SECRET, make_manifest, serve_parts
from tests.origin_faults import FAULTS, FaultyResource, corrupt
from tests.server.catalog.origin import Origin, Reply, Resource, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.toolkit.transfer.conftest import Toolkit

BODY = (
    b"".join(bytes([65 + index]) * PART_BYTES for index in range(4))
    + bytes(2 * PART_BYTES)
    + b"the end" * 100
)
PATIENT = TransferTimes(backoff_seconds=0.01)
TWO_ATTEMPTS = attrs.evolve(PATIENT, attempts=2)
HASTY = attrs.evolve(TWO_ATTEMPTS, stall_seconds=1, request_seconds=1, least_rate=1 << 30)
SLOW_FAULTS = {"a byte a second"}
FAULTS_OF_WHOLES = ["corrupt", *FAULTS.keys() - {"other ETag", "weak ETag", "other range", "other size"}]


@pytest.fixture
def origin() -> Iterator[Origin]:
    """Run a server on loopback."""
    with running() as started:
        yield started


def fetch(manifest: Path | str, out: Path, **options: Any) -> list[tuple[str, int, int]]:
    """Fetch with short times of waiting; return the progress."""
    progress: list[tuple[str, int, int]] = []
    wanted = FetchOptions(**{"times": PATIENT, **options})
    limits = Limits()
    with Workspace(out.parent, limits, Progress(lambda *line: progress.append(line))) as workspace:
        source = read_manifest(str(manifest), wanted, workspace)
        parsed = parse_import_manifest(source.text)
        fetch_parts(parsed, source, out, wanted, workspace)
    return progress


@pytest.fixture
def manifest_path(tmp_path: Path, origin: Origin) -> Path:
    """Serve an image, and return its manifest, a file."""
    serve_parts(origin, BODY)
    path = tmp_path / "in" / "manifest.xml"
    path.parent.mkdir()
    path.write_bytes(render_import_manifest(make_manifest(origin.url(""), len(BODY))))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the path of an output, alone in its directory."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "disk.raw"


def allow(origin: Origin) -> dict[str, Any]:
    return {"allowed": (parse_origin(origin.url("")),)}


def test_parts_become_the_image_with_its_holes(manifest_path: Path, out: Path, origin: Origin) -> None:
    progress = fetch(manifest_path, out, **allow(origin))
    assert out.read_bytes() == BODY
    assert out.stat().st_blocks * 512 < len(BODY)
    assert list(out.parent.iterdir()) == [out]
    downloads = [done for phase, done, total in progress if phase == "download" and total == len(BODY)]
    assert downloads == sorted(downloads)
    assert (downloads[0], downloads[-1]) == (0, len(BODY))
    assert len(origin.requests) == 7


def test_nothing_of_ours_is_sent(
    manifest_path: Path, out: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login us password ours\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    fetch(manifest_path, out, **allow(origin))
    for request in origin.requests:
        assert set(request.headers) == {"Host", "Accept-Encoding", "Connection"}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_continued_part_with_a_fault_is_refused_and_the_retry_is_right(
    fault: str, manifest_path: Path, out: Path, origin: Origin
) -> None:
    """The first answer is cut; the second, to a range, is wrong; then all are right."""
    resource = origin.replies["/1"][0]
    assert isinstance(resource, Resource)
    resource.cuts = [PART_BYTES // 2]
    spoilt = FaultyResource(resource, FAULTS[fault])
    origin.replies["/1"] = [resource, spoilt, resource]
    if fault == "redirect to an expired link":
        with pytest.raises(TransferFailed) as caught:
            fetch(manifest_path, out, **allow(origin), times=TWO_ATTEMPTS)
        assert SECRET not in caught.value.detail
        assert list(out.parent.iterdir()) == []
    else:
        times = attrs.evolve(HASTY, attempts=5) if fault in SLOW_FAULTS else PATIENT
        fetch(manifest_path, out, **allow(origin), times=times)
        assert out.read_bytes() == BODY
    assert spoilt.spoilt == 1


@pytest.mark.parametrize("fault", sorted(FAULTS_OF_WHOLES))
def test_fault_that_stays_fails_and_leaves_nothing(
    fault: str, manifest_path: Path, out: Path, origin: Origin
) -> None:
    resource = origin.replies["/1"][0]
    assert isinstance(resource, Resource)
    change = {**FAULTS, "corrupt": corrupt}[fault]

    def spoil(whole: Reply) -> Reply:
        described = {"Content-Range": f"bytes 0-{PART_BYTES - 1}/{PART_BYTES}"}
        return change(attrs.evolve(whole, headers={**whole.headers, **described}))

    origin.replies["/1"] = [lambda request: spoil(resource(request))]
    out.write_bytes(b"as before")
    with pytest.raises(TransferFailed) as caught:
        fetch(manifest_path, out, **allow(origin), times=HASTY if fault in SLOW_FAULTS else TWO_ATTEMPTS)
    assert origin.url("/1") in caught.value.detail
    assert SECRET not in caught.value.detail
    assert out.read_bytes() == b"as before"
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("reply", "told", "requests"),
    [
        (Reply(status=302, headers={"Location": "/0"}), "redirects are not followed", 1),
        (Reply(status=307, headers={"Location": "http://127.0.0.1:9/"}), "redirects are not followed", 1),
        (Reply(status=403), "status 403", 1),
        (Reply(status=404), "status 404", 1),
        (Reply(status=503), "status 503", 2),
        (Reply(b"x" * PART_BYTES, status=206), "status 206", 1),
        (Reply(b"x" * (PART_BYTES + 1)), f"not the {PART_BYTES} of its part", 2),
        (Reply(b"x" * (PART_BYTES - 1)), f"not the {PART_BYTES} of its part", 2),
        (Reply(b"x" * (PART_BYTES + 1), promised=-1), "more than", 2),
        (Reply(b"x" * (PART_BYTES - 1), promised=-1), "ended after", 2),
        (Reply(b"x" * PART_BYTES, headers={"ETag": '"' + "0" * 32 + '"'}), "another MD5 than its ETag", 2),
        (Reply(b"x" * PART_BYTES, headers={"Content-Encoding": "gzip"}), "is encoded", 2),
        (Reply(b"x" * PART_BYTES, hold_head=True), "too slow", 2),
        (Reply(b"x" * PART_BYTES, drip=1, drip_seconds=0.1), "too slow", 2),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_answer_is_refused_with_the_reason(  # noqa: PLR0913, PLR0917 - fixtures
    reply: Reply, told: str, requests: int, manifest_path: Path, out: Path, origin: Origin
) -> None:
    origin.replies["/1"] = [reply]
    with pytest.raises(TransferFailed, match=told):
        fetch(manifest_path, out, **allow(origin), times=HASTY if told == "too slow" else TWO_ATTEMPTS)
    assert sum(request.target.startswith("/1?") for request in origin.requests) == requests
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": 'W/"' + "0" * 32 + '"'},
        {"ETag": '"' + "0" * 32 + '-7"'},
        {"ETag": '"' + "0" * 32 + '"', "x-amz-server-side-encryption-aws-kms-key-id": "a key"},
        {},
    ],
    ids=["weak", "multipart", "encrypted", "none"],
)
def test_etag_that_is_no_md5_is_not_compared(
    headers: dict[str, str], manifest_path: Path, out: Path, origin: Origin
) -> None:
    origin.replies["/1"] = [Reply(BODY[PART_BYTES : 2 * PART_BYTES], headers=headers)]
    fetch(manifest_path, out, **allow(origin))
    assert out.read_bytes() == BODY


KINDS = ["self-destruct-url", "head-url", "get-url", "delete-url"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "where",
    ["http://127.0.0.1:{other}", "https://127.0.0.1:{port}", "http://localhost:{port}", "http://127.0.0.1"],
    ids=["port", "scheme", "name", "default port"],
)
def test_url_off_the_list_is_refused_before_any_request(
    kind: str, where: str, manifest_path: Path, out: Path, origin: Origin
) -> None:
    with running() as other:
        place = where.format(port=origin.port, other=other.port)
        text = manifest_path.read_bytes()
        before, element, after = text.rpartition(f"<{kind}>".encode())
        manifest_path.write_bytes(
            before + element + after.replace(origin.url("").encode(), place.encode(), 1)
        )
        with pytest.raises(UnsafeImage) as caught:
            fetch(manifest_path, out, **allow(origin))
        assert kind in caught.value.detail
        assert f"is at {place}, which --allow-host does not list" in caught.value.detail
        assert origin.requests == other.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/",
        "file:///etc/passwd",
        "http://user:pass@a.example/",
        "http://a.example/#b",
        "http://a.example\\@b.example/",
        "http://a.example:99999/",
        "http://a.example/ b",
        "http://a.example/\u0661",
        "http:///etc",
        "http://[::1/",
        "//a.example/",
        "http://a.example/" + "a" * 9000,
    ],
)
def test_invalid_url_is_refused(url: str, manifest_path: Path, out: Path, origin: Origin) -> None:
    manifest = make_manifest(origin.url(""), len(BODY))
    first = attrs.evolve(manifest.parts[0], delete_url=url)
    manifest_path.write_bytes(
        render_import_manifest(attrs.evolve(manifest, parts=(first, *manifest.parts[1:])))
    )
    with pytest.raises(ImageServiceError, match="delete-url of part 0"):
        fetch(manifest_path, out, **allow(origin))
    assert origin.requests == []


def test_manifest_file_without_allowed_hosts_is_refused(
    manifest_path: Path, out: Path, origin: Origin
) -> None:
    with pytest.raises(UnsafeImage, match="which --allow-host does not list"):
        fetch(manifest_path, out)
    assert origin.requests == []


def resolve_to(address: str, port: int) -> Callable[..., object]:
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    return lambda *_args, **_options: [(family, socket.SOCK_STREAM, 6, "", (address, port))]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "10.1.2.3",
        "169.254.169.254",
        "fe80::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",  # noqa: S104 - only compared
        "100.64.0.1",
    ],
)
def test_own_host_of_the_manifest_must_have_a_public_address(
    address: str, out: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that the user has not listed resolves to an address of the inside."""
    monkeypatch.setattr(socket, "getaddrinfo", resolve_to(address, origin.port))
    with Workspace(out.parent, Limits(), Progress(lambda *_: None)) as workspace:
        with pytest.raises(UnsafeImage, match="which is not public"):
            read_manifest(f"http://store.example:{origin.port}/m{SECRET}", FetchOptions(), workspace)
        assert origin.requests == []


def test_named_host_may_have_any_address_and_the_checked_one_is_connected_to(
    manifest_path: Path, out: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [resolve_to("127.0.0.1", origin.port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: answers[0]())
    text = manifest_path.read_bytes().replace(b"127.0.0.1", b"store.example")
    manifest_path.write_bytes(text)
    fetch(manifest_path, out, allowed=(parse_origin(f"http://store.example:{origin.port}"),))
    assert out.read_bytes() == BODY
    assert {request.headers["Host"] for request in origin.requests} == {f"store.example:{origin.port}"}


def test_certificate_is_verified(tmp_path: Path, out: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with running(context) as secured:
        serve_parts(secured, BODY)
        text = render_import_manifest(make_manifest(secured.url(""), len(BODY)))
        secured.serve("/manifest", Reply(text))
        url = secured.url(f"/manifest?{SECRET}")
        with pytest.raises(TransferFailed, match=r"not trusted.*--ca-file") as caught:
            fetch(url, out, **allow(secured))
        assert SECRET not in caught.value.detail
        fetch(url, out, **allow(secured), ca_file=tmp_path / "ca.pem")
    assert out.read_bytes() == BODY


def test_image_over_max_bytes_is_refused_before_any_request(
    manifest_path: Path, out: Path, origin: Origin, toolkit: Toolkit
) -> None:
    done = toolkit("fetch", manifest_path, out, "--allow-host", origin.url(""), "--max-bytes", "64K")
    assert done.status == 7
    assert str(len(BODY)) in done.reason
    assert origin.requests == []


def test_report_has_digests_and_no_secret(
    manifest_path: Path, out: Path, origin: Origin, toolkit: Toolkit
) -> None:
    done = toolkit("fetch", manifest_path, out, "--allow-host", origin.url(""))
    assert done.status == 0
    assert done.report["input"]["size"] == manifest_path.stat().st_size
    assert done.report["output"]["size"] == len(BODY)
    assert SECRET not in done.printed


def test_endless_manifest_is_refused(out: Path, origin: Origin) -> None:
    origin.serve("/manifest", Reply(bytes(17 * 2**20), promised=-1))
    with pytest.raises(FormatError, match="more than 16777216 bytes"):
        fetch(origin.url("/manifest"), out, **allow(origin))
