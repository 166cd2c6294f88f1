from __future__ import annotations

import json
from base64 import b64encode, encodebytes
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.openapi.bodies import parse_body
from image_service.core.errors import ContentTooLarge
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer.request_bodies import REQUEST_SCHEMAS, ComposeRequestBody
from image_service.jobs.composer.requests import ComposeLimits, check_available, parse_request
from image_service.jobs.model import ComposeRequest, ImageType, UploadTarget
from image_service.jobs.plans.plan import UploadPlace

CONFIG = b'{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "s3cr3t"}]}}'
EMBEDDED = {"embedded": {"config": b64encode(CONFIG).decode()}}
URL = "https://config.example/s3cr3t"
LOCAL = {"type": "local", "upload_options": {}}
DISTRIBUTIONS = {"rhcos-4.19": {"x86_64": (ImageType.LIVE_INSTALLER,), "aarch64": ()}}


LIMITS = ComposeLimits(10, 4096, 200_000, 2**40)


def image(**members: object) -> dict[str, Any]:
    return {"architecture": "x86_64", "image_type": "live-installer", "repositories": [], **members}


def compose(**members: object) -> dict[str, Any]:
    return {"distribution": "rhcos-4.19", "image_requests": [image()], **members}


def parse(document: object, *, can_upload: bool = True, can_push: bool = True) -> ComposeRequest:
    limits = attrs.evolve(
        LIMITS,
        upload_place=UploadPlace.parse("s3://bucket/made") if can_upload else None,
        upload_registry="registry.test" if can_push else None,
    )
    return parse_request(json.dumps(document).encode(), limits)


def refusal(document: object, *, can_upload: bool = True, can_push: bool = True) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        parse(document, can_upload=can_upload, can_push=can_push)
    assert "s3cr3t" not in caught.value.detail
    return caught.value.number, caught.value.detail


def config_of(size: int) -> dict[str, Any]:
    config = json.dumps({"ignition": {"version": "3.4.0"}, "x": ""}).encode()
    config = config.replace(b'""', b'"%b"' % (b"x" * (size - len(config))))
    return compose(customizations={"ignition": {"embedded": {"config": b64encode(config).decode()}}})


def test_large_config_does_not_count_as_the_request() -> None:
    request = parse(config_of(200_000))
    assert len(request.customization.ignition or b"") == 200_000


def test_config_beyond_its_limit_is_refused() -> None:
    with pytest.raises(ContentTooLarge, match=r"JOBS_MAX_IGNITION_BYTES.* 200001 bytes, at most 200000"):
        parse(config_of(200_001))


@pytest.mark.parametrize(
    "document",
    [
        compose(blueprint={"name": "mine", "description": "x" * 4000}),
        compose(blueprint={"name": "mine", "description": "\u4000" * 700}),
        compose(blueprint={"name": "mine", "packages": [""] * 1100}),
        compose(image_requests=[image(upload_targets=[{**LOCAL, "other": "x" * 4000}])]),
    ],
    ids=["description", "escaped", "packages", "unknown"],
)
def test_large_request_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ContentTooLarge, match=r"JOBS_MAX_REQUEST_BYTES.* 4096 "):
        parse(document)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (compose(blueprint={"name": "x" * 256}), "blueprint.name"),
        (compose(blueprint={"name": "mine", "description": "x" * 8193}), "blueprint.description"),
        (compose(blueprint_id="x" * 256), "blueprint_id"),
        (compose(customizations={"kernel": {"append": "x" * 8193}}), "customizations.kernel.append"),
    ],
    ids=["name", "description", "id", "append"],
)
def test_long_text_is_refused(document: dict[str, Any], place: str) -> None:
    number, detail = refusal(document)
    assert (number, detail.partition(" violates maxLength")[0]) == (30, place)


