"""The composer API against its own document, and against osbuild-composer's where that is present."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from openapi_schema_validator import OAS30Validator
from openapi_spec_validator import validate

from image_service.jobs.model import (
    Artifact,
    ComposeState,
    ImageType,
    JobError,
    JobProgress,
    UploadResult,
    UploadTarget,
    job_id_of,
)
from tests.jobs.composer.composing import compose_request
from tests.jobs.database.composing import make_image
from tests.jobs.fixtures import upstream_document

if TYPE_CHECKING:
    from tests.jobs.composer.composing import Composer

OURS = {
    ("/composes/{}/cancel", "post"),
    ("/composes/{}/provenance", "get"),
    ("/composes/{}/statement", "get"),
    ("/images", "get"),
    ("/images/{}", "get"),
    ("/images/{}", "delete"),
    ("/images/{}/download", "get"),
}
THEIRS = {
    ("/composes/{}/clone", "post"),
    ("/clones/{}", "get"),
    ("/depsolve/blueprint", "post"),
    ("/search/packages", "post"),
}
PARTS = ("/metadata", "/logs", "/manifests", "/sboms", "/provenance", "/statement", "/download")
BARE_ARRAY = {("/composes/", "get")}  # composer-cli reads one, unlike the document
THREE_LEVELS = {("/distributions", "get")}  # same
UPLOAD_SCHEMAS = {
    "local": "LocalUploadStatus",
    "aws.s3": "AWSS3UploadStatus",
    "container": "ContainerUploadStatus",
}
S3 = {"region": "eu-west-1"}
IMAGE = Artifact("disk.vmdk", 7, "ab" * 32, "jobs/a/1/disk.vmdk")


@pytest.fixture(scope="module")
def upstream() -> Any:
    return upstream_document("composer-v2.yml") or pytest.skip("osbuild-composer's document is not present")


@pytest.fixture
def many(composer: Composer) -> Composer:
    """Composes in every state, with uploads, errors and progress."""
    composes = composer.rows.composes
    uploading = composer.compose(ImageType.VSPHERE, upload_options=S3)
    composes.set_state(uploading, ComposeState.UPLOADING)
    composer.rows.start(job_id_of(uploading, "customize"))
    composer.rows.jobs.record_progress(job_id_of(uploading, "customize"), 1, JobProgress(1, 2, "write"))
    composes.finish(composer.compose(), ComposeState.CANCELLED)
    failed = composer.compose()
    composes.finish(failed, ComposeState.FAILURE, error=JobError(10, "customize failed", ["why"]))
    succeeded = composer.compose(ImageType.VSPHERE, upload_options=S3)
    target = UploadTarget("aws.s3", region="eu-west-1")
    composer.set_upload(succeeded, UploadResult(target, "success", "s3://images/made/disk.vmdk"))
    composes.finish(succeeded, ComposeState.SUCCESS, image=IMAGE)
    pushed = composer.compose(ImageType.GUEST_IMAGE)
    container = UploadTarget("container", name="team/disk", form="container-disk")
    digest = f"sha256:{'0' * 64}"
    composer.set_upload(pushed, UploadResult(container, "success", "oci://host/team/disk:1", digest))
    return composer


def template(path: str) -> str:
    """Return a path without the names of its parameters."""
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def operations(document: Any) -> dict[tuple[str, str], Any]:
    return {
        (template(path), method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def replies_of(composer: Composer) -> list[tuple[tuple[str, str], int, Any]]:
    """Return path, method, status and document of a reply of each operation, for each compose."""
    found = []

    def ask(method: str, path: str, call: str, document: object = None) -> None:
        reply = composer(method.upper(), call, document)
        if not path.endswith("/download"):
            found.append(((path, method), reply.status, reply.document))

    ask("post", "/compose", "/compose", compose_request())
    for path in ("/composes/", "/distributions", "/errors", "/openapi"):
        ask("get", path, path)
    ask("get", "/errors/{}", "/errors/15")
    composer.images.add(make_image(1))
    ask("get", "/images", "/images")
    for image in composer("GET", "/images").document["items"]:
        ask("get", "/images/{}", f"/images/{image['id']}")
        ask("delete", "/images/{}", f"/images/{image['id']}")
    ask("get", "/distributions/{}", "/distributions/rhcos-4.19")
    for compose in composer("GET", "/composes/").document:
        for part in ("", *PARTS):
            ask("get", "/composes/{}" + part, f"/composes/{compose['id']}{part}")
        ask("post", "/composes/{}/cancel", f"/composes/{compose['id']}/cancel")
        ask("delete", "/composes/{}", f"/composes/{compose['id']}")
    return found


def test_own_document_is_valid_openapi(composer: Composer) -> None:
    document = composer("GET", "/openapi").document
    validate(document)
    assert {"title", "version", "description"} <= document["info"].keys()


def test_replies_match_the_own_document(many: Composer) -> None:
    document: Any = many.api.document
    described = operations(document)
    answered = set()
    for operation, status, reply in replies_of(many):
        responses = described[operation]["responses"]
        content = responses.get(str(status), responses["4XX"])["content"]["application/json"]
        schema = {**content["schema"], "components": document["components"]}
        Draft202012Validator(schema).validate(reply)
        answered.add(operation)
    assert described.keys() - answered == {("/composes/{}/download", "get"), ("/images/{}/download", "get")}


def test_operations_are_those_of_osbuild_composer(composer: Composer, upstream: Any) -> None:
    ours, theirs = operations(composer.api.document), operations(upstream)
    assert ours.keys() - theirs.keys() == OURS
    assert theirs.keys() - ours.keys() == THEIRS
    for key in ours.keys() & theirs.keys():
        assert ours[key]["operationId"] == theirs[key]["operationId"]
        success = {status for status in theirs[key]["responses"] if status.startswith("2")}
        assert success <= ours[key]["responses"].keys()
        assert query_parameters(theirs[key]) <= query_parameters(ours[key])


def test_requests_know_every_member_that_osbuild_composer_knows(composer: Composer, upstream: Any) -> None:
    """Otherwise the API would refuse osbuild-composer's members as wrong ones, not as unsupported ones."""
    document: Any = composer.api.document
    ours, theirs = document["components"]["schemas"], upstream["components"]["schemas"]
    for name in (
        "ComposeRequest",
        "ImageRequest",
        "UploadTarget",
        "Customizations",
        "Blueprint",
        "BlueprintCustomizations",
        "Ignition",
        "Kernel",
    ):
        assert ours[name]["properties"].keys() == theirs[name]["properties"].keys(), name
    options = [theirs[each["$ref"].rpartition("/")[2]] for each in theirs["UploadOptions"]["anyOf"]]
    known = {name for each in options for name in each.get("properties", {})}
    assert ours["UploadOptions"]["properties"].keys() == known | {"form"}  # of the target oci, which is ours


