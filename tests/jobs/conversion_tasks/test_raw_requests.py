"""Requests written by hand, of several versions, from their signatures to the elements of their replies."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa
from defusedxml.ElementTree import fromstring
from twisted.internet.defer import Deferred

from image_service.jobs.database.tables import TASKS
from image_service.jobs.database.tasks import TaskFilter
from image_service.jobs.ec2.ec2_api import Ec2Api
from image_service.jobs.ec2.signatures import SignatureVerifier
from image_service.jobs.metrics.jobs_metrics import JobsMetrics
from image_service.jobs.task_model import TaskKind
from image_service.server.web_api.messages import ApiResponse
from tests.jobs.conversion_tasks.operating import BASE_DISK, Operating
from tests.jobs.ec2.signing import CREDENTIAL, NOW, signed_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.jobs.database.composing import Rows

VERSIONS = ("2016-11-15", "2014-06-15", "2010-11-15")  # boto3's, euca2ools', the first with imports
SECOND_KEY = attrs.evolve(CREDENTIAL, access_key="SECOND", secret_key="the-second-secret-key")
STRANGER = attrs.evolve(CREDENTIAL, access_key="STRANGER", tenant="43")
EXPORTED = BASE_DISK.instance_alias
MANIFEST = "https%3A%2F%2Fstore.example%2Fb%2Fm%3FX-Amz-Signature%3D0"
IMPORT_VOLUME = (
    "Action=ImportVolume&AvailabilityZone=one&Description=a+disk%26more&Image.Format=VMDK&Image.Bytes=1048576"
    f"&Image.ImportManifestUrl={MANIFEST}&Volume.Size=2"
)
IMPORT_INSTANCE = (
    "Action=ImportInstance&Platform=Linux&Description=two&LaunchSpecification.Architecture=x86_64"
    "&LaunchSpecification.InstanceType=m1.small&LaunchSpecification.GroupName.1=default"
    "&LaunchSpecification.UserData.Data=IyEvYmluL3NoCg%3D%3D&LaunchSpecification.Placement.AvailabilityZone=one"
    f"&DiskImage.1.Image.Format=RAW&DiskImage.1.Image.Bytes=1048576&DiskImage.1.Volume.Size=1"
    f"&DiskImage.1.Image.ImportManifestUrl={MANIFEST}"
    f"&DiskImage.7.Image.Format=VHD&DiskImage.7.Image.Bytes=2097152&DiskImage.7.Volume.Size=2"
    f"&DiskImage.7.Image.ImportManifestUrl={MANIFEST}&DiskImage.7.Description=data"
)
EXPORT = (
    f"Action=CreateInstanceExportTask&InstanceId={EXPORTED}&TargetEnvironment=vmware&Description=out"
    "&ExportToS3.DiskImageFormat=VMDK&ExportToS3.ContainerFormat=ova&ExportToS3.S3Bucket=exports"
    "&ExportToS3.S3Prefix=made%2F"
)
IMPORT_IMAGE = (
    "Action=ImportImage&ClientToken=one&Description=web&DiskContainer.1.Format=RAW"
    "&DiskContainer.1.UserBucket.S3Bucket=images&DiskContainer.1.UserBucket.S3Key=web.raw"
)
IMPORT_SNAPSHOT = (
    "Action=ImportSnapshot&ClientToken=one&DiskContainer.Format=RAW"
    "&DiskContainer.UserBucket.S3Bucket=images&DiskContainer.UserBucket.S3Key=web.raw"
)
EXPORT_IMAGE = (
    f"Action=ExportImage&ClientToken=one&ImageId=ami-{EXPORTED.removeprefix('i-')}&DiskImageFormat=VMDK"
    "&S3ExportLocation.S3Bucket=exports"
)
TAGS = (
    "&TagSpecification.1.ResourceType=export-instance-task&TagSpecification.1.Tag.1.Key=for"
    "&TagSpecification.1.Tag.1.Value=test"
)


class RawClient:
    """Sends requests, each in a second of its own, so that it has a signature of its own."""

    def __init__(self, operating: Operating) -> None:
        credentials = {each.access_key: each for each in (CREDENTIAL, SECOND_KEY, STRANGER)}
        verifier = SignatureVerifier(lambda: credentials, lambda: NOW)
        self._api = Ec2Api(verifier, operating.operations.handlers, JobsMetrics())
        self.sent = 0

    def send(self, form: str, version: str = VERSIONS[0], **signed: Any) -> ApiResponse:
        """Return the response to a request."""
        self.sent += 1
        signed = {"at": NOW + timedelta(seconds=self.sent), **signed}
        request = signed_request(f"{form}&Version={version}".encode(), **signed)
        outcome: list[Any] = []
        Deferred.fromCoroutine(self._api.respond(request)).addBoth(outcome.append)
        assert isinstance(outcome[0], ApiResponse), outcome
        return outcome[0]

    def texts(self, form: str, version: str = VERSIONS[0], **signed: Any) -> dict[str, str]:
        """Return the texts of a success by the paths of their elements, below the reply's own."""
        response = self.send(form, version, **signed)
        root = fromstring(response.body)
        namespace = f"{{http://ec2.amazonaws.com/doc/{version}/}}"
        operation = form.partition("&")[0].partition("=")[2]
        assert (response.status, root.tag) == (200, f"{namespace}{operation}Response"), response.body
        texts: dict[str, str] = {}

        def collect(element: Any, path: str) -> None:
            for child in element:
                collect(child, f"{path}/{child.tag.removeprefix(namespace)}".lstrip("/"))
            if not len(element):
                texts[path if path not in texts else f"{path}#{len(texts)}"] = element.text or ""

        collect(root, "")
        assert len(texts.pop("requestId")) == 32
        return texts

    def error(self, form: str, **signed: Any) -> tuple[int, str | None]:
        """Return the status and the code of an error."""
        response = self.send(form, **signed)
        return response.status, fromstring(response.body).findtext("Errors/Error/Code")