@pytest.mark.parametrize(
    "document",
    [
        compose(customizations={"ignition": EMBEDDED, "kernel": {"append": " console=ttyS0 s3cr3t "}}),
        compose(
            blueprint={
                "name": "mine",
                "version": "0.0.1",
                "packages": [],
                "customizations": {
                    "ignition": EMBEDDED,
                    "kernel": {"name": "", "append": "console=ttyS0 s3cr3t"},
                    "services": {"enabled": []},
                },
            }
        ),
    ],
    ids=["customizations", "blueprint"],
)
def test_customizations_of_both_forms_mean_the_same(document: dict[str, Any]) -> None:
    request = parse(document)
    assert request.customization.ignition == CONFIG
    assert request.customization.kernel_arguments == ("console=ttyS0 s3cr3t",)
    assert "s3cr3t" not in json.dumps(request.document)
    assert EMBEDDED["embedded"]["config"] not in json.dumps(request.document)
    assert "s3cr3t" not in repr(request)
    body = repr(parse_body(ComposeRequestBody, document))
    assert not any(secret in body for secret in ("s3cr3t", EMBEDDED["embedded"]["config"]))


def test_plain_request() -> None:
    request = parse(compose())
    assert (request.distribution, request.architecture) == ("rhcos-4.19", "x86_64")
    assert request.image_type is ImageType.LIVE_INSTALLER
    assert (request.customization.ignition, request.customization.arguments) == (None, ())
    assert request.size is None
    assert request.uploads == (UploadTarget("local"),)
    assert request.document == compose()


def test_lines_of_base64_are_joined() -> None:
    ignition = {"embedded": {"config": encodebytes(CONFIG).decode()}}
    assert parse(compose(customizations={"ignition": ignition})).customization.ignition == CONFIG


def test_one_image_request_may_stand_alone() -> None:
    document = {"distribution": "rhcos-4.19", "image_request": image(image_type="vsphere", size=1 << 35)}
    assert parse(document).size == 1 << 35


def test_size_may_be_written_as_a_fraction_without_one() -> None:
    document = {"distribution": "rhcos-4.19", "image_request": image(image_type="vsphere", size=1024.0)}
    assert repr(parse(document).size) == "1024"


def test_blueprint_may_name_the_distribution() -> None:
    document = {"image_requests": [image()], "blueprint": {"name": "a", "distro": "rhcos-4.19"}}
    assert parse(document).distribution == "rhcos-4.19"


def test_firstboot_url_is_a_secret_kernel_argument() -> None:
    request = parse(compose(customizations={"ignition": {"firstboot": {"url": URL}}}))
    assert request.customization.arguments == (f"ignition.config.url={URL}",)
    assert request.document["customizations"] == {"ignition": {"firstboot": {"url": ""}}}


def test_upload_targets() -> None:
    public = {"type": "aws.s3", "upload_options": {"region": "eu-west-1", "public": True}}
    document = compose(
        image_requests=[image(upload_targets=[LOCAL, public], upload_options={"region": "us-east-1"})]
    )
    assert parse(document).uploads == (
        UploadTarget("local"),
        UploadTarget("aws.s3", public=True, region="eu-west-1"),
        UploadTarget("aws.s3", public=False, region="us-east-1"),
    )


def oci(**options: object) -> dict[str, Any]:
    target = {"type": "oci", "upload_options": options}
    return compose(image_requests=[image(image_type="guest-image", upload_targets=[target])])


def test_target_in_a_registry() -> None:
    document = oci(name="team/rhcos", form="container-disk")
    assert parse(document).uploads == (UploadTarget("oci", name="team/rhcos", form="container-disk"),)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "name must be a repository"),
        ({"name": "Team"}, "name must be a repository"),
        ({"name": "team:v1"}, "name must be a repository"),
        ({"name": "../team"}, "name must be a repository"),
        ({"name": "team", "form": "image"}, "form must be artifact or container-disk"),
        ({"name": "team", "region": "eu"}, "must not have region"),
    ],
)
def test_wrong_targets_in_a_registry_are_refused(options: dict[str, object], says: str) -> None:
    number, detail = refusal(oci(**options))
    assert (number, says in detail) == (38, True), detail


def test_live_iso_is_not_a_container_disk() -> None:
    target = {"type": "oci", "upload_options": {"name": "a", "form": "container-disk"}}
    document = compose(image_requests=[image(upload_targets=[target])])
    assert "is not a raw or qcow2 disk" in refusal(document)[1]


def test_without_a_registry_its_targets_are_refused() -> None:
    for document in (oci(name="a"), container(name="a")):
        assert "UPLOAD_REGISTRY is not set" in refusal(document, can_push=False)[1]


def container(*, image_type: str = "guest-image", **options: str) -> dict[str, Any]:
    target = {"type": "container", "upload_options": options}
    return compose(image_requests=[image(image_type=image_type, upload_targets=[target])])


