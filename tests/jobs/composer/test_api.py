from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import attrs
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from twisted.internet.defer import Deferred

from image_service.common.objects.s3_links import S3Links
from image_service.core.errors import StoreFailed
from image_service.core.provenance.dsse import SigningKeys, load_signing_key, open_bundle
from image_service.jobs.composer import compose_routes
from image_service.jobs.database.tables import COMPOSES
from image_service.jobs.model import (
    Artifact,
    ComposeState,
    ImageType,
    JobError,
    JobProgress,
    TenantBudget,
    UploadResult,
    UploadTarget,
    job_id_of,
)
from tests.jobs.composer.composing import IGNITION, ORG_1, ORG_2, Composer, compose_request

if TYPE_CHECKING:
    from tests.jobs.composer.composing import ComposerReply

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
S3_OPTIONS = {"region": "eu-west-1"}
IMAGE = Artifact("disk.vmdk", 7, "ab" * 32, "jobs/a/1/disk.vmdk")


def number(reply: ComposerReply) -> tuple[int, str]:
    return reply.status, reply.document["id"]


def test_compose_starts_with_the_options(composer: Composer) -> None:
    reply = composer("POST", "/compose", compose_request(ImageType.VSPHERE))
    compose_id = reply.document["id"]
    assert (reply.status, reply.document) == (
        201,
        {"id": compose_id, "kind": "ComposeId", "href": "/api/image-builder-composer/v2/compose"},
    )
    compose = composer.rows.composes.find(compose_id, "org-1")
    assert compose is not None
    assert compose.ignition_sha256 == hashlib.sha256(IGNITION).hexdigest()
    assert composer.engine.started == [compose_id]
    customization = composer.rows.composes.customization(compose)
    assert customization is not None
    assert customization.ignition == IGNITION


def test_unavailable_engine_only_delays_a_compose(composer: Composer) -> None:
    composer.engine.is_away = True
    compose_id = composer.compose()
    compose = composer.rows.composes.find(compose_id)
    assert compose is not None
    assert compose.started_at is None


def test_response_does_not_wait_for_the_engine(composer: Composer) -> None:
    composer.engine.answers = Deferred()
    compose_id = composer.compose()
    assert composer.engine.started == []
    composer.engine.answers.callback(None)
    assert composer.engine.started == [compose_id]


def test_limit_of_a_tenant_is_named(composer: Composer) -> None:
    limited = Composer(composer.rows, max_queued=1)
    limited.compose()
    reply = limited("POST", "/compose", compose_request())
    assert number(reply) == (429, "429")
    assert "JOBS_MAX_QUEUED" in reply.document["details"]
    assert int(reply.fields["Retry-After"]) > 0


def test_budget_of_a_tenant_is_named(composer: Composer) -> None:
    disk = 2**30 + 2**24 + 2**26  # of the most that a file takes
    limited = attrs.evolve(composer.rows, budget=TenantBudget(max_composes=9, max_bytes=4 * disk))
    limited_composer = Composer(limited)
    limited_composer.compose(ImageType.MINIMAL_RAW)
    reply = limited_composer("POST", "/compose", compose_request(ImageType.VSPHERE, size=3 * 2**30))
    assert number(reply) == (507, "507")
    assert "JOBS_MAX_BYTES" in reply.document["details"]
    limited_composer.compose(ImageType.VSPHERE)


@pytest.mark.parametrize(
    ("members", "expected"),
    [({"distribution": "rhcos-4.1"}, "4"), ({"unknown": 1}, "30")],
)
def test_refused_request_adds_nothing(composer: Composer, members: dict[str, object], expected: str) -> None:
    reply = composer("POST", "/compose", {**compose_request(), **members})
    assert number(reply) == (400, expected)
    assert composer("GET", "/composes/").document == []


@pytest.mark.parametrize(
    ("state", "status", "image_status"),
    [
        (ComposeState.PENDING, "pending", "pending"),
        (ComposeState.BUILDING, "pending", "building"),
        (ComposeState.UPLOADING, "pending", "uploading"),
        (ComposeState.REGISTERING, "pending", "registering"),
        (ComposeState.SUCCESS, "success", "success"),
        (ComposeState.FAILURE, "failure", "failure"),
        (ComposeState.CANCELLED, "failure", "failure"),
    ],
)
def test_statuses(composer: Composer, state: ComposeState, status: str, image_status: str) -> None:
    compose_id = composer.compose()
    if state.is_final:
        composer.rows.composes.finish(compose_id, state)
    else:
        composer.rows.composes.set_state(compose_id, state)
    document = composer("GET", f"/composes/{compose_id}").document
    assert (document["kind"], document["status"]) == ("ComposeStatus", status)
    assert document["image_status"]["status"] == image_status
    assert document["image_statuses"] == [document["image_status"]]


