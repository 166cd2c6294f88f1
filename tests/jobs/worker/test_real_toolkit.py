"""The worker with the real toolkit: the result of each type of job, and its secrets."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import needs_client, run_client
from tests.jobs.worker.job_server import GivenJob
from tests.jobs.worker.workers import real_toolkit, running_worker
from tests.s3_server import BUCKET, running_s3_server
from tests.toolkit.coreos_disk import DISK_SIZE, ENTRY, build_disk, read_boot_file
from tests.toolkit.corpus.qcow2 import backing_file, data_file
from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path

    from tests.jobs.worker.workers import WorkerSite

pytestmark = pytest.mark.acceptance

MIB = 1 << 20
CONFIG = b'{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "s3cret"}]}}'
ARGUMENTS = ["ignition.config.url=http://host/s3cret"]


def test_customized_disk(site: WorkerSite, tmp_path: Path) -> None:
    base = build_disk(tmp_path).read_bytes()
    arguments = {"input": "base", "input_format": "raw", "output": "customized.raw", "platform": "aws"}
    inputs = {"base": base, "ignition": CONFIG, "kernel-arguments": json.dumps(ARGUMENTS).encode()}
    job = site.jobs.give(GivenJob("customize", arguments, inputs))
    with running_worker(site.server, tmp_path, real_toolkit(tmp_path), f"--cache-dir={tmp_path}/c") as worker:
        result = site.jobs.finished(job)
    disk = tmp_path / "customized.raw"
    disk.write_bytes(job.artifacts["customized.raw"])
    assert result["artifacts"][0]["sha256"] == hashlib.sha256(disk.read_bytes()).hexdigest()
    assert read_boot_file(disk, "ignition/config.ign") == CONFIG
    entry = read_boot_file(disk, ENTRY).decode()
    assert "ignition.platform.id=aws" in entry
    assert ARGUMENTS[0] in entry
    assert set(result["provenance"]["programs"]) >= {"debugfs", "e2fsck"}
    assert "s3cret" not in worker.log.read_text() + json.dumps(result)
    assert [path.name for path in (tmp_path / "c").iterdir()] == [hashlib.sha256(base).hexdigest()]


def test_disk_without_a_customization_is_a_copy(site: WorkerSite, tmp_path: Path) -> None:
    needs_client("qemu-img")
    base = bytes(MIB) + b"disk" * MIB
    arguments = {"input": "base", "input_format": "raw", "output": "image.raw", "platform": None}
    job = site.jobs.give(GivenJob("customize", arguments, {"base": base}))
    with running_worker(site.server, tmp_path, real_toolkit(tmp_path)):
        site.jobs.finished(job)
    assert job.artifacts["image.raw"] == base


def test_config_that_is_none_is_the_reason_of_the_failure(site: WorkerSite, tmp_path: Path) -> None:
    base = build_disk(tmp_path).read_bytes()
    arguments = {"input": "base", "input_format": "raw", "output": "customized.raw", "platform": None}
    job = GivenJob("customize", arguments, {"base": base, "ignition": b'{"s3cret": 1}'})
    with running_worker(site.server, tmp_path, real_toolkit(tmp_path)) as worker:
        result = site.jobs.finished(site.jobs.give(job))
    assert result["job_error"]["id"] == 4
    assert "ignition" in result["job_error"]["reason"].lower()
    assert "s3cret" not in worker.log.read_text() + json.dumps(result)


@pytest.mark.parametrize(
    ("output", "driver"),
    [("disk.vmdk", "vmdk"), soaked("disk.vhd", "vpc"), ("image.ova", None), soaked("d.qcow2", "qcow2")],
)
def test_converted_disk(output: str, driver: str | None, site: WorkerSite, tmp_path: Path) -> None:
    disk = build_disk(tmp_path)
    name = output.rpartition(".")[2]
    size = DISK_SIZE + 2 * MIB
    arguments = {"input": "image", "input_format": "raw", "format": name, "output": output, "size": size}
    job = site.jobs.give(GivenJob("convert", arguments, {"image": disk.read_bytes()}))
    with running_worker(site.server, tmp_path, real_toolkit(tmp_path)):
        result = site.jobs.finished(job)
    made = tmp_path / output
    made.write_bytes(job.artifacts[output])
    assert "qemu-img" in result["provenance"]["programs"]
    if driver:
        with disk.open("r+b") as file:
            file.truncate(size)
        sizes = ",force_size_calc=current_size" if driver == "vpc" else ""
        image = f"driver={driver}{sizes},file.driver=file,file.filename={made}"
        raw = f"driver=raw,file.driver=file,file.filename={disk}"
        assert b"identical" in run_client("qemu-img", "compare", "--image-opts", raw, image)


def test_any_image_is_uploaded_with_credentials_of_the_worker(site: WorkerSite, tmp_path: Path) -> None:
    content = b"\xfd7zXZ\0" + bytes(range(256)) * 30_000
    arguments = {
        "input": "image",
        "bucket": BUCKET,
        "key": "composes/1/pxe.tar.xz",
        "region": "eu-test-1",
        "public": False,
        "content_type": "application/octet-stream",
    }
    job = site.jobs.give(GivenJob("upload", arguments, {"image": content}))
    toolkit = real_toolkit(tmp_path)
    with (
        running_s3_server(tmp_path / "s3") as store,
        running_worker(site.server, tmp_path, toolkit, environment=store.environment) as worker,
    ):
        result = site.jobs.finished(job)
        assert (store.directory / "composes/1/pxe.tar.xz").read_bytes() == content
        again = site.jobs.give(GivenJob("upload", arguments, {"image": content}))
        assert "job_error" not in site.jobs.finished(again)
        assert store.environment["AWS_SECRET_ACCESS_KEY"] not in worker.log.read_text()
    assert result["location"] == f"s3://{BUCKET}/composes/1/pxe.tar.xz"
    assert result["artifacts"] == []
    assert "upload" in site.jobs.polls[0]["types"]


def test_hostile_disks_fail_and_harm_nothing(site: WorkerSite, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.write_bytes(b"s3cret of the host" * 4096)
    hostile = [backing_file(tmp_path, host), data_file(tmp_path, host)]
    kinds = (
        ("customize", "raw", {"input": "image", "output": "o", "platform": "aws"}),
        ("convert", "qcow2", {"input": "image", "output": "o", "format": "raw"}),
    )
    jobs = [
        site.jobs.give(GivenJob(kind, {**arguments, "input_format": declared}, {"image": path.read_bytes()}))
        for path in hostile
        for kind, declared, arguments in kinds
    ]
    with running_worker(site.server, tmp_path, real_toolkit(tmp_path)):
        errors = [site.jobs.finished(job)["job_error"] for job in jobs]
    assert [error["id"] for error in errors] == [4] * len(jobs)
    assert all(error["reason"].startswith("inputs/image: ") for error in errors)
    assert not any(job.artifacts for job in jobs)


def test_config_that_is_a_bomb_fails(site: WorkerSite, tmp_path: Path) -> None:
    base = build_disk(tmp_path).read_bytes()
    arguments = {"input": "base", "input_format": "raw", "output": "o", "platform": None}
    bombs = [b"[" * 1_000_000, b'{"ignition": {"version": "3.4.0", "x": "' + bytes(80 * MIB) + b'"}}']
    jobs = [
        site.jobs.give(GivenJob("customize", arguments, {"base": base, "ignition": bomb})) for bomb in bombs
    ]
    with running_worker(site.server, tmp_path, real_toolkit(tmp_path)):
        results = [site.jobs.finished(job) for job in jobs]
    assert [result["job_error"]["id"] for result in results] == [4, 4]
