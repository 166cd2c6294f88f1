"""Images through EC2's API and back: boto3, a running role with its worker, and a real S3 server."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from image_service.server.standalone.sample import unpack_sample_disk
from tests.acceptance.clients import run_client
from tests.acceptance.service import fetch
from tests.archives import unpack
from tests.jobs.ec2_clients import (
    EC2_KEY,
    EC2_SECRET,
    OTHER_KEY,
    ImageUpload,
    base_disk,
    converted,
    ec2_client,
    ec2_settings,
    images_of,
    make_disk,
    raw_sha256,
    s3_client,
    wait_for_export,
    wait_for_import,
)
from tests.jobs.running_role import RunningRole, running_role
from tests.s3_server import BUCKET, REGION, S3Server, running_s3_server
from tests.toolkit.coreos_disk import read_boot_file
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.acceptance

VHD_DYNAMIC = ("-o", "subformat=dynamic,force_size=on")
VHD_FIXED = ("-o", "subformat=fixed,force_size=on", "-S", "0")
FORMS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "RAW": ("RAW", "raw", ()),
    "VMDK": ("VMDK", "vmdk", ("-o", "subformat=streamOptimized")),
    "VHD of fixed size": ("VHD", "vpc", VHD_FIXED),
    "dynamic VHD": ("VHD", "vpc", VHD_DYNAMIC),
}
EXPORTED = {"vmdk": "vmdk", "vhd": "vpc", "raw": "raw"}
"""The names of qemu-img for the formats of exports."""
CONFIG = b'{"ignition":{"version":"3.3.0"}}'
Import = tuple[ImageUpload, dict[str, Any]]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def role(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    directory = tmp_path_factory.mktemp("jobs")
    with running_role(directory, **ec2_settings(directory, s3), JOBS_WORKER_SLOTS="2") as running:
        yield running


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_disk(tmp_path_factory.mktemp("disk") / "disk.raw")


@pytest.fixture(scope="module")
def imported(role: RunningRole, s3: S3Server, disk: Path) -> Callable[[str], Import]:
    """Import the disk in a form, once; return upload and task."""
    ec2, client = ec2_client(role.url), s3_client(s3)

    @cache
    def import_(form: str) -> Import:
        image_format, driver, options = FORMS[form]
        path = disk if driver == "raw" else converted(disk, "raw", driver, *options)
        upload = ImageUpload(client, path, image_format, form.replace(" ", "-"))
        begun = ec2.import_volume(AvailabilityZone="here", Description=form, **upload.parameters)
        upload.put()  # EC2's clients upload after the request
        (task,) = wait_for_import(ec2, begun["ConversionTask"]["ConversionTaskId"])
        return upload, task

    return import_


def volume_id(task: dict[str, Any]) -> str:
    return str(task["ImportVolume"]["Volume"]["Id"])


def instance_id(task: dict[str, Any]) -> str:
    """Return the id by which an imported volume is exported."""
    return volume_id(task).replace("vol-", "i-")


def raw_disk(role: RunningRole, image_id: str, directory: Path) -> Path:
    """Download an image of the catalog, and return its disk."""
    path = directory / f"{image_id}.qcow2"
    path.write_bytes(role.get(f"/images/{image_id}/download").body)
    return converted(path, "qcow2", "raw")


def download(s3: S3Server, key: str, directory: Path) -> Path:
    path = directory / key.rpartition("/")[2]
    s3_client(s3).download_file(BUCKET, key, str(path))
    return path


@pytest.mark.parametrize("form", ["RAW", "VMDK", soaked("VHD of fixed size"), soaked("dynamic VHD")])
def test_imported_disk_is_the_one_that_was_uploaded(
    role: RunningRole,
    imported: Callable[[str], Import],
    disk: Path,
    tmp_path: Path,
    form: str,
) -> None:
    upload, task = imported(form)
    image = role.get(f"/images/{volume_id(task)}").json()
    assert (image["format"], image["instance_id"]) == ("qcow2", instance_id(task))
    answer = role.get(f"/images/{volume_id(task)}/download")
    assert hashlib.sha256(answer.body).hexdigest() == image["sha256"]
    assert raw_disk(role, volume_id(task), tmp_path).read_bytes() == disk.read_bytes()
    assert upload.is_deleted()
    assert task["ImportVolume"]["BytesConverted"] == upload.size


@pytest.fixture(scope="module")
def exported(role: RunningRole, imported: Callable[[str], Import]) -> Callable[[str], dict[str, Any]]:
    """Export the disk in a form, once, from an import in another, or a base disk; return the task."""
    ec2 = ec2_client(role.url)
    wanted: Mapping[str, tuple[str, str, dict[str, str]]] = {
        "vmdk": ("RAW", "vmware", {"DiskImageFormat": "VMDK"}),
        "vhd": ("VMDK", "microsoft", {"DiskImageFormat": "VHD"}),
        "raw": ("dynamic VHD", "citrix", {"DiskImageFormat": "RAW"}),
        "ova": ("VHD of fixed size", "vmware", {"ContainerFormat": "ova"}),
        "base": ("", "vmware", {}),
    }

    @cache
    def export(form: str) -> dict[str, Any]:
        source, environment, members = wanted[form]
        alias = instance_id(imported(source)[1]) if source else base_disk(role)["instance_id"]
        begun = ec2.create_instance_export_task(
            InstanceId=alias,
            TargetEnvironment=environment,
            ExportToS3Task={"S3Bucket": BUCKET, "S3Prefix": "exports/", **members},
            Description=form,
        )
        (task,) = wait_for_export(ec2, begun["ExportTask"]["ExportTaskId"])
        return task

    return export


@pytest.mark.parametrize("form", ["vmdk", soaked("vhd"), soaked("raw")])
def test_exported_disk_is_the_one_that_was_imported(
    exported: Callable[[str], dict[str, Any]], s3: S3Server, disk: Path, tmp_path: Path, form: str
) -> None:
    task = exported(form)
    key = f"exports/{task['ExportTaskId']}.{form}"
    assert task["ExportToS3Task"]["S3Key"] == key
    assert raw_sha256(download(s3, key, tmp_path), EXPORTED[form]) == raw_sha256(disk, "raw")


@pytest.mark.soak
def test_exported_appliance_has_the_disk(
    exported: Callable[[str], dict[str, Any]], s3: S3Server, disk: Path, tmp_path: Path
) -> None:
    path = download(s3, exported("ova")["ExportToS3Task"]["S3Key"], tmp_path)
    unpack(path, tmp_path)
    (vmdk,) = tmp_path.glob("*.vmdk")
    assert raw_sha256(vmdk, "vmdk") == raw_sha256(disk, "raw")


@pytest.mark.soak
def test_base_disk_is_exported_by_its_alias(
    exported: Callable[[str], dict[str, Any]], s3: S3Server, tmp_path: Path
) -> None:
    path = download(s3, exported("base")["ExportToS3Task"]["S3Key"], tmp_path)
    packed = unpack_sample_disk(tmp_path)
    assert raw_sha256(path, "vmdk") == hashlib.sha256(lzma.decompress(packed.read_bytes())).hexdigest()


def test_imported_disk_is_customized_and_exported(role: RunningRole, s3: S3Server, tmp_path: Path) -> None:
    """Import CoreOS, compose an image of it by composer's API, and export that."""
    raw = tmp_path / "coreos.raw"
    raw.write_bytes(lzma.decompress(unpack_sample_disk(tmp_path).read_bytes()))
    upload = ImageUpload(s3_client(s3), converted(raw, "raw", "vmdk", *FORMS["VMDK"][2]), "VMDK", "coreos")
    upload.put()
    ec2 = ec2_client(role.url)
    disk_image = upload.parameters
    task = ec2.import_instance(
        Platform="Linux",
        DiskImages=[disk_image],
        LaunchSpecification={"Architecture": "x86_64", "InstanceType": "m1.small"},
    )["ConversionTask"]
    (task,) = wait_for_import(ec2, task["ConversionTaskId"])
    alias = task["ImportInstance"]["InstanceId"]
    compose_id = role.start("minimal-raw", alias, config=CONFIG)
    assert role.wait_until_ended(compose_id)["status"] == "success", role.log
    (composed,) = (image for image in images_of(role) if image["source"] == f"compose:{compose_id}")
    task = ec2.create_instance_export_task(
        InstanceId=composed["instance_id"],
        TargetEnvironment="citrix",
        ExportToS3Task={"S3Bucket": BUCKET, "DiskImageFormat": "RAW", "S3Prefix": "composed-"},
    )["ExportTask"]
    wait_for_export(ec2, task["ExportTaskId"])
    path = download(s3, f"composed-{task['ExportTaskId']}.raw", tmp_path)
    assert read_boot_file(path, "ignition/config.ign") == CONFIG
    statement = json.loads(role.get(f"/composes/{compose_id}/provenance").body)["items"][0]
    base, _ = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert base["uri"].startswith("urn:image-service:image:")


