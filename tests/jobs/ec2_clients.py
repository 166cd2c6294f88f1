"""Clients of EC2's API as their users have them: boto3, an S3 server, manifests, and waiters of botocore."""

from __future__ import annotations

import hashlib
import json
import subprocess
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement, tostring

import attrs
import boto3
from botocore.config import Config

from tests.acceptance.clients import needs_client, run_client
from tests.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.jobs.running_role import RunningRole
    from tests.s3_server import S3Server

_MIB = 2**20
PART_BYTES = 10 * _MIB
EC2_KEY = "AKIACLIENTOFTESTS"
EC2_SECRET = "secret-key-of-a-client-of-tests"
OTHER_KEY = "AKIAOTHERTENANT"
_WAIT = {"Delay": 1, "MaxAttempts": 200}
_EXPIRES_SECONDS = 3600


def ec2_settings(directory: Path, s3: S3Server) -> dict[str, str]:
    """Return the variables with which a role serves EC2's API to two tenants, and imports from a server."""
    return {**s3.environment, **import_settings(directory, f"http://127.0.0.1:{s3.port}")}


def import_settings(directory: Path, object_store: str) -> dict[str, str]:
    """Return the variables with which a role serves EC2's API to two tenants, and imports from an origin."""
    path = directory / "ec2.json"
    keys = [
        {
            "access_key": access_key,
            "secret_key": EC2_SECRET,
            "tenant": tenant,
            "operations": ["*"],
            "buckets": [BUCKET],
        }
        for access_key, tenant in ((EC2_KEY, ""), (OTHER_KEY, "org-2"))
    ]
    path.touch(mode=0o600)
    path.write_text(json.dumps(keys))
    return {
        "EC2_CREDENTIALS_FILE": str(path),
        "EC2_OBJECT_STORES": object_store,
        "IMPORT_POLL_INTERVAL": "1",
    }


def ec2_client(url: str, access_key: str = EC2_KEY) -> Any:
    """Return boto3's client for a role."""
    return boto3.client(
        "ec2",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key=EC2_SECRET,
        config=Config(retries={"mode": "standard", "total_max_attempts": 10}),
    )


def s3_client(s3: S3Server) -> Any:
    """Return boto3's client for an S3 server."""
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{s3.port}",
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
        ),
    )


@attrs.frozen
class ImageUpload:
    """An image that a client uploads in parts, with a manifest, as euca2ools does.

    Args:
        client: of S3.
        path: of the image.
        format: as EC2 names it.
        name: prefix of the keys.
        volume_gib: GiB of the volume.
    """

    client: Any = attrs.field(repr=False)
    path: Path
    format: str
    name: str
    volume_gib: int = 1

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of ImportVolume, and of a disk of ImportInstance."""
        return {
            "Image": {
                "Format": self.format,
                "Bytes": self.size,
                "ImportManifestUrl": self._sign("get_object", self.manifest_key),
            },
            "Volume": {"Size": self.volume_gib},
        }

    @property
    def size(self) -> int:
        """Bytes of the image: of VMDK, those of its disk."""
        return virtual_size(self.path, "vmdk") if self.format == "VMDK" else self.path.stat().st_size

    @property
    def manifest_key(self) -> str:
        """The key of the manifest."""
        return f"{self.name}/manifest.xml"

    @property
    def keys(self) -> list[str]:
        """The keys of the parts."""
        return [f"{self.name}/part-{number}" for number, _ in enumerate(self._ranges())]

    def put_manifest(self) -> None:
        """Upload the manifest."""
        root = Element("manifest")
        for name, text in (
            ("version", "2010-11-15"),
            ("file-format", self.format),
            ("self-destruct-url", self._sign("delete_object", self.manifest_key)),
        ):
            SubElement(root, name).text = text
        importer = SubElement(root, "importer")
        for name in ("name", "version", "release"):
            SubElement(importer, name).text = "tests"
        image = SubElement(root, "import")
        SubElement(image, "size").text = str(self.size)
        SubElement(image, "volume-size").text = str(self.volume_gib)
        ranges = self._ranges()
        parts = SubElement(image, "parts", count=str(len(ranges)))
        for index, (key, (start, end)) in enumerate(zip(self.keys, ranges, strict=True)):
            part = SubElement(parts, "part", index=str(index))
            SubElement(part, "byte-range", start=str(start), end=str(end - 1))
            SubElement(part, "key").text = key
            for name in ("head", "get", "delete"):
                SubElement(part, f"{name}-url").text = self._sign(f"{name}_object", key)
        self.client.put_object(Bucket=BUCKET, Key=self.manifest_key, Body=tostring(root))

    def put_parts(self) -> None:
        """Upload the parts."""
        with self.path.open("rb") as file:
            for key, (start, end) in zip(self.keys, self._ranges(), strict=True):
                self.client.put_object(Bucket=BUCKET, Key=key, Body=file.read(end - start))

    def put(self) -> None:
        """Upload everything."""
        self.put_manifest()
        self.put_parts()

    def is_deleted(self) -> bool:
        """Return True if neither parts nor manifest are there."""
        return "Contents" not in self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.name}/")

    def _ranges(self) -> Sequence[tuple[int, int]]:
        size = self.path.stat().st_size
        return [(start, min(start + PART_BYTES, size)) for start in range(0, size, PART_BYTES)]

    def _sign(self, operation: str, key: str) -> str:
        place = {"Bucket": BUCKET, "Key": key}
        return str(self.client.generate_presigned_url(operation, place, _EXPIRES_SECONDS))


def wait_for_import(ec2: Any, *task_ids: str) -> list[dict[str, Any]]:
    """Return the tasks when botocore's waiter says that they are completed."""
    waiter = ec2.get_waiter("conversion_task_completed")
    waiter.wait(ConversionTaskIds=list(task_ids), WaiterConfig=_WAIT)
    return list(ec2.describe_conversion_tasks(ConversionTaskIds=list(task_ids))["ConversionTasks"])