def test_error_has_three_members(composer: Composer) -> None:
    """koji-osbuild passes all but ``id`` to a constructor that takes only the other two."""
    compose_id = composer.compose()
    error = JobError(10, "customize failed: no boot partition", {"step": "customize"})
    composer.rows.composes.finish(compose_id, ComposeState.FAILURE, error=error)
    status = composer("GET", f"/composes/{compose_id}").document["image_status"]
    assert status["error"] == {"id": 10, "reason": error.reason, "details": {"step": "customize"}}


def test_cancelled_compose_says_so(composer: Composer) -> None:
    compose_id = composer.compose()
    assert composer("POST", f"/composes/{compose_id}/cancel").status == 200
    status = composer("GET", f"/composes/{compose_id}").document["image_status"]
    assert status["error"]["reason"] == "the compose was cancelled"
    assert composer.engine.cancelled == [compose_id]
    assert number(composer("POST", f"/composes/{compose_id}/cancel")) == (400, "31")


def test_compose_can_be_cancelled_while_the_engine_is_unavailable(composer: Composer) -> None:
    compose_id = composer.compose()
    composer.engine.is_away = True
    assert composer("POST", f"/composes/{compose_id}/cancel").status == 200
    assert composer("GET", f"/composes/{compose_id}").document["status"] == "failure"


def test_progress_counts_jobs(composer: Composer) -> None:
    compose_id = composer.compose(ImageType.VSPHERE)
    jobs = {step: job_id_of(compose_id, step) for step in ("customize", "convert")}
    composer.rows.start(jobs["customize"])
    composer.rows.finish(jobs["customize"], result={"log": "customized"})
    composer.rows.start(jobs["convert"])
    composer.rows.jobs.record_progress(jobs["convert"], 1, JobProgress(3, 8, "write"))
    status = composer("GET", f"/composes/{compose_id}").document["image_status"]
    assert status["progress"] == {"done": 1, "total": 2, "subprogress": {"done": 3, "total": 8}}
    (build,) = composer("GET", f"/composes/{compose_id}/logs").document["image_builds"]
    assert [(step["step"], step["log"]) for step in build["steps"]] == [
        ("customize", "customized"),
        ("convert", ""),
    ]


def test_local_target_names_the_download(composer: Composer) -> None:
    compose_id = composer.compose()
    upload = composer("GET", f"/composes/{compose_id}").document["image_status"]["upload_status"]
    path = f"/api/image-builder-composer/v2/composes/{compose_id}/download"
    assert upload == {"status": "pending", "type": "local", "options": {"artifact_path": path}}


@pytest.mark.parametrize(("public", "is_signed"), [(False, True), (True, False)])
def test_finished_upload_has_a_url(composer: Composer, *, public: bool, is_signed: bool) -> None:
    compose_id = composer.compose(upload_options={**S3_OPTIONS, "public": public})
    status = composer("GET", f"/composes/{compose_id}").document["image_status"]
    assert status["upload_status"]["options"] == {"url": ""}
    target = UploadTarget("aws.s3", public=public, region="eu-west-1")
    done = UploadResult(target, "success", "s3://images/made/live.iso")
    composer.set_upload(compose_id, done)
    (upload,) = composer("GET", f"/composes/{compose_id}").document["image_status"]["upload_statuses"]
    url, _, query = upload["options"]["url"].partition("?")
    assert (upload["status"], url) == ("success", "http://s3.test/images/made/live.iso")
    assert ("X-Amz-Signature=" in query) is is_signed


@pytest.mark.parametrize("change", ["tenant", "location", "target"])
def test_upload_that_was_changed_in_the_database_has_no_signed_url(composer: Composer, change: str) -> None:
    compose_id = composer.compose(upload_options=S3_OPTIONS)
    composer.set_upload(compose_id, UploadResult(UploadTarget("aws.s3"), "success", "s3://images/own"))
    changes: dict[str, dict[str, object]] = {
        "tenant": {"tenant": ORG_2.tenant},
        "location": {"uploads": [UploadResult(UploadTarget("aws.s3"), "success", "s3://images/other")]},
        "target": {
            "uploads": [UploadResult(UploadTarget("aws.s3", region="x"), "success", "s3://images/own")]
        },
    }
    update = sa.update(COMPOSES).values(changes[change])
    composer.rows.database.transact(lambda connection: connection.execute(update).close())
    principal = ORG_2 if change == "tenant" else ORG_1
    status = composer("GET", f"/composes/{compose_id}", principal=principal).document["image_status"]
    (listed,) = composer("GET", "/composes/", principal=principal).document
    for found in (status, listed["image_status"]):
        assert found["upload_status"]["options"]["url"].startswith("s3://images/o")