def test_imported_partition_is_exported_as_a_disk(role: RunningRole, s3: S3Server, tmp_path: Path) -> None:
    partition = tmp_path / "partition"
    run_client("mkfs.ext4", "-q", partition, "4M")
    upload = ImageUpload(s3_client(s3), partition, "RAW", "partition")
    upload.put()
    ec2 = ec2_client(role.url)
    task = ec2.import_instance(
        Platform="Linux",
        DiskImages=[upload.parameters],
        LaunchSpecification={"AdditionalInfo": json.dumps({"layout": "partition"})},
    )["ConversionTask"]
    (task,) = wait_for_import(ec2, task["ConversionTaskId"])
    task = ec2.create_instance_export_task(
        InstanceId=task["ImportInstance"]["InstanceId"],
        TargetEnvironment="citrix",
        ExportToS3Task={"S3Bucket": BUCKET, "DiskImageFormat": "RAW"},
    )["ExportTask"]
    wait_for_export(ec2, task["ExportTaskId"])
    disk = download(s3, task["ExportToS3Task"]["S3Key"], tmp_path)
    table = json.loads(run_client("sfdisk", "--json", disk))["partitiontable"]
    (entry,) = table["partitions"]
    content = disk.read_bytes()[entry["start"] * 512 :][: entry["size"] * 512]
    assert (table["label"], content) == ("gpt", partition.read_bytes())