@pytest.mark.parametrize(("options", "name"), [({"name": "team/rhcos"}, "team/rhcos"), ({}, "rhcos-4.19")])
def test_container_is_a_container_disk(options: dict[str, str], name: str) -> None:
    document = {**container(**options), "distribution": "rhcos-4.19"}
    assert parse(document).uploads == (UploadTarget("container", name=name, form="container-disk"),)


def test_wrong_containers_are_refused() -> None:
    number, detail = refusal(container(name="a", tag="latest"))
    assert (number, "the tag is the id of the compose" in detail) == (38, True)
    assert "must not have form" in refusal(container(form="artifact"))[1]
    assert "name must be a repository" in refusal(container(name="Team"))[1]
    assert (
        ".type: live-installer is not a raw or qcow2 disk"
        in refusal(container(image_type="live-installer"))[1]
    )


@pytest.mark.parametrize(
    ("document", "number", "detail"),
    [
        ([], 20, ""),
        (compose(blueprint={"name": "a"}, customizations={}), 39, ""),
        (compose(blueprint={"name": "a"}, customizations={}, unknown=1), 39, ""),
        (compose(packages=["s3cr3t"]), 30, "the content must not have packages"),
        (compose(image_requests=[image(unknown=1)]), 30, "image_requests[0] must not have unknown"),
        (compose(blueprint={"name": "a", "x": 1}), 30, "blueprint must not have x"),
        (compose(blueprint={}), 30, "blueprint must have name"),
        (compose(image_requests=[image(size=-1)]), 30, "image_requests[0].size violates minimum: 0"),
        (
            compose(image_requests=[image(upload_options={"provider": "aws", "settings": {}})]),
            30,
            "image_requests[0].upload_options must not have provider, settings",
        ),
        (
            compose(
                koji={"server": "https://s3cr3t", "task_id": 1, "name": "a", "version": "1", "release": "1"}
            ),
            42,
            "koji: images are not imported into koji",
        ),
        (compose(bootc={"reference": "quay.io/a"}), 42, "bootc: containers are not supported"),
        (compose(image_requests=[]), 25, "the request has 0"),
        (compose(image_requests=[image(), image()]), 25, "the request has 2"),
        (compose(image_request=image()), 25, "the request has 2"),
        ({"distribution": "rhcos-4.19"}, 25, "the request has 0"),
        ({"image_requests": [image()]}, 4, "distribution is missing"),
        (compose(distribution=""), 4, "distribution is missing"),
        (
            compose(blueprint={"name": "a", "distro": "fedora-39"}),
            4,
            "distribution and blueprint.distro differ",
        ),
        (compose(image_requests=[image(image_type="gcp")]), 6, None),
        (
            compose(customizations={"packages": ["s3cr3t"], "users": [{"name": "s3cr3t"}]}),
            35,
            "not supported: customizations.packages, customizations.users",
        ),
        (
            compose(blueprint={"name": "a", "modules": [{"name": "s3cr3t"}]}),
            35,
            "not supported: blueprint.modules",
        ),
        (
            compose(blueprint={"name": "a", "customizations": {"kernel": {"name": "kernel-rt"}}}),
            35,
            "not supported: blueprint.customizations.kernel.name",
        ),
        (
            compose(
                image_requests=[image(repositories=[{"baseurl": "https://s3cr3t"}], ostree={"ref": "s3cr3t"})]
            ),
            35,
            "not supported: image_requests[0].repositories, image_requests[0].ostree",
        ),
        (
            compose(image_requests=[image(size=1 << 30)]),
            35,
            "image_requests[0].size: live-installer has the size of its base",
        ),
        (
            compose(image_requests=[image(image_type="vsphere", size=1000)]),
            42,
            f"image_requests[0].size must be a multiple of 512 bytes, at most {2**40} (JOBS_MAX_DISK_SIZE)",
        ),
        (
            compose(image_requests=[image(image_type="vsphere", size=2**40 + 512)]),
            42,
            f"image_requests[0].size must be a multiple of 512 bytes, at most {2**40} (JOBS_MAX_DISK_SIZE)",
        ),
        (
            compose(customizations={"ignition": {"embedded": {"config": "s3cr3t!"}}}),
            35,
            "customizations.ignition.embedded.config must be base64",
        ),
        (
            compose(customizations={"ignition": {"embedded": {"config": ""}}}),
            35,
            (
                "customizations.ignition.embedded.config: the Ignition config of 0 bytes is not JSON:"
                " it ends too early"
            ),
        ),
        (
            compose(customizations={"ignition": {"firstboot": {"url": "https://a b s3cr3t"}}}),
            35,
            "customizations.ignition.firstboot.url must be a URL of http, https or tftp",
        ),
        (
            compose(customizations={"ignition": {"firstboot": {"url": URL}, **EMBEDDED}}),
            35,
            "customizations.ignition must have embedded or firstboot, not both",
        ),
        (
            compose(customizations={"kernel": {"append": "s3cr3t$(reboot)"}}),
            35,
            "customizations.kernel.append: a kernel argument has '$' at position 6",
        ),
        *(
            (
                compose(image_requests=[image(upload_targets=[{"type": type_, "upload_options": {}}])]),
                38,
                f"image_requests[0].upload_targets[0].type must be local, aws.s3, oci or container{instead}",
            )
            for type_, instead in (
                ("aws", "; for an AMI use aws.s3, then import-snapshot and register-image of aws ec2"),
                ("azure", "; use local, download the image, then az storage blob upload and az image create"),
                ("oci.objectstorage", "; use local, download the image, then oci compute image import"),
                ("gcp", "; use local, download the image, then gcloud compute images import"),
                ("pulp.ostree", "; no image type of this service is an OSTree commit"),
                ("s3cr3t", ""),
            )
        ),
        (
            compose(image_requests=[image(upload_targets=[{"type": "aws.s3", "upload_options": {}}])]),
            38,
            "image_requests[0].upload_targets[0].upload_options of aws.s3 must have region",
        ),
        (
            compose(image_requests=[image(upload_options={"region": "a", "share_with_accounts": []})]),
            38,
            "image_requests[0].upload_options of aws.s3 must not have share_with_accounts",
        ),
        (
            compose(
                image_requests=[image(upload_targets=[{"type": "local", "upload_options": {"region": "a"}}])]
            ),
            38,
            "image_requests[0].upload_targets[0].upload_options of local must not have region",
        ),
    ],
)
def test_refusal_names_the_member_and_no_value(document: object, number: int, detail: str | None) -> None:
    found = refusal(document)
    assert found[0] == number
    assert detail in {None, found[1]}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"a": NaN', b'{"a": "\\ud800"}', b"[" * 100_000])
