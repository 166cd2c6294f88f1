"""Limits of fetch, publish and run: each ends the call with its status, and leaves nothing."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from image_service.common.transfer.manifest import render_import_manifest
from tests.acceptance.clients import needs_client
from tests.common.transfer.manifests import make_manifest, serve_parts
from tests.s3_server import BUCKET
from tests.server.catalog.origin import Origin, Reply, running
from tests.toolkit.transfer.bundles import BundleMaker, RsaKey, tar_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.toolkit.transfer.conftest import Toolkit

MIB = 1 << 20
SIZE = 32 * MIB
TOO_SHORT = ["--timeout", "2"]
"""Seconds: enough to begin a request, and no end of a server that never answers."""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with running() as started:
        yield started


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a sparse raw disk of which 1 MiB is data."""
    path = tmp_path / "disk.raw"
    with path.open("wb") as file:
        file.write(b"a disk of the test".ljust(512, b".") * 2048)
        file.truncate(SIZE)
    return path


@pytest.fixture
def manifest(tmp_path: Path, origin: Origin, raw: Path) -> Path:
    serve_parts(origin, raw.read_bytes(), MIB)
    path = tmp_path / "manifest.xml"
    path.write_bytes(render_import_manifest(make_manifest(origin.url(""), SIZE, MIB)))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "scratch").mkdir()
    return tmp_path / "out" / "disk"


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> RsaKey:
    return RsaKey.make(tmp_path_factory.mktemp("user"), "user")


def allow(origin: Origin, out: Path) -> list[object]:
    return ["--allow-host", origin.url(""), "--scratch", out.parents[1] / "scratch"]


@contextmanager
def nothing_is_left(out: Path) -> Iterator[None]:
    yield
    assert [*out.parent.iterdir(), *(out.parents[1] / "scratch").iterdir()] == []


@pytest.mark.parametrize("verb", [["fetch"], ["run", "down-parts/upload"]], ids=" ".join)
@pytest.mark.parametrize("what", ["manifest", "part"])
def test_timeout_ends_a_fetch_from_a_server_that_never_answers(  # noqa: PLR0913, PLR0917 - fixtures
    verb: list[str], what: str, manifest: Path, origin: Origin, out: Path, toolkit: Toolkit
) -> None:
    origin.replies["/1" if what == "part" else "/manifest"] = [Reply(hold_head=True)]
    source = manifest if what == "part" else origin.url("/manifest")
    place = out if verb == ["fetch"] else f"s3://{BUCKET}/key"
    with nothing_is_left(out):
        done = toolkit(*verb, source, place, *allow(origin, out), *TOO_SHORT)
    assert (done.status, "--timeout" in done.reason) == (8, True), done.reason


def test_timeout_ends_a_fetch_that_waits_for_parts(
    manifest: Path, origin: Origin, out: Path, toolkit: Toolkit
) -> None:
    origin.replies["/1"] = [Reply(status=404)]
    with nothing_is_left(out):
        done = toolkit("fetch", manifest, out, *allow(origin, out), "--wait", "3600", *TOO_SHORT)
    assert (done.status, "--timeout" in done.reason) == (8, True), done.reason


@pytest.mark.acceptance
def test_timeout_ends_the_fetch_of_a_bundle(  # noqa: PLR0913, PLR0917 - fixtures
    raw: Path, user: RsaKey, tmp_path: Path, origin: Origin, out: Path, toolkit: Toolkit
) -> None:
    manifest = BundleMaker(user, user).make(tmp_path / "bundle", tar_of(raw), SIZE)
    origin.serve("/image.manifest.xml", Reply(manifest.read_bytes()))
    origin.serve("/image.part.00", Reply(hold_head=True))
    with nothing_is_left(out):
        url = origin.url("/image.manifest.xml")
        done = toolkit("fetch", url, out, "--key", user.key, *allow(origin, out), *TOO_SHORT)
    assert (done.status, "--timeout" in done.reason) == (8, True), done.reason


@pytest.mark.parametrize("options", [[], ["--single", "--part-size", "5M"]], ids=" ".join)
def test_timeout_ends_an_upload_to_a_server_that_never_answers(
    options: list[str], raw: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of the test")
    with socket.create_server(("127.0.0.1", 0)) as server:  # connects, and never reads
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        done = toolkit("publish", raw, f"s3://{BUCKET}/key", *options, *TOO_SHORT)
    assert (done.status, "--timeout" in done.reason) == (8, True), done.reason


def test_fetch_that_needs_more_scratch_bytes_fails_before_it_downloads(
    manifest: Path, origin: Origin, out: Path, toolkit: Toolkit
) -> None:
    with nothing_is_left(out):
        done = toolkit("fetch", manifest, out, *allow(origin, out), "--scratch-bytes", SIZE - 1)
    assert done.status == 7
    assert f"{SIZE} bytes, more than {SIZE - 1} (--scratch-bytes)" in done.reason
    assert origin.requests == []
    assert toolkit("fetch", manifest, out, *allow(origin, out), "--scratch-bytes", SIZE).status == 0


@pytest.mark.acceptance
def test_bundle_that_needs_more_scratch_bytes_fails(
    raw: Path, user: RsaKey, tmp_path: Path, out: Path, toolkit: Toolkit
) -> None:
    manifest = BundleMaker(user, user).make(tmp_path / "bundle", tar_of(raw), SIZE)
    common = ["--key", user.key, "--scratch", tmp_path / "scratch", "--scratch-bytes"]
    with nothing_is_left(out):
        done = toolkit("fetch", manifest, out, *common, SIZE - 1)
    assert done.status == 7
    assert f"{SIZE} bytes, more than {SIZE - 1} (--scratch-bytes)" in done.reason
    assert toolkit("fetch", manifest, out, *common, SIZE).status == 0


def test_tasks_of_a_workflow_need_scratch_bytes_for_what_is_there_at_a_time(
    manifest: Path, origin: Origin, out: Path, toolkit: Toolkit
) -> None:
    """What is fetched has 1 MiB of data and 31 MiB of holes, which are given back before it is converted."""
    needs_client("qemu-img")
    call = ["run", "down-parts/write-raw", manifest, out, *allow(origin, out), "--scratch-bytes"]
    with nothing_is_left(out):
        done = toolkit(*call, SIZE - 1)
    assert (done.status, "--scratch-bytes" in done.reason) == (7, True), done.reason
    done = toolkit(*call, SIZE)
    assert done.status == 0, done.reason
    assert out.read_bytes()[: 1 * MIB] == b"a disk of the test".ljust(512, b".") * 2048


@pytest.mark.parametrize("workflow", ["", "down-parts/write-raw"])
def test_fetched_image_that_is_unsafe_is_called_by_a_name_of_the_user(
    workflow: str, tmp_path: Path, origin: Origin, out: Path, toolkit: Toolkit
) -> None:
    if workflow:
        needs_client("qemu-img")
    body = b"KDMV" + bytes(MIB - 4)
    serve_parts(origin, body)
    path = tmp_path / "manifest.xml"
    path.write_bytes(render_import_manifest(make_manifest(origin.url(""), len(body))))
    verb = ["run", workflow] if workflow else ["fetch"]
    with nothing_is_left(out):
        done = toolkit(*verb, path, out, *allow(origin, out))
    assert done.status == 6
    assert done.reason.startswith("image: " if workflow else "disk: "), done.reason
    assert str(tmp_path) not in done.reason