def test_replies_match_osbuild_composers_document(many: Composer, upstream: Any) -> None:
    described = operations(upstream)
    components = corrected(upstream["components"])
    for operation, status, reply in replies_of(many):
        if operation in OURS | THREE_LEVELS:
            continue
        name = "Error" if status >= 400 else schema_name(described[operation]["responses"][str(status)])
        if operation in BARE_ARRAY:
            for item in reply:
                check(item, "ComposeStatus", components)
        elif name:
            check(reply, name, components)
        for upload in uploads_in(reply):
            check(upload["options"], UPLOAD_SCHEMAS[upload["type"]], components)


def query_parameters(operation: Any) -> set[str]:
    """Return the names of an operation's parameters; a reference ends in the name."""
    parameters = operation.get("parameters", [])
    return {
        each.get("name") or each["$ref"].rpartition("/")[2] for each in parameters if each.get("in") != "path"
    }


@pytest.mark.parametrize("name", ["ComposeStatus", "Error", "ErrorList", "DistributionDetails"])
def test_wrong_replies_are_noticed(upstream: Any, name: str) -> None:
    with pytest.raises(ValidationError):
        check({"id": 1}, name, corrected(upstream["components"]))


def schema_name(response: Any) -> str:
    """Return the name of the schema of a response; "": it has none."""
    reference: str = response["content"]["application/json"]["schema"].get("$ref", "")
    return reference.rpartition("/")[2]


def corrected(components: Any) -> Any:
    """Return osbuild-composer's schemas without two faults: no reply of its own would match them."""
    schemas = copy.deepcopy(components["schemas"])
    # {url} is the status of an upload to S3, and also that of two others; the caller checks it by type.
    del schemas["UploadStatus"]["properties"]["options"]["oneOf"]
    # Its members exclude id, kind and href, which it requires.
    del schemas["DistributionDetails"]["allOf"][1]["additionalProperties"]
    return {"schemas": schemas}


def check(reply: Any, name: str, components: Any) -> None:
    OAS30Validator({"$ref": f"#/components/schemas/{name}", "components": components}).validate(reply)


def uploads_in(reply: Any) -> list[Any]:
    if isinstance(reply, list):
        return [upload for each in reply for upload in uploads_in(each)]
    return list(reply["image_status"]["upload_statuses"]) if "image_status" in reply else []