def test_upload_without_credentials_for_a_signature_has_its_location(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, is_public: bool) -> str:
        raise StoreFailed(f"there are no credentials, {is_public=}")

    compose_id = composer.compose(upload_options=S3_OPTIONS)
    done = UploadResult(UploadTarget("aws.s3"), "success", "s3://images/made/live.iso")
    composer.set_upload(compose_id, done)
    monkeypatch.setattr(S3Links, "url_of", fail)
    status = composer("GET", f"/composes/{compose_id}").document["image_status"]
    assert status["upload_status"]["options"] == {"url": "s3://images/made/live.iso"}


def test_list_is_a_bare_array_sorted_by_id(composer: Composer) -> None:
    ids = [composer.compose() for _ in range(5)]
    listed = composer("GET", "/composes/").document
    assert [each["id"] for each in listed] == sorted(ids)
    assert composer("GET", "/composes/", principal=ORG_2).document == []


def test_list_has_the_newest_only(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose_routes, "MAX_SIZE", 3)
    ids = []
    for _ in range(5):
        ids.append(composer.compose())
        composer.rows.clock.advance(1)
    assert [each["id"] for each in composer("GET", "/composes/").document] == sorted(ids[2:])


def test_list_with_parameters_is_a_page_newest_first(composer: Composer) -> None:
    ids = []
    for _ in range(5):
        ids.append(composer.compose())
        composer.rows.clock.advance(1)
    composer.rows.composes.finish(ids[0], ComposeState.CANCELLED)
    page = composer("GET", "/composes/", query={"size": "2", "page": "1"}).document
    assert [each["id"] for each in page.pop("items")] == [ids[2], ids[1]]
    assert page == {"kind": "ComposeList", "page": 1, "size": 2, "total": 5}
    failed = composer("GET", "/composes/", query={"status": "failure"}).document
    assert [each["id"] for each in failed["items"]] == [ids[0]]
    assert composer("GET", "/composes/", query={"image_type": "vsphere"}).document["total"] == 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"page": "-1"}, "18"),
        ({"size": "0"}, "19"),
        ({"size": "1001"}, "19"),
        ({"limit": "1"}, "42"),
        ({"status": "building"}, "42"),
        ({"image_type": "gcp"}, "42"),
        ({"distribution": "a\0"}, "42"),
    ],
)
def test_wrong_parameter_is_refused(composer: Composer, query: dict[str, str], expected: str) -> None:
    assert number(composer("GET", "/composes/", query=query)) == (400, expected)


def test_metadata_has_the_request_without_its_secrets(composer: Composer) -> None:
    compose_id = composer.compose()
    metadata = composer("GET", f"/composes/{compose_id}/metadata").document
    assert metadata["request"]["customizations"] == {"ignition": {"embedded": {"config": ""}}}
    assert "packages" not in metadata
    composer.rows.composes.finish(compose_id, ComposeState.SUCCESS)
    assert composer("GET", f"/composes/{compose_id}/metadata").document["packages"] == []


def test_manifest_has_the_digest_of_the_config(composer: Composer) -> None:
    compose_id = composer.compose(ImageType.VSPHERE)
    reply = composer("GET", f"/composes/{compose_id}/manifests")
    (manifest,) = reply.document["manifests"]
    assert manifest["ignition_sha256"] == hashlib.sha256(IGNITION).hexdigest()
    assert [step["name"] for step in manifest["steps"]] == ["fetch", "customize", "convert", "register"]
    assert b"s3cr3t" not in reply.body


def test_only_an_image_that_is_there_is_downloaded(composer: Composer) -> None:
    compose_id = composer.compose(ImageType.VSPHERE)
    assert number(composer("GET", f"/composes/{compose_id}/download")) == (400, "31")
    composer.rows.composes.finish(compose_id, ComposeState.SUCCESS, image=IMAGE)
    reply = composer("GET", f"/composes/{compose_id}/download")
    assert (reply.status, reply.body) == (200, compose_id.encode())
    composer.contents.are_gone = True
    assert number(composer("GET", f"/composes/{compose_id}/download")) == (400, "1022")


