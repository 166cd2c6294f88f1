"""ImportImage, ImportSnapshot and ExportImage by boto3 and awscli: a running role and a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from botocore.exceptions import ClientError, WaiterError

from tests.acceptance.clients import run_client
from tests.jobs.ec2_clients import (
    EC2_KEY,
    EC2_SECRET,
    OTHER_KEY,
    converted,
    ec2_client,
    ec2_settings,
    images_of,
    make_disk,
    raw_sha256,
    s3_client,
)
from tests.jobs.running_role import RunningRole, running_role, wait_until
from tests.s3_server import BUCKET, REGION, S3Server, running_s3_server
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

pytestmark = pytest.mark.acceptance

DRIVERS = {
    "VMDK": ("vmdk", ("-o", "subformat=streamOptimized")),
    "VHD": ("vpc", ("-o", "subformat=dynamic,force_size=on")),
    "VHDX": ("vhdx", ()),
    "QCOW2": ("qcow2", ()),
}


@attrs.frozen
class Site:
    """A role, its client, and a disk in every format in an S3 server.

    Args:
        keys: of the objects, by format.
    """

    role: RunningRole
    s3: S3Server
    ec2: Any
    disk: Path
    keys: Mapping[str, str]

    def image_task(self, task_id: str) -> Any:
        return self.ec2.describe_import_image_tasks(ImportTaskIds=[task_id])["ImportImageTasks"][0]

    def wait_for_image(self, task_id: str) -> Any:
        wait_until(lambda: self.image_task(task_id)["Status"] != "active", lambda: self.role.log)
        return self.image_task(task_id)

    def snapshot_task(self, task_id: str) -> Any:
        found = self.ec2.describe_import_snapshot_tasks(ImportTaskIds=[task_id])["ImportSnapshotTasks"]
        return found[0]["SnapshotTaskDetail"]

    def wait_for_snapshot(self, task_id: str) -> Any:
        waiter = self.ec2.get_waiter("snapshot_imported")
        waiter.wait(ImportTaskIds=[task_id], WaiterConfig={"Delay": 1, "MaxAttempts": 200})
        return self.snapshot_task(task_id)

    def sha256(self, image_id: str, directory: Path) -> str:
        """Return the digest of the disk of an image in the catalog."""
        path = directory / f"{image_id}.qcow2"
        path.write_bytes(self.role.get(f"/images/{image_id}/download").body)
        return raw_sha256(path, "qcow2")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("jobs")
    disk = make_disk(tmp_path_factory.mktemp("disk") / "disk.raw")
    with (
        running_s3_server(tmp_path_factory.mktemp("s3")) as s3,
        running_role(directory, **ec2_settings(directory, s3), JOBS_WORKER_SLOTS="2") as role,
    ):
        yield Site(role, s3, ec2_client(role.url), disk, upload_in_every_format(s3_client(s3), disk))


def upload_in_every_format(client: Any, disk: Path) -> dict[str, str]:
    """Upload a disk; return the keys of the objects."""
    ova = disk.with_suffix(".ova")
    run_client(str(Path(sys.executable).with_name("image-toolkit")), "convert", disk, ova, "--format=ova")
    paths = {"RAW": disk, "OVA": ova}
    for name, (driver, options) in DRIVERS.items():
        paths[name] = converted(disk, "raw", driver, *options)
    keys = {name: f"disks/disk.{name.lower()}" for name in paths}
    for name, path in paths.items():
        client.put_object(Bucket=BUCKET, Key=keys[name], Body=path.read_bytes())
    return keys


def bucket_of(key: str) -> dict[str, Any]:
    return {"UserBucket": {"S3Bucket": BUCKET, "S3Key": key}}


ALL_FORMATS = ("RAW", "OVA", *DRIVERS)


@pytest.mark.parametrize(
    ("known", "formats"),
    [soaked("declared", ALL_FORMATS), soaked("detected", ALL_FORMATS), ("detected", ("OVA", "VHDX"))],
)
def test_images_are_imported(site: Site, tmp_path: Path, known: str, formats: Sequence[str]) -> None:
    """The next tests import RAW, VMDK and VHD; that of the worker imports QCOW2."""
    begun = {}
    for name in formats:
        key = site.keys[name]
        container = {**bucket_of(key), "Description": "first", "DeviceName": "/dev/sda1"}
        if known == "declared":
            container["Format"] = name.lower()
        begun[name] = site.ec2.import_image(
            DiskContainers=[container],
            Architecture="x86_64",
            BootMode="uefi",
            Description="a machine",
            LicenseType="BYOL",
            Platform="Linux",
            RoleName="vmimport",
            TagSpecifications=[{"ResourceType": "import-image-task", "Tags": [{"Key": "a", "Value": "b"}]}],
        )
    for name, answer in begun.items():
        assert answer["ImportTaskId"].startswith("import-ami-")
        assert (answer["Status"], answer["Progress"]) == ("active", "0")
        assert answer["StatusMessage"]
        task = site.wait_for_image(answer["ImportTaskId"])
        assert task["Status"] == "completed", task
        (detail,) = task.pop("SnapshotDetails")
        digits = task.pop("ImageId").removeprefix("ami-")
        assert task == {
            "ImportTaskId": f"import-ami-{digits}",
            "Architecture": "x86_64",
            "BootMode": "uefi",
            "Description": "a machine",
            "Encrypted": False,
            "LicenseType": "BYOL",
            "Platform": "Linux",
            "Progress": "100",
            "Status": "completed",
            "StatusMessage": "",
            "Tags": [{"Key": "a", "Value": "b"}],
        }
        stored = s3_client(site.s3).head_object(Bucket=BUCKET, Key=site.keys[name])
        assert detail == {
            **bucket_of(site.keys[name]),
            "Description": "first",
            "DeviceName": "/dev/sda1",
            "DiskImageSize": stored["ContentLength"],
            "Format": name,
            "Progress": "100",
            "SnapshotId": f"snap-{digits}",
            "Status": "completed",
            "StatusMessage": "",
        }
        assert site.sha256(f"ami-{digits}", tmp_path) == raw_sha256(site.disk, "raw")


@pytest.mark.parametrize("place", [soaked("bucket"), soaked("s3 URL"), "signed URL"])
def test_snapshot_is_imported(site: Site, tmp_path: Path, place: str) -> None:
    signed = s3_client(site.s3).generate_presigned_url(
        "get_object", {"Bucket": BUCKET, "Key": site.keys["VMDK"]}
    )
    containers: dict[str, dict[str, Any]] = {
        "bucket": bucket_of(site.keys["VMDK"]),
        "s3 URL": {"Url": f"s3://{BUCKET}/{site.keys['VMDK']}"},
        "signed URL": {"Url": signed},
    }
    begun = site.ec2.import_snapshot(
        Description="root", DiskContainer={"Format": "VMDK", **containers[place]}
    )
    assert begun["ImportTaskId"].startswith("import-snap-")
    assert begun["SnapshotTaskDetail"]["Status"] == "active"
    detail = site.wait_for_snapshot(begun["ImportTaskId"])
    assert detail["SnapshotId"].startswith("snap-")
    assert "X-Amz-Signature" not in str(detail)
    assert (detail["Description"], detail["Format"], detail["Progress"]) == ("root", "VMDK", "100")
    assert site.sha256(detail["SnapshotId"], tmp_path) == raw_sha256(site.disk, "raw")


def test_image_of_two_disks_is_imported_and_exported(site: Site, tmp_path: Path) -> None:
    containers = [{"Format": name, **bucket_of(site.keys[name])} for name in ("RAW", "VHD")]
    task = site.wait_for_image(site.ec2.import_image(DiskContainers=containers)["ImportTaskId"])
    assert [each["Format"] for each in task["SnapshotDetails"]] == ["RAW", "VHD"]
    assert len({each["SnapshotId"] for each in task["SnapshotDetails"]}) == 2
    begun = site.ec2.export_image(
        ImageId=task["ImageId"],
        DiskImageFormat="RAW",
        S3ExportLocation={"S3Bucket": BUCKET, "S3Prefix": "exports/"},
        Description="back",
        RoleName="vmimport",
    )
    task_id = begun["ExportImageTaskId"]
    assert {**begun, "ResponseMetadata": None} == {
        "Description": "back",
        "DiskImageFormat": "RAW",
        "ExportImageTaskId": task_id,
        "ImageId": task["ImageId"],
        "Progress": "0",
        "RoleName": "vmimport",
        "S3ExportLocation": {"S3Bucket": BUCKET, "S3Prefix": "exports/"},
        "Status": "active",
        "StatusMessage": "conversion pending",
        "Tags": [],
        "ResponseMetadata": None,
    }

    def status() -> str:
        (found,) = site.ec2.describe_export_image_tasks(ExportImageTaskIds=[task_id])["ExportImageTasks"]
        return str(found["Status"])

    wait_until(lambda: status() != "active", lambda: site.role.log)
    assert status() == "completed"
    exported = tmp_path / "exported.raw"
    exported.write_bytes((site.s3.directory / f"exports/{task_id}.raw").read_bytes())
    assert raw_sha256(exported, "raw") == raw_sha256(site.disk, "raw")


def test_failed_snapshot_ends_its_waiter_with_the_reason(site: Site, tmp_path: Path) -> None:
    """The tables behind its headers, which are right, are damaged."""
    path = converted(site.disk, "raw", "qcow2").rename(tmp_path / "damaged.qcow2")
    body = bytearray(path.read_bytes())
    table = int.from_bytes(body[40:48])
    body[table : table + 8] = b"\xff" * 8
    s3_client(site.s3).put_object(Bucket=BUCKET, Key="damaged.qcow2", Body=bytes(body))
    task_id = site.ec2.import_snapshot(DiskContainer=bucket_of("damaged.qcow2"))["ImportTaskId"]
    with pytest.raises(WaiterError, match="terminal failure"):
        site.wait_for_snapshot(task_id)
    detail = site.snapshot_task(task_id)
    assert detail["Status"] == "error"
    assert detail["StatusMessage"].startswith("image: "), detail


@pytest.mark.parametrize(
    ("container", "code", "reason"),
    [
        (bucket_of("absent"), "InvalidParameterValue", "status 404"),
        (
            {"UserBucket": {"S3Bucket": "secret-bucket", "S3Key": "k"}},
            "UnauthorizedOperation",
            "may not import from the bucket secret-bucket",
        ),
        ({"Url": "s3://secret-bucket/k"}, "UnauthorizedOperation", "secret-bucket"),
        ({"Url": "https://elsewhere.example/disk"}, "InvalidParameterValue", "EC2_OBJECT_STORES"),
        ({"Url": "http://169.254.169.254/latest"}, "InvalidParameterValue", "EC2_OBJECT_STORES"),
        ({"Url": "file:///etc/passwd"}, "InvalidParameterValue", "not an http or https URL"),
        ({"SnapshotId": "snap-1"}, "InvalidParameterValue", "SnapshotId is not supported"),
        ({"Format": "VMDK"}, "InvalidParameterValue", "either UserBucket or Url"),
        ({"Format": "ISO", **bucket_of("k")}, "InvalidParameterValue", "Format must be one of"),
        ({"Format": "VMDK", **bucket_of("disks/disk.raw")}, "InvalidParameterValue", "UserBucket: "),
    ],
    ids=range(10),
)
def test_other_sources_are_refused_at_once(
    site: Site, container: dict[str, Any], code: str, reason: str
) -> None:
    with pytest.raises(ClientError) as raised:
        site.ec2.import_image(DiskContainers=[container])
    error = raised.value.response["Error"]
    assert error["Code"] == code
    assert reason in error["Message"]
    assert "Signature" not in error["Message"]


def test_encryption_is_refused(site: Site) -> None:
    with pytest.raises(ClientError, match="not encrypted here"):
        site.ec2.import_snapshot(DiskContainer=bucket_of(site.keys["RAW"]), Encrypted=True)


def test_token_of_a_client_starts_one_task(site: Site) -> None:
    request = {"DiskContainers": [bucket_of(site.keys["RAW"])], "ClientToken": "once"}
    first, second = (site.ec2.import_image(**request)["ImportTaskId"] for _ in range(2))
    assert first == second
    with pytest.raises(ClientError) as raised:
        site.ec2.import_image(**{**request, "Description": "another"})
    assert raised.value.response["Error"]["Code"] == "IdempotentParameterMismatch"
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    site.wait_for_image(first)


def test_tasks_are_listed_by_pages_and_states_of_their_tenant(site: Site) -> None:
    ids = {
        site.ec2.import_image(DiskContainers=[bucket_of(site.keys["RAW"])])["ImportTaskId"] for _ in range(3)
    }
    for task_id in ids:
        site.wait_for_image(task_id)
    pages = site.ec2.get_paginator("describe_import_image_tasks").paginate(
        Filters=[{"Name": "task-state", "Values": ["completed"]}], PaginationConfig={"PageSize": 2}
    )
    sizes, found = [], set[str]()
    for page in pages:
        sizes.append(len(page["ImportImageTasks"]))
        found.update(each["ImportTaskId"] for each in page["ImportImageTasks"])
    assert ids <= found
    assert set(sizes[:-1]) == {2}
    active = [{"Name": "task-state", "Values": ["active"]}]
    assert site.ec2.describe_import_image_tasks(Filters=active)["ImportImageTasks"] == []
    other = ec2_client(site.role.url, OTHER_KEY)
    assert other.describe_import_image_tasks()["ImportImageTasks"] == []
    with pytest.raises(ClientError, match="InvalidConversionTaskId"):
        other.cancel_import_task(ImportTaskId=min(ids))


def test_import_is_cancelled_while_no_worker_is_there(site: Site, tmp_path: Path) -> None:
    s3_client(site.s3).put_object(Bucket=BUCKET, Key="waits.raw", Body=site.disk.read_bytes())
    settings = ec2_settings(tmp_path, site.s3)
    with running_role(tmp_path, **settings, JOBS_WORKER_SLOTS="0") as role:
        ec2 = ec2_client(role.url)
        begun = ec2.import_image(DiskContainers=[bucket_of("waits.raw")])["ImportTaskId"]
        snapshot = ec2.import_snapshot(DiskContainer=bucket_of("waits.raw"))["ImportTaskId"]
        wait_until(
            lambda: "no worker" in ec2.describe_import_image_tasks()["ImportImageTasks"][0]["StatusMessage"],
            lambda: role.log,
        )
        for task_id in (begun, snapshot):
            answer = ec2.cancel_import_task(ImportTaskId=task_id, CancelReason="not needed")
            del answer["ResponseMetadata"]
            assert answer == {"ImportTaskId": task_id, "PreviousState": "active", "State": "deleting"}
            with pytest.raises(ClientError, match="IncorrectState"):
                ec2.cancel_import_task(ImportTaskId=task_id)
        task = ec2.describe_import_image_tasks()["ImportImageTasks"][0]
        assert (task["Status"], task["StatusMessage"]) == ("deleted", "cancelled by the user: not needed")
        (found,) = ec2.describe_import_snapshot_tasks()["ImportSnapshotTasks"]
        assert found["SnapshotTaskDetail"]["Status"] == "deleted"
        assert images_of(role) == []


@pytest.fixture
def aws(site: Site) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        program = Path(sys.executable).with_name("aws")
        done = subprocess.run(
            [program, "--endpoint-url", site.role.url, "ec2", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "AWS_ACCESS_KEY_ID": EC2_KEY,
                "AWS_SECRET_ACCESS_KEY": EC2_SECRET,
                "AWS_DEFAULT_REGION": REGION,
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    return run


@pytest.mark.soak
def test_awscli_imports_and_exports(site: Site, aws: Callable[..., Any]) -> None:
    container = f"Format=vmdk,UserBucket={{S3Bucket={BUCKET},S3Key={site.keys['VMDK']}}}"
    snapshot = aws("import-snapshot", "--disk-container", container)["ImportTaskId"]
    site.wait_for_snapshot(snapshot)
    aws("wait", "snapshot-imported", "--import-task-ids", snapshot)
    image = aws("import-image", "--disk-containers", container)["ImportTaskId"]
    site.wait_for_image(image)
    (task,) = aws("describe-import-image-tasks", "--import-task-ids", image)["ImportImageTasks"]
    place = f"S3Bucket={BUCKET},S3Prefix=by-awscli/"
    options = ("--image-id", task["ImageId"], "--disk-image-format", "VMDK", "--s3-export-location", place)
    exported = aws("export-image", *options)["ExportImageTaskId"]

    def status() -> str:
        found = aws("describe-export-image-tasks", "--export-image-task-ids", exported)
        return str(found["ExportImageTasks"][0]["Status"])

    wait_until(lambda: status() != "active", lambda: site.role.log)
    assert status() == "completed"