def test_instance_has_disks_of_several_formats(
    role: RunningRole, s3: S3Server, disk: Path, tmp_path: Path
) -> None:
    second = make_disk(tmp_path / "second.raw", 6)
    vhd = converted(second, "raw", "vpc", *VHD_DYNAMIC)
    client, ec2 = s3_client(s3), ec2_client(role.url)
    uploads = [ImageUpload(client, disk, "RAW", "disk-1"), ImageUpload(client, vhd, "VHD", "disk-2")]
    for upload in uploads:
        upload.put()
    task = ec2.import_instance(Platform="Linux", DiskImages=[upload.parameters for upload in uploads])
    (task,) = wait_for_import(ec2, task["ConversionTask"]["ConversionTaskId"])
    instance = task["ImportInstance"]
    ids = [volume["Volume"]["Id"].replace("vol-", "i-") for volume in instance["Volumes"]]
    assert ids[0] == instance["InstanceId"]
    for volume, original in zip(instance["Volumes"], (disk, second), strict=True):
        stored = raw_disk(role, volume["Volume"]["Id"], tmp_path)
        assert stored.read_bytes() == original.read_bytes()
    assert all(upload.is_deleted() for upload in uploads)


def aws(role: RunningRole, *arguments: str) -> Any:
    """Run awscli, and return its output."""
    environment = {
        "PATH": os.environ["PATH"],
        "AWS_ACCESS_KEY_ID": EC2_KEY,
        "AWS_SECRET_ACCESS_KEY": EC2_SECRET,
        "AWS_DEFAULT_REGION": REGION,
    }
    command = [sys.executable, "-m", "awscli", "ec2", "--endpoint-url", role.url, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.soak
def test_awscli_exports_an_image(role: RunningRole, imported: Callable[[str], Import]) -> None:
    task = imported("VMDK")[1]
    shown = aws(role, "describe-conversion-tasks", "--conversion-task-ids", task["ConversionTaskId"])
    assert shown["ConversionTasks"][0]["State"] == "completed"
    target = ("--target-environment", "vmware", "--export-to-s3-task", f"S3Bucket={BUCKET},S3Prefix=cli-")
    made = aws(role, "create-instance-export-task", "--instance-id", instance_id(task), *target)
    task_id = made["ExportTask"]["ExportTaskId"]
    wait_for_export(ec2_client(role.url), task_id)
    aws(role, "wait", "export-task-completed", "--export-task-ids", task_id)
    assert made["ExportTask"]["ExportToS3Task"]["S3Key"] == f"cli-{task_id}.vmdk"


def test_other_tenant_sees_no_task_and_no_image(
    role: RunningRole,
    imported: Callable[[str], Import],
    exported: Callable[[str], dict[str, Any]],
) -> None:
    other = ec2_client(role.url, OTHER_KEY)
    assert other.describe_conversion_tasks()["ConversionTasks"] == []
    assert other.describe_export_tasks()["ExportTasks"] == []
    task = imported("RAW")[1]
    calls: list[tuple[Any, str]] = [
        (
            lambda: other.describe_conversion_tasks(ConversionTaskIds=[task["ConversionTaskId"]]),
            "InvalidConversionTaskId",
        ),
        (
            lambda: other.cancel_conversion_task(ConversionTaskId=task["ConversionTaskId"]),
            "InvalidConversionTaskId",
        ),
        (
            lambda: other.cancel_export_task(ExportTaskId=exported("vmdk")["ExportTaskId"]),
            "InvalidExportTaskID.NotFound",
        ),
        (
            lambda: other.create_instance_export_task(
                InstanceId=instance_id(task),
                TargetEnvironment="vmware",
                ExportToS3Task={"S3Bucket": BUCKET},
            ),
            "InvalidInstanceID.NotFound",
        ),
    ]
    for call, code in calls:
        with pytest.raises(ClientError) as caught:
            call()
        assert caught.value.response["Error"]["Code"] == code


def test_image_is_downloaded_by_ranges(role: RunningRole, imported: Callable[[str], Import]) -> None:
    path = f"/images/{volume_id(imported('RAW')[1])}/download"
    whole = role.get(path)
    part = role.get(path, {"Range": "bytes=100-199", "If-Match": whole.headers["ETag"]})
    assert (part.status, part.body) == (206, whole.body[100:200])
    assert part.headers["Repr-Digest"] == whole.headers["Repr-Digest"]


def test_nothing_secret_is_logged(
    role: RunningRole,
    imported: Callable[[str], Import],
    exported: Callable[[str], dict[str, Any]],
) -> None:
    imported("RAW")
    exported("vmdk")
    assert "X-Amz-Signature" not in role.log
    shown = fetch(f"{role.admin_url}/metrics").body.decode() + fetch(f"{role.admin_url}/").body.decode()
    assert "X-Amz" not in shown