@pytest.mark.parametrize("part", ["sboms", "provenance", "statement", "download"])
def test_unfinished_image_has_no_such_part(composer: Composer, part: str) -> None:
    assert number(composer("GET", f"/composes/{composer.compose()}/{part}")) == (400, "31")


def test_provenance_is_signed_with_the_key_of_now(composer: Composer) -> None:
    pems = [
        Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for _ in range(2)
    ]
    keys = [SigningKeys(load_signing_key(pem)) for pem in pems]
    changing = iter(keys)
    signing = Composer(composer.rows, get_signing_keys=lambda: next(changing))
    compose_id = signing.compose()
    composer.rows.composes.finish(compose_id, ComposeState.SUCCESS)
    for each in keys:
        document = signing("GET", f"/composes/{compose_id}/provenance").document
        (bundle,) = document["bundles"]
        opened = open_bundle(json.dumps(bundle).encode(), [each.signer.public])
        assert [json.loads(opened)] == document["items"]


def test_no_statement_is_made_without_a_key(composer: Composer) -> None:
    compose_id = composer.compose(ImageType.LIVE_INSTALLER)
    composer.rows.composes.finish(compose_id, ComposeState.SUCCESS)
    reply = composer("GET", f"/composes/{compose_id}/statement")
    assert number(reply) == (400, "1022")
    assert "SIGNING_KEY_FILE" in reply.document["details"]


@pytest.mark.parametrize("is_finished", [True, False])
def test_deleted_compose_is_not_found(composer: Composer, *, is_finished: bool) -> None:
    compose_id = composer.compose()
    if is_finished:
        composer.rows.composes.finish(compose_id, ComposeState.SUCCESS)
    reply = composer("DELETE", f"/composes/{compose_id}")
    assert (reply.status, reply.document["kind"]) == (200, "ComposeDeleteStatus")
    assert number(composer("GET", f"/composes/{compose_id}")) == (404, "15")
    assert composer.engine.cancelled == ([] if is_finished else [compose_id])


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/composes/x", (400, "14")),
        ("GET", f"/composes/{UNKNOWN_ID}x/download", (400, "14")),
        ("GET", "/composes", (404, "21")),
        ("POST", f"/composes/{UNKNOWN_ID}/clone", (404, "21")),
        ("GET", f"/clones/{UNKNOWN_ID}", (404, "21")),
        ("POST", "/depsolve/blueprint", (404, "21")),
        ("POST", "/search/packages", (404, "21")),
        ("GET", "/compose", (405, "22")),
        ("GET", "/errors/x", (400, "16")),
        ("GET", "/errors/" + "9" * 5000, (400, "16")),
        ("GET", "/errors/9999", (404, "17")),
        ("GET", "/distributions/rhcos-4.1", (404, "21")),
    ],
)
def test_wrong_paths(composer: Composer, method: str, path: str, expected: tuple[int, str]) -> None:
    assert number(composer(method, path)) == expected


def test_distributions_have_three_levels(composer: Composer) -> None:
    listed = composer("GET", "/distributions").document
    assert listed["debian-12"]["aarch64"] == {"live-installer": []}
    assert listed["rhcos-4.19"]["x86_64"].keys() == {each.value for each in ImageType}
    shown = composer("GET", "/distributions/rhcos-4.19").document
    assert shown["architectures"]["aarch64"]["image_types"]["live-installer"] == {
        "name": "live-installer",
        "filename": "live-installer.iso",
        "mime_type": "application/octet-stream",
    }


def test_distribution_is_filtered(composer: Composer) -> None:
    query = {"architecture": "x86_64", "image_type": "aws,azure"}
    shown = composer("GET", "/distributions/rhcos-4.19", query=query).document["architectures"]
    assert {name: set(each["image_types"]) for name, each in shown.items()} == {"x86_64": {"aws", "azure"}}


def test_errors_are_paged(composer: Composer) -> None:
    total = composer("GET", "/errors").document["total"]
    page = composer("GET", "/errors", query={"page": "1", "size": "3"}).document
    assert (page["kind"], page["page"], page["size"], page["total"]) == ("ErrorList", 1, 3, total)
    assert composer("GET", "/errors/15").document == next(
        each for each in composer("GET", "/errors").document["items"] if each["id"] == "15"
    )


def test_id_of_any_case_finds_a_compose(composer: Composer) -> None:
    compose_id = composer.compose()
    assert composer("GET", f"/composes/{compose_id.upper()}").document["id"] == compose_id
