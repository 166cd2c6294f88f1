"""What each listener offers, and the status of what is not there: the contract's table of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.images.reference import ISOS, Kind
from image_service.server.http.dates import format_http_date
from image_service.server.transport.exchanges.exchange import PreparedResponse, Subject
from tests.core.formats.filesystems.iso_builder import CREATED, build_live_iso, live_files
from tests.core.images.building import base_image
from tests.server.http.reading import body_of, fields_of, problem_of
from tests.server.serving.asking import TARGET, Service
from tests.server.snapshots.doubles import FULL, ID, MODIFIED
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.snapshots.doubles import World

UEFI = "UefiHttpBoot/1.0"
ISO_TYPE, OTHER_TYPE = "application/vnd.efi-iso", "application/octet-stream"
BY_QUERY = f"/images/{ID}?version=4.20&type="
INITRD = f"/images/{ID}/pxe-initrd"
ADDRSIZE = f"/images/{ID}/s390x-initrd-addrsize"
S390X_FILES = {
    **live_files(),
    "generic.ins": b"* minimal lpar ins file\n",
    "images/initrd.addrsize": bytes(range(16)),
}


@pytest.fixture
def world() -> Iterator[World]:
    iso = build_live_iso(S390X_FILES)
    with make_world() as made, base_image(iso, architecture="s390x") as s390x:
        made.catalog.images["4.20", "s390x", FULL] = s390x
        yield made


@pytest.fixture
def service(world: World) -> Service:
    return Service(world)


@pytest.fixture
def beside(world: World) -> Service:
    """The plain listener beside the one with TLS."""
    return Service(world, withheld=ISOS)


# Files and initrds.

ARTIFACTS = [
    ("/boot-artifacts/kernel?version=4.20", "/boot-artifacts/kernel", "vmlinuz", b"kernel data\n"),
    (
        "/boot-artifacts/rootfs?version=4.20&arch=s390x",
        "/boot-artifacts/rootfs",
        "rootfs.img",
        b"rootfs data\n",
    ),
    (
        "/boot-artifacts/ins-file?version=4.20&arch=s390x",
        "/boot-artifacts/ins-file",
        "generic.ins",
        b"* minimal lpar ins file\n",
    ),
    *(
        (f"/boot-artifacts/4.20/s390x/{name}", "/boot-artifacts/:version/:arch/:file", name, content)
        for name, content in (
            ("vmlinuz", b"kernel data\n"),
            ("initrd.img", b"initrd data\n"),
            ("rootfs.img", b"rootfs data\n"),
            ("generic.ins", b"* minimal lpar ins file\n"),
        )
    ),
]


@pytest.mark.parametrize(("target", "handler", "name", "content"), ARTIFACTS)
def test_boot_artifact_is_public_and_needs_no_upstream_call(
    service: Service, target: str, handler: str, name: str, content: bytes
) -> None:
    answer = service.get(target, authorization="whatever")
    assert answer.response.status == 200
    assert body_of(answer.response) == content
    assert answer.subject == Subject(handler, "", name)
    assert service.get(f"/base{target}").response.fields == answer.response.fields
    fields = fields_of(answer.response)
    assert fields["content-disposition"] == f'attachment; filename="{name}"'
    assert fields["cache-control"] == "public, no-cache"
    assert "vary" not in fields
    part = service.get(target, range="bytes=2-4", if_range=fields["etag"])
    assert (part.response.status, body_of(part.response)) == (206, content[2:5])
    assert service.get(target, if_none_match=fields["etag"]).response.status == 304
    assert service.get(target, "HEAD").response.fields == answer.response.fields
    assert service.upstream_calls == 0


def test_date_of_a_boot_artifact_is_a_validator(service: Service) -> None:
    """Who has read nothing here yet may go on by it; an ISO may have one date for many bytes."""
    date = format_http_date(CREATED)
    part = service.get("/boot-artifacts/4.20/x86_64/vmlinuz", range="bytes=2-4", if_range=date)
    assert (part.response.status, body_of(part.response)) == (206, b"rne")
    iso = service.get(range="bytes=2-4", if_range=format_http_date(MODIFIED))
    assert iso.response.status == 200


def test_pxe_initrd_and_its_addrsize(service: Service) -> None:
    query = "?version=4.20&arch=s390x"
    initrd = service.get(INITRD + query)
    assert initrd.subject == Subject("/images/:imageID/pxe-initrd", ID, "pxe-initrd")
    assert body_of(initrd.response).startswith(b"initrd data\n\x1f\x8b")
    assert fields_of(initrd.response)["content-disposition"] == f'attachment; filename="{ID}-initrd.img"'
    told = service.get(f"{ADDRSIZE}?version=4.20")
    assert told.subject == Subject("/images/:imageID/s390x-initrd-addrsize", ID, "s390x-initrd-addrsize")
    assert body_of(told.response) == bytes(range(8)) + initrd.response.length.to_bytes(8, "big")
    assert fields_of(told.response)["content-disposition"] == f'attachment; filename="{ID}-initrd.addrsize"'
    for answer in (initrd, told):
        assert fields_of(answer.response)["cache-control"] == "private, no-cache"
        assert "vary" not in fields_of(answer.response)
    assert service.upstream_calls == 2
    part = service.get(INITRD + query, range="bytes=12-13")
    assert (part.response.status, body_of(part.response)) == (206, b"\x1f\x8b")


# What is not there.


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        (f"{INITRD}?version=9.99", 400, "parameter-invalid"),
        (f"{INITRD}?version=4.20&arch=ppc64le", 400, "parameter-invalid"),
        (f"{INITRD}", 400, "parameter-invalid"),
        (f"{ADDRSIZE}?version=9.99", 400, "parameter-invalid"),
        ("/boot-artifacts/rootfs?version=9.99", 400, "parameter-invalid"),
        ("/boot-artifacts/rootfs", 400, "parameter-invalid"),
        ("/boot-artifacts/9.99/x86_64/rootfs.img", 404, "base-image-unknown"),
        ("/boot-artifacts/4.20/x86_64/generic.ins", 404, "not-found"),
        ("/boot-artifacts/ins-file?version=4.20", 404, "not-found"),
        ("/boot-artifacts/initrd?version=4.20", 404, "not-found"),
        (f"{BY_QUERY}full-iso".replace("4.20", "9.99"), 404, "base-image-unknown"),
        (f"/byid/{ID}/9.99/x86_64/full.iso", 404, "base-image-unknown"),
        (f"/byid/{ID}/4.20/aarch64/disconnected.iso", 404, "base-image-unknown"),
        (f"/byid/{ID}/4.20/s390x/minimal.iso", 404, "not-found"),
        (f"{BY_QUERY}minimal-iso&arch=s390x", 404, "not-found"),
    ],
)
def test_missing_images_have_the_statuses_of_the_contract(
    service: Service, method: str, target: str, status: int, code: str
) -> None:
    answer = service.get(target, method)
    assert (answer.response.status, answer.response.code) == (status, code)
    assert service.upstream_calls == 0


def test_minimal_iso_of_s390x_is_refused_with_the_reason(service: Service) -> None:
    told = problem_of(service.get(f"{BY_QUERY}minimal-iso&arch=s390x").response)
    assert "one initrd" in str(told["detail"])
    assert "full-iso" in str(told["detail"])


def test_unknown_version_is_refused_with_the_known_ones(service: Service) -> None:
    for target in (f"{INITRD}?version=9.99", f"/byid/{ID}/9.99/x86_64/full.iso"):
        assert "9.99" in str(problem_of(service.get(target).response)["detail"])


def test_minimal_iso_being_derived_is_503_with_retry_after(service: Service) -> None:
    answer = service.get(f"{BY_QUERY}minimal-iso")
    assert answer.response.status == 503
    assert fields_of(answer.response)["retry-after"] == "5"
    assert answer.subject == Subject("/images/:imageID", ID, "minimal-iso")


# The listener that is not for ISOs.


@pytest.mark.parametrize(
    "target",
    [
        TARGET,
        f"/base{TARGET}",
        f"{TARGET}.sha256",
        f"{BY_QUERY}full-iso",
        f"{BY_QUERY}minimal-iso",
        f"{BY_QUERY}disconnected-iso&digest=sha256",
        f"/byid/{ID}/4.20/x86_64/minimal.iso",
        f"/clusters/{ID}/downloads/image",
        f"/api/assisted-install/v2/clusters/{ID}/downloads/image?type=full&version=4.20",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_plain_listener_refuses_isos(service: Service, beside: Service, target: str, method: str) -> None:
    service.get(target, method)
    calls = service.upstream_calls
    answer = beside.ask(target, method)
    assert isinstance(answer, PreparedResponse)
    assert (answer.response.status, answer.response.code) == (404, "not-found")
    if method == "GET":
        assert "use the other one" in str(problem_of(answer.response)["detail"])
    assert service.upstream_calls == calls


@pytest.mark.parametrize(
    "target",
    [
        f"{INITRD}?version=4.20",
        f"{INITRD}.sha256?version=4.20",
        f"{ADDRSIZE}?version=4.20",
        "/boot-artifacts/rootfs?version=4.20",
        "/boot-artifacts/4.20/x86_64/vmlinuz",
        "/boot-artifacts/4.20/x86_64/vmlinuz.sha256",
        "/health",
        "/live",
        "/base/live",
    ],
)
def test_plain_listener_serves_everything_else(service: Service, beside: Service, target: str) -> None:
    answers = [asked.get(target).response for asked in (service, beside)]
    assert [answer.status for answer in answers] == [200, 200]
    assert body_of(answers[0]) == body_of(answers[1])


@pytest.mark.parametrize(
    "target", [f"{INITRD}?version=4.20", f"{INITRD}.sha256?version=4.20", f"{ADDRSIZE}?version=4.20"]
)
def test_plain_listener_can_withhold_the_initrd(world: World, target: str) -> None:
    withholding = Service(world, withheld=(Kind.PXE_INITRD,))
    answer = withholding.ask(target)
    assert isinstance(answer, PreparedResponse)
    assert (answer.response.status, answer.response.code) == (404, "not-found")
    assert "serves no initrds" in str(problem_of(answer.response)["detail"])
    assert withholding.upstream_calls == 0
    assert withholding.get(TARGET).response.status == 200


def test_plain_listener_lists_its_methods(beside: Service) -> None:
    assert beside.get(TARGET, "OPTIONS").response.status == 204


# Types.


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (TARGET, ISO_TYPE),
        (f"{BY_QUERY}full-iso", ISO_TYPE),
        (f"{BY_QUERY}disconnected-iso", ISO_TYPE),
        (f"{INITRD}?version=4.20", OTHER_TYPE),
        ("/boot-artifacts/4.20/x86_64/vmlinuz", OTHER_TYPE),
    ],
)
def test_uefi_http_boot_gets_the_iso_media_type(service: Service, target: str, expected: str) -> None:
    """Whether others asked before or not: the type is the asker's, the image everybody's."""
    for agent, wanted in ((UEFI, expected), ("curl/8", OTHER_TYPE), (UEFI, expected)):
        for method in ("HEAD", "GET"):
            fields = fields_of(service.get(target, method, user_agent=agent).response)
            assert fields["content-type"] == wanted
            assert fields.get("vary") == ("User-Agent" if expected == ISO_TYPE else None)