def wait_for_export(ec2: Any, *task_ids: str) -> list[dict[str, Any]]:
    """Return the tasks when botocore's waiter says that they are completed."""
    waiter = ec2.get_waiter("export_task_completed")
    waiter.wait(ExportTaskIds=list(task_ids), WaiterConfig=_WAIT)
    return list(ec2.describe_export_tasks(ExportTaskIds=list(task_ids))["ExportTasks"])


def images_of(role: RunningRole) -> list[dict[str, Any]]:
    """Return the images of the catalog that have been stored."""
    items = json.loads(role.get("/images?size=1000").body)["items"]
    return [image for image in items if image["source"] != "base"]


def base_disk(role: RunningRole) -> dict[str, Any]:
    """Return a base disk of the catalog."""
    document: dict[str, Any] = json.loads(role.get("/images?size=1").body)["items"][0]
    assert document["source"] == "base"
    return document


def make_disk(path: Path, mebibytes: int = 24) -> Path:
    """Make a raw disk with a partition table and some data, the same at each call."""
    with path.open("wb") as file:
        file.truncate(mebibytes * _MIB)
    subprocess.run(
        [needs_client("sfdisk"), "--quiet", str(path)],
        input=b"label: gpt\nlabel-id: 9F3B7C1E-0000-4000-8000-000000000001\n"
        b"start=2048, uuid=9F3B7C1E-0000-4000-8000-000000000002\n",
        check=True,
        timeout=60,
    )
    with path.open("r+b") as file:
        for offset in (_MIB, mebibytes // 2 * _MIB):
            file.seek(offset)
            file.write(hashlib.shake_256(b"disk").digest(_MIB))
    return path


def converted(path: Path, driver: str, to: str, *options: str) -> Path:
    """Convert an image by qemu-img, beside it."""
    output = path.with_suffix(f".{to}.{len(options)}")
    run_client("qemu-img", "convert", "-f", driver, "-O", to, *options, path, output)
    return output


def virtual_size(path: Path, driver: str) -> int:
    """Return the bytes of a disk."""
    shown = run_client("qemu-img", "info", "--output=json", "-f", driver, path)
    return int(json.loads(shown)["virtual-size"])


def raw_sha256(path: Path, driver: str) -> str:
    """Return the digest of the disk in an image, as qemu-img reads it."""
    raw = path if driver == "raw" else converted(path, driver, "raw")
    with raw.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