@pytest.fixture
def client(operating: Operating) -> RawClient:
    return RawClient(operating)


LISTS = {  # by the request that adds a task: its list, and in it the ids and states
    IMPORT_VOLUME: ("DescribeConversionTasks", "conversionTaskId", "state"),
    IMPORT_INSTANCE: ("DescribeConversionTasks", "conversionTaskId", "state"),
    EXPORT: ("DescribeExportTasks", "exportTaskId", "state"),
    IMPORT_IMAGE: ("DescribeImportImageTasks", "importTaskId", "status"),
    IMPORT_SNAPSHOT: ("DescribeImportSnapshotTasks", "importTaskId", "snapshotTaskDetail/status"),
    EXPORT_IMAGE: ("DescribeExportImageTasks", "exportImageTaskId", "status"),
}


@pytest.mark.parametrize("text", ["x", "[7]", '{"DiskImages": [7], "Disks": [7]}'])
@pytest.mark.parametrize("form", LISTS, ids=lambda form: form.partition("&")[0])
def test_task_with_a_damaged_row_hides_no_other(form: str, text: str, client: RawClient, rows: Rows) -> None:
    listing, id_member, state_member = LISTS[form]
    for number in range(2):
        client.texts(form.replace("ClientToken=one", f"ClientToken={number}"))
    damaged, other = rows.tasks.find(TaskFilter("org-42", list(TaskKind)))
    whole = described(client, listing, id_member)
    rows.write(sa.update(TASKS).where(TASKS.c.id == damaged.id).values(request=sa.literal(text)))
    found = described(client, listing, id_member)
    assert found.keys() == whole.keys() == {damaged.id, other.id}
    assert found[other.id] == whole[other.id]
    assert found[damaged.id][state_member] == "active"
    messages = [value for name, value in found[damaged.id].items() if name.endswith("tatusMessage")]
    assert messages == ["the row in the database is not as the service has written it"]
    cancel, parameter = (
        ("CancelExportTask", "ExportTaskId")
        if "Export" in listing
        else ("CancelConversionTask", "ConversionTaskId")
        if "Conversion" in listing
        else ("CancelImportTask", "ImportTaskId")
    )
    client.texts(f"Action={cancel}&{parameter}={damaged.id}")
    found = described(client, listing, id_member)
    assert found[damaged.id][state_member] in {"cancelled", "deleted"}
    assert found[other.id] == whole[other.id]


