"""Imports by the worker with the real toolkit: from the listed stores alone, and nothing stays behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.transfer.manifest import render_import_manifest
from image_service.core.formats.disk.model import DiskFormat
from tests.acceptance.clients import needs_client, run_client
from tests.common.transfer.manifests import QUERY, SECRET, make_manifest, serve_parts
from tests.jobs.worker.job_server import GivenJob
from tests.jobs.worker.workers import real_toolkit, running_worker
from tests.server.catalog.origin import Origin, Reply, Resource, running
from tests.toolkit.corpus.qcow2 import backing_file, data_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.jobs.worker.workers import WorkerSite

pytestmark = pytest.mark.acceptance

MIB = 1 << 20
SIZE = 8 * MIB
PART_BYTES = 3 * MIB


@attrs.frozen
class ImportSite:
    """A worker's server, an object store, and a server that is on no list."""

    workers: WorkerSite
    store: Origin
    foreign: Origin
    directory: Path

    def run(self, *manifests: bytes) -> list[GivenJob]:
        """Run imports to their ends with one worker; its scratch is empty then."""
        arguments = {
            "object_stores": [self.store.url("")],
            "format": "qcow2",
            "output": "disk.qcow2",
            "fetched_bytes": SIZE,
            "volume_bytes": 1 << 30,
        }
        url = f"{self.store.url('/bundle/image.manifest.xml')}{QUERY}".encode()
        server, toolkit = self.workers.server, real_toolkit(self.directory)
        given = [
            GivenJob("import", arguments, {"manifest": manifest, "manifest-url": url})
            for manifest in manifests
        ]
        with running_worker(server, self.directory, toolkit, "--slots=2") as worker:
            for job in given:
                self.workers.jobs.give(job)
            results = [self.workers.jobs.finished(job) for job in given]
        assert SECRET not in worker.log.read_text() + json.dumps(results)
        return given

    def refused(self, *manifests: bytes) -> list[tuple[int, str]]:
        """Return the ids and the reasons of failures."""
        given = self.run(*manifests)
        assert all(job.artifacts == {} for job in given)
        errors = [job.result["job_error"] for job in given if job.result]
        return [(error["id"], error["reason"]) for error in errors]


@pytest.fixture
def imports(site: WorkerSite, tmp_path: Path) -> Iterator[ImportSite]:
    needs_client("qemu-img")
    with running() as store, running() as foreign:
        yield ImportSite(site, store, foreign, tmp_path)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes((b"a disk of the test".ljust(512, b".") * 4096).ljust(SIZE, b"\0"))
    return path


def upload(store: Origin, image: Path, name: str, format_: DiskFormat = DiskFormat.RAW) -> bytes:
    """Serve the parts of an image below a name, and return its manifest."""
    body = image.read_bytes()
    parts = serve_parts(store, body, PART_BYTES)
    for index, part in enumerate(parts):
        store.replies.pop(f"/{index}")
        store.serve(f"/{name}/{index}", part)
    manifest = make_manifest(store.url(f"/{name}"), len(body), PART_BYTES)
    size = len(body) if format_ is DiskFormat.RAW else SIZE
    return render_import_manifest(attrs.evolve(manifest, format_name=format_.value.upper(), size=size))


def test_disk_is_imported_as_qcow2(imports: ImportSite, raw: Path, tmp_path: Path) -> None:
    image = tmp_path / "source.qcow2"
    run_client("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, image)
    (job,) = imports.run(upload(imports.store, image, "a", DiskFormat.QCOW2))
    assert job.result
    assert "qemu-img" in job.result["provenance"]["programs"]
    check_imported(job, raw, tmp_path)


def check_imported(job: GivenJob, raw: Path, directory: Path) -> None:
    made = directory / "made.qcow2"
    made.write_bytes(job.artifacts["disk.qcow2"])
    assert b"identical" in run_client("qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, made)


def test_part_that_changes_meanwhile_is_wholly_the_new_one(
    imports: ImportSite, raw: Path, tmp_path: Path
) -> None:
    manifest = upload(imports.store, raw, "a")
    (part,) = imports.store.replies["/a/1"]
    assert isinstance(part, Resource)
    part.cuts.append(1000)
    imports.store.replies["/a/1"] = [part, Resource(bytes(PART_BYTES), '"other"')]
    (job,) = imports.run(manifest)
    body = raw.read_bytes()
    raw.write_bytes(body[:PART_BYTES] + bytes(PART_BYTES) + body[2 * PART_BYTES :])
    check_imported(job, raw, tmp_path)


def test_hostile_uploads_fail_with_the_reason(imports: ImportSite, raw: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"bytes of the host" * 100)
    attacks = [backing_file(tmp_path, secret), data_file(tmp_path, secret)]
    store, foreign = imports.store, imports.foreign
    stranger = upload(store, raw, "stranger")
    expected = {
        upload(store, attacks[0], "a", DiskFormat.QCOW2): (4, "backing"),
        upload(store, attacks[1], "b", DiskFormat.QCOW2): (4, "data"),
        upload(store, attacks[0], "c"): (4, "declared to be raw, and its content is qcow2"),
        upload(store, raw, "absent"): (4, "answered with status 404"),
        upload(store, raw, "redirect"): (4, "redirects are not followed"),
        stranger.replace(store.url("/stranger/1").encode(), foreign.url("/1").encode()): (
            4,
            f"is at {foreign.url('')}, which --allow-host does not list",
        ),
    }
    store.replies["/absent/1"] = [Reply(status=404)]
    store.replies["/redirect/1"] = [Reply(status=302, headers={"Location": foreign.url("/1")})]
    found = imports.refused(*expected)
    for (error_id, reason), (expected_id, part) in zip(found, expected.values(), strict=True):
        assert (error_id, part in reason) == (expected_id, True), reason
    assert foreign.requests == []
    assert not any(request.target.startswith("/stranger") for request in store.requests)


def test_key_that_cannot_be_read_ends_the_worker(site: WorkerSite, tmp_path: Path) -> None:
    with running_worker(
        site.server, tmp_path, real_toolkit(tmp_path), environment={"BUNDLE_KEY_FILE": "/absent"}
    ) as worker:
        assert worker.process.wait(60) == 78
    assert "BUNDLE_KEY_FILE: /absent cannot be read" in worker.log.read_text()