def test_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(body, LIMITS)
    assert caught.value.number == 20


def test_without_a_place_for_uploads_s3_is_refused() -> None:
    document = compose(image_requests=[image(upload_options={"region": "eu-west-1"})])
    number, detail = refusal(document, can_upload=False)
    assert (number, "UPLOAD_S3_URL" in detail) == (38, True)


@pytest.mark.parametrize(
    ("distribution", "architecture", "number", "detail"),
    [
        ("rhcos-4.18", "x86_64", 4, "supported: rhcos-4.19"),
        ("rhcos-4.19", "s390x", 5, "supported: aarch64, x86_64"),
        ("rhcos-4.19", "aarch64", 6, "supported: "),
    ],
)
def test_request_without_a_base_is_refused(
    distribution: str, architecture: str, number: int, detail: str
) -> None:
    request = parse(compose(distribution=distribution, image_requests=[image(architecture=architecture)]))
    with pytest.raises(ApiError) as caught:
        check_available(request, DISTRIBUTIONS)
    assert (caught.value.number, caught.value.detail) == (number, detail)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)
MEMBERS = sorted(
    {name for schema in REQUEST_SCHEMAS.values() for name in schema["properties"]}  # type: ignore[attr-defined]
)


@given(
    st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=4),
    st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=4),
    st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=4),
)
def test_any_request_is_accepted_or_refused(
    top: dict[str, Any], of_image: dict[str, Any], customizations: dict[str, Any]
) -> None:
    for document in (
        top,
        compose(**top),
        compose(image_requests=[image(**of_image)], customizations=customizations),
        compose(blueprint={"name": "a", "customizations": customizations}),
        compose(customizations={"ignition": customizations, "kernel": customizations}),
    ):
        try:
            parse(document)
        except ApiError as error:
            assert error.number in {4, 6, 20, 25, 30, 35, 38, 39, 42}  # noqa: PT017 - or nothing is raised