@pytest.mark.parametrize(
    "value", [7, 10**400, "x", [7], {"Made": "up"}], ids=["7", "1e400", "x", "list", "object"]
)
@pytest.mark.parametrize("form", LISTS, ids=lambda form: form.partition("&")[0])
def test_task_with_any_value_in_its_request_hides_no_other(
    form: str, value: object, client: RawClient, rows: Rows
) -> None:
    listing, id_member, _ = LISTS[form]
    for number in range(2):
        client.texts(form.replace("ClientToken=one", f"ClientToken={number}"))
    damaged, other = rows.tasks.find(TaskFilter("org-42", list(TaskKind)))
    whole = described(client, listing, id_member)
    for changed in replaced(damaged.request, value):
        rows.write(sa.update(TASKS).where(TASKS.c.id == damaged.id).values(request=changed))
        found = described(client, listing, id_member)
        assert found.keys() == whole.keys() == {damaged.id, other.id}
        assert found[other.id] == whole[other.id]


def replaced(document: Any, value: object) -> Iterator[Any]:
    """Yield the document as often as it has values, one of which is another each time."""
    yield value
    lists = enumerate(document) if isinstance(document, list) else ()
    for key, part in document.items() if isinstance(document, dict) else lists:
        for changed in replaced(part, value):
            copied = document.copy()
            copied[key] = changed
            yield copied


def described(client: RawClient, listing: str, id_member: str) -> dict[str, dict[str, str]]:
    """Return what a list shows of tasks, by their ids: texts by the paths of their elements."""
    response = client.send(f"Action={listing}")
    assert response.status == 200, response.body
    namespace = f"{{http://ec2.amazonaws.com/doc/{VERSIONS[0]}/}}"
    found = {}
    for item in fromstring(response.body)[1]:
        texts: dict[str, str] = {}
        for element in item:
            for path, each in [(element.tag, element), *((f"{element.tag}/{e.tag}", e) for e in element)]:
                if not len(each):
                    texts[path.replace(namespace, "")] = each.text or ""
        found[texts[id_member]] = texts
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_import_of_a_volume(version: str, client: RawClient, rows: Rows) -> None:
    texts = client.texts(IMPORT_VOLUME, version)
    task_id, volume_id = (
        texts.pop(f"conversionTask/{name}") for name in ("conversionTaskId", "importVolume/volume/id")
    )
    assert task_id.startswith("import-vol-")
    assert volume_id.startswith("vol-")
    expires = rows.clock.now + timedelta(hours=168)
    assert texts.pop("conversionTask/expirationTime")[:16] == f"{expires:%Y-%m-%dT%H:%M}"
    assert texts.pop("conversionTask/statusMessage")
    assert {path.removeprefix("conversionTask/"): text for path, text in texts.items() if text} == {
        "state": "active",
        "importVolume/availabilityZone": "one",
        "importVolume/bytesConverted": "0",
        "importVolume/description": "a disk&more",
        "importVolume/image/format": "VMDK",
        "importVolume/image/importManifestUrl": "https://store.example/b/m",
        "importVolume/image/size": "1048576",
        "importVolume/volume/size": "2",
    }
    described = client.texts(f"Action=DescribeConversionTasks&ConversionTaskId.1={task_id}", version)
    assert described["conversionTasks/item/conversionTaskId"] == task_id
    assert described["conversionTasks/item/importVolume/volume/id"] == volume_id
    cancel = f"Action=CancelConversionTask&ConversionTaskId={task_id}&ReasonMessage=not+needed"
    assert client.texts(cancel, version) == {"return": "true"}
    described = client.texts("Action=DescribeConversionTasks", version)
    assert described["conversionTasks/item/state"] == "cancelled"
    assert "not needed" in described["conversionTasks/item/statusMessage"]


