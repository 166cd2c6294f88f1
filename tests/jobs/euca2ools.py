"""euca2ools 3.4: its programs where they are installed, and their requests and readings replayed anywhere."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode, urlsplit
from uuid import uuid4
from xml.etree.ElementTree import Element, SubElement, tostring

import attrs
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from defusedxml.ElementTree import fromstring

from tests.acceptance.service import fetch
from tests.jobs.ec2_clients import EC2_KEY, EC2_SECRET, PART_BYTES, s3_client
from tests.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.s3_server import S3Server

VERSION = "2015-10-01"
_EXPIRES_SECONDS = 7 * 86400
_GIB = 2**30
_LISTS = {"conversionTasks", "volumes"}
_TIMEOUT_SECONDS = 300
_FALSE = {"LaunchSpecification.Monitoring.Enabled": "false"}
"""The program sends it without --monitor, too."""


class ImportPrograms(Protocol):
    """The programs for imports. What they print is returned as values by their labels."""

    def import_volume(self, disk: Path, *options: str) -> Mapping[str, str]:
        """Run ``euca-import-volume``."""

    def import_instance(self, disk: Path, *options: str) -> Mapping[str, str]:
        """Run ``euca-import-instance``."""

    def resume_import(self, disk: Path, task: str) -> None:
        """Run ``euca-resume-import``."""

    def delete_disk_image(self, task: str) -> None:
        """Run ``euca-delete-disk-image``."""

    def describe(self, task: str) -> Mapping[str, str]:
        """Run ``euca-describe-conversion-tasks``."""

    def cancel(self, task: str) -> None:
        """Run ``euca-cancel-conversion-task``."""


@attrs.frozen
class InstalledEuca2ools:
    """The programs of a directory, which the variable ``EUCA2OOLS`` names."""

    directory: Path
    url: str
    store_port: int

    def import_volume(self, disk: Path, *options: str) -> Mapping[str, str]:
        place = ("-f", "raw", "-z", "here", "-b", BUCKET)
        return _read_printed(self._run("import-volume", str(disk), *place, *options, uses_s3=True))

    def import_instance(self, disk: Path, *options: str) -> Mapping[str, str]:
        place = ("-f", "raw", "-t", "m1.small", "-a", "x86_64", "-p", "Linux", "-b", BUCKET)
        return _read_printed(self._run("import-instance", str(disk), *place, *options, uses_s3=True))

    def resume_import(self, disk: Path, task: str) -> None:
        self._run("resume-import", str(disk), "-t", task, uses_s3=True)

    def delete_disk_image(self, task: str) -> None:
        self._run("delete-disk-image", "-t", task, uses_s3=True)

    def describe(self, task: str) -> Mapping[str, str]:
        return _read_printed(self._run("describe-conversion-tasks", task))

    def cancel(self, task: str) -> None:
        self._run("cancel-conversion-task", task)

    def _run(self, program: str, *arguments: str, uses_s3: bool = False) -> str:
        owner = ("-o", ACCESS_KEY, "-w", SECRET_KEY) if uses_s3 else ()
        done = subprocess.run(
            [self.directory / f"euca-{program}", *arguments, *owner],
            env={
                "PATH": os.environ["PATH"],
                "EC2_URL": f"{self.url}/",
                "S3_URL": f"http://127.0.0.1:{self.store_port}/",
                "AWS_ACCESS_KEY_ID": EC2_KEY,
                "AWS_SECRET_ACCESS_KEY": EC2_SECRET,
                "AWS_DEFAULT_REGION": REGION,
                "AWS_AUTH_REGION": REGION,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
        return done.stdout


@attrs.frozen
class ReplayedEuca2ools:
    """The requests that the programs send, in their order, and what they read of the replies."""

    url: str
    s3: S3Server

    def import_volume(self, disk: Path, *options: str) -> Mapping[str, str]:
        parameters = {**self._disk("", disk), "AvailabilityZone": "here"}
        return self._import("ImportVolume", disk, parameters, options)

    def import_instance(self, disk: Path, *options: str) -> Mapping[str, str]:
        parameters = {
            **self._disk("DiskImage.1.", disk),
            **_FALSE,
            "LaunchSpecification.Architecture": "x86_64",
            "LaunchSpecification.InstanceType": "m1.small",
            "Platform": "Linux",
        }
        return self._import("ImportInstance", disk, parameters, options)

    def resume_import(self, disk: Path, task: str) -> None:
        (found,) = self._describe(task)
        assert found["conversionTaskId"] == task
        volume = found.get("importVolume") or found["importInstance"]["volumes"][0]
        url = urlsplit(volume["image"]["importManifestUrl"])
        assert url.netloc == f"127.0.0.1:{self.s3.port}"
        bucket, manifest_key = url.path.removeprefix("/").split("/", 1)
        client, size = s3_client(self.s3), disk.stat().st_size
        names = [
            f"{manifest_key.rsplit('/', 1)[0]}/{disk.name}.part.{number}"
            for number in range(-(-size // PART_BYTES))
        ]
        if not _is_there(client, bucket, manifest_key):
            manifest = self._manifest(client, manifest_key, volume, names, size)
            client.put_object(Bucket=bucket, Key=manifest_key, Body=manifest)
        with disk.open("rb") as file:
            for name in names:
                part = file.read(PART_BYTES)
                if not _is_there(client, bucket, name):
                    client.put_object(Bucket=bucket, Key=name, Body=part)

    def delete_disk_image(self, task: str) -> None:
        (found,) = self._describe(task)
        volume = found.get("importVolume") or found["importInstance"]["volumes"][0]
        path = urlsplit(volume["image"]["importManifestUrl"]).path
        bucket, key = path.removeprefix("/").split("/", 1)
        client = s3_client(self.s3)
        manifest = fromstring(client.get_object(Bucket=bucket, Key=key)["Body"].read())
        for name in [*(str(part.findtext("key")) for part in manifest.iter("part")), key]:
            client.delete_object(Bucket=bucket, Key=name)

    def describe(self, task: str) -> Mapping[str, str]:
        return _labelled(self._describe(task)[0])

    def cancel(self, task: str) -> None:
        self._ask("CancelConversionTask", {"ConversionTaskId": task})

    def _import(
        self, action: str, disk: Path, parameters: Mapping[str, str], options: Sequence[str]
    ) -> Mapping[str, str]:
        given = {_PARAMETERS[name]: value for name, value in zip(*[iter(_valued(options))] * 2, strict=True)}
        task = self._ask(action, {**parameters, **given})["conversionTask"]
        if "--no-upload" not in options:
            self.resume_import(disk, task["conversionTaskId"])
        return _labelled(task)

    def _disk(self, prefix: str, disk: Path) -> dict[str, str]:
        size = disk.stat().st_size
        place = {"Bucket": BUCKET, "Key": f"{uuid4()}{disk}.manifest.xml"}
        url = s3_client(self.s3).generate_presigned_url("get_object", place, _EXPIRES_SECONDS)
        return {
            f"{prefix}Image.Format": "RAW",
            f"{prefix}Image.Bytes": str(size),
            f"{prefix}Image.ImportManifestUrl": url,
            f"{prefix}Volume.Size": str(-(-size // _GIB)),
        }

    def _manifest(self, client: Any, key: str, volume: Any, names: list[str], size: int) -> bytes:
        def sign(operation: str, name: str) -> str:
            place = {"Bucket": BUCKET, "Key": name}
            return str(client.generate_presigned_url(f"{operation}_object", place, _EXPIRES_SECONDS))

        root = Element("manifest")
        SubElement(root, "version").text = "2010-11-15"
        SubElement(root, "file-format").text = volume["image"]["format"]
        importer = SubElement(root, "importer")
        for name, text in (("name", "euca2ools"), ("version", "3.4.1"), ("release", "0")):
            SubElement(importer, name).text = text
        SubElement(root, "self-destruct-url").text = sign("delete", key)
        image = SubElement(root, "import")
        SubElement(image, "size").text = str(int(volume["image"]["size"]))
        SubElement(image, "volume-size").text = str(int(volume["volume"]["size"]))
        parts = SubElement(image, "parts", count=str(len(names)))
        for index, name in enumerate(names):
            part = SubElement(parts, "part", index=str(index))
            end = min((index + 1) * PART_BYTES, size) - 1
            SubElement(part, "byte-range", start=str(index * PART_BYTES), end=str(end))
            SubElement(part, "key").text = name
            for operation in ("head", "get", "delete"):
                SubElement(part, f"{operation}-url").text = sign(operation, name)
        return bytes(tostring(root, xml_declaration=True, encoding="UTF-8"))

    def _describe(self, task: str) -> list[Any]:
        answer = self._ask("DescribeConversionTasks", {"ConversionTaskId.1": task})
        return list(answer["conversionTasks"])

    def _ask(self, action: str, parameters: Mapping[str, str]) -> Any:
        """Send a request that is signed as theirs: all fields but User-Agent and Connection."""
        body = urlencode({"Action": action, "Version": VERSION, **parameters})
        fields = {
            "Host": urlsplit(self.url).netloc,
            "Accept": "*/*",
            "Accept-Encoding": "gzip, deflate",
            "Content-Length": str(len(body)),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        request = AWSRequest("POST", f"{self.url}/", fields, body)
        SigV4Auth(Credentials(EC2_KEY, EC2_SECRET), "ec2", REGION).add_auth(request)
        answer = fetch(request.url, "POST", headers=dict(request.headers), body=body.encode())
        assert answer.status == 200, answer.body
        return _read(fromstring(answer.body))


_PARAMETERS = {
    "-d": "Description",
    "-g": "LaunchSpecification.GroupName.1",
    "-z": "LaunchSpecification.Placement.AvailabilityZone",
    "--key": "LaunchSpecification.KeyName",
    "--instance-initiated-shutdown-behavior": "LaunchSpecification.InstanceInitiatedShutdownBehavior",
    "--private-ip-address": "LaunchSpecification.PrivateIpAddress",
    "--subnet": "LaunchSpecification.SubnetId",
    "--user-data": "LaunchSpecification.UserData.Data",
    "--user-data-file": "LaunchSpecification.UserData",
}
"""The parameters that options become; the replay does not encode user data."""


def _valued(options: Sequence[str]) -> list[str]:
    return [option for option in options if option != "--no-upload"]


def _is_there(client: Any, bucket: str, key: str) -> bool:
    try:
        client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        return False
    return True


def _read(element: Element) -> Any:
    """Return an element as requestbuilder does: texts, objects, and lists of the elements that it names."""
    children = list(element)
    names = [child.tag.rpartition("}")[2] for child in children]
    if element.tag.rpartition("}")[2] in _LISTS:
        return [_read(child) for child in children]
    if not children:
        return element.text
    return {name: _read(child) for name, child in zip(names, children, strict=True)}


def _labelled(task: Any) -> dict[str, str]:
    """Return what the programs print of a task, by its labels."""
    volumes = [task["importVolume"]] if task.get("importVolume") else task["importInstance"]["volumes"]
    image, volume = volumes[0]["image"], volumes[0]["volume"]
    return {
        "TaskType": "IMPORTVOLUME" if task.get("importVolume") else "IMPORTINSTANCE",
        "TaskId": task["conversionTaskId"],
        "ExpirationTime": task["expirationTime"],
        "Status": task["state"],
        "DiskImageFormat": image["format"],
        "DiskImageSize": image["size"],
        "VolumeId": volume["id"],
        "VolumeSize": volume["size"],
    }


def _read_printed(text: str) -> dict[str, str]:
    """Return the labels and values that a program has printed; those of the task come first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = line.removeprefix("DISKIMAGE\t").split("\t")
        for label, value in zip(words[::2], words[1::2], strict=False):
            found.setdefault(label, value)
    return found