@pytest.mark.parametrize("version", VERSIONS)
def test_import_of_an_instance(version: str, client: RawClient) -> None:
    texts = client.texts(IMPORT_INSTANCE, version)
    assert texts["conversionTask/conversionTaskId"].startswith("import-i-")
    assert texts["conversionTask/importInstance/instanceId"].startswith("i-")
    assert texts["conversionTask/importInstance/platform"] == "Linux"
    sizes = [text for path, text in texts.items() if "volumes/item/volume/size" in path]
    ids = [text for path, text in texts.items() if "volumes/item/volume/id" in path]
    assert sizes == ["1", "2"]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_export(version: str, client: RawClient) -> None:
    texts = client.texts(EXPORT, version)
    task_id = texts["exportTask/exportTaskId"]
    assert task_id.startswith("export-i-")
    assert {path.removeprefix("exportTask/"): text for path, text in texts.items() if text} == {
        "exportTaskId": task_id,
        "state": "active",
        "statusMessage": texts["exportTask/statusMessage"],
        "description": "out",
        "exportToS3/containerFormat": "ova",
        "exportToS3/diskImageFormat": "VMDK",
        "exportToS3/s3Bucket": "exports",
        "exportToS3/s3Key": f"made/{task_id}.ova",
        "instanceExport/instanceId": EXPORTED,
        "instanceExport/targetEnvironment": "vmware",
    }
    tagged = client.texts(EXPORT + TAGS, version)
    assert (tagged["exportTask/tagSet/item/key"], tagged["exportTask/tagSet/item/value"]) == ("for", "test")
    search = "Action=DescribeExportTasks&Filter.1.Name=tag%3Afor&Filter.1.Value.1=test"
    assert (
        client.texts(search, version)["exportTaskSet/item/exportTaskId"] == tagged["exportTask/exportTaskId"]
    )
    assert client.texts(f"Action=CancelExportTask&ExportTaskId={task_id}", version) == {"return": "true"}


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("Action=DescribeConversionTasks&ConversionTaskId.1=import-vol-0", "InvalidConversionTaskId"),
        ("Action=CancelConversionTask&ConversionTaskId=import-vol-0", "InvalidConversionTaskId"),
        ("Action=CancelConversionTask", "MissingParameter"),
        ("Action=DescribeExportTasks&ExportTaskId.1=export-i-0", "InvalidExportTaskID.NotFound"),
        ("Action=CancelExportTask&ExportTaskId=export-i-0", "InvalidExportTaskID.NotFound"),
        (IMPORT_VOLUME.replace("VMDK", "ISO"), "InvalidParameterValue"),
        (IMPORT_VOLUME.replace("store.example", "other.example"), "InvalidParameterValue"),
        (IMPORT_VOLUME.replace("&Volume.Size=2", ""), "MissingParameter"),
        (EXPORT.replace("vmware", "hyperv"), "InvalidParameterValue"),
        (EXPORT.replace(EXPORTED, "i-0"), "InvalidInstanceID.NotFound"),
        ("Action=DescribeInstances", "UnsupportedOperation"),
        ("Action=Describe", "InvalidAction"),
    ],
    ids=[
        *(
            "describe",
            "cancel",
            "no-id",
            "describe-export",
            "cancel-export",
            "format",
            "foreign-host",
            "no-size",
        ),
        *("environment", "image", "unsupported", "unknown"),
    ],
)
def test_refused_requests(form: str, code: str, client: RawClient) -> None:
    assert client.error(form) == (400, code)


def test_a_request_that_is_sent_again_changes_nothing_and_gets_the_first_answer(client: RawClient) -> None:
    for form, describe in (
        (IMPORT_VOLUME, "Action=DescribeConversionTasks"),
        (EXPORT, "Action=DescribeExportTasks"),
    ):
        first, again = (client.texts(form, at=NOW) for _ in range(2))
        assert first == again
        (task_id,) = (text for path, text in first.items() if path.endswith("TaskId"))
        described = client.texts(describe)
        assert [text for path, text in described.items() if "TaskId" in path] == [task_id]
        operation = describe.replace("Describe", "Cancel").removesuffix("s")
        name = operation.removeprefix("Action=Cancel").removesuffix("Task")
        cancel = f"{operation}&{name}TaskId={task_id}"
        assert [client.texts(cancel, at=NOW) for _ in range(2)] == [{"return": "true"}] * 2
        assert client.error(cancel) == (400, "IncorrectState")


@pytest.mark.parametrize(
    ("form", "others"),
    [
        (
            IMPORT_IMAGE,
            [
                IMPORT_IMAGE.replace("web.raw", "db.raw"),
                IMPORT_IMAGE.replace("&Description=web", ""),
                f"{IMPORT_IMAGE}&DiskContainer.2.UserBucket.S3Bucket=images&DiskContainer.2.UserBucket.S3Key=d",
                f"{IMPORT_IMAGE}{TAGS.replace('export-instance', 'import-image')}",
            ],
        ),
        (
            IMPORT_SNAPSHOT,
            [IMPORT_SNAPSHOT.replace("=RAW", "=VMDK"), f"{IMPORT_SNAPSHOT}&Description=web"],
        ),
        (
            EXPORT_IMAGE,
            [
                EXPORT_IMAGE.replace("VMDK", "VHD"),
                EXPORT_IMAGE.replace("exports", "images"),
                EXPORT_IMAGE.replace(EXPORTED.removeprefix("i-"), "0"),
            ],
        ),
    ],
    ids=["ImportImage", "ImportSnapshot", "ExportImage"],
)
def test_token_of_a_client_is_for_one_set_of_parameters(
    form: str, others: list[str], client: RawClient, operating: Operating
) -> None:
    first = client.texts(form)
    reordered = "&".join(reversed(form.split("&")[1:]))
    assert client.texts(f"{form.partition('&')[0]}&{reordered}") == first
    for other in others:
        refused = (400, "IdempotentParameterMismatch")
        assert [client.error(other, at=NOW) for _ in range(2)] == [refused, refused]
    assert client.texts(form) == first
    assert len(operating.engine.started) == 1
    assert client.texts(form.replace("=one", "=ONE")) != first
    assert client.texts(form, credential=SECOND_KEY) != first


def test_token_of_a_client_is_for_one_operation(client: RawClient, operating: Operating) -> None:
    for form in (IMPORT_IMAGE, IMPORT_SNAPSHOT, EXPORT_IMAGE):
        client.texts(form)
    assert len(operating.engine.started) == 3


def test_token_of_a_refused_request_starts_the_next_one(client: RawClient) -> None:
    assert client.error(IMPORT_IMAGE.replace("=RAW", "=ISO")) == (400, "InvalidParameterValue")
    assert client.texts(IMPORT_IMAGE)["importTaskId"].startswith("import-ami-")


def test_refusal_of_a_token_outlives_the_token(client: RawClient, rows: Rows) -> None:
    client.texts(IMPORT_IMAGE)
    other = IMPORT_IMAGE.replace("web.raw", "db.raw")
    rows.clock.advance(60)
    assert client.error(other, at=NOW) == (400, "IdempotentParameterMismatch")
    rows.tasks.forget_answers(rows.clock() - timedelta(seconds=30))
    assert client.error(other, at=NOW) == (400, "IdempotentParameterMismatch")
    assert client.texts(other)


def test_keys_of_a_tenant_see_the_same_tasks_and_others_see_none(client: RawClient) -> None:
    task_id = client.texts(IMPORT_VOLUME)["conversionTask/conversionTaskId"]
    describe = f"Action=DescribeConversionTasks&ConversionTaskId.1={task_id}"
    assert client.texts(describe, credential=SECOND_KEY)["conversionTasks/item/conversionTaskId"] == task_id
    assert client.error(describe, credential=STRANGER) == (400, "InvalidConversionTaskId")
    assert client.texts("Action=DescribeConversionTasks", credential=STRANGER) == {"conversionTasks": ""}
    cancel = f"Action=CancelConversionTask&ConversionTaskId={task_id}"
    assert client.error(cancel, credential=STRANGER) == (400, "InvalidConversionTaskId")


def test_dry_runs_change_nothing(client: RawClient) -> None:
    assert client.error(f"{IMPORT_VOLUME}&DryRun=true") == (412, "DryRunOperation")
    assert client.texts("Action=DescribeConversionTasks") == {"conversionTasks": ""}
