from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import ImageServiceError, InvalidParameter, NotFound
from image_service.core.images.reference import (
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    StreamConfigMapRef,
    StreamDocumentRef,
    StreamFileRef,
    StreamRef,
)
from image_service.server.http import routes
from image_service.server.http.problem import status_of
from image_service.server.http.routes import (
    ChecksumsRoute,
    ImageDocument,
    ImageRoute,
    MirrorRoute,
    Probe,
    PublicDocument,
    Route,
    parse_route,
)

ID = "a6c0ff12-3456-4789-8abc-def012345678"
OTHER_ID = ID.replace("a6c0", "b7d1")
FULL, MINIMAL, DISCONNECTED = Kind.FULL_ISO, Kind.MINIMAL_ISO, Kind.DISCONNECTED_ISO
BY_ID = "/byid/:token"
BY_QUERY = "/images/:imageID"
BY_CLUSTER = "/clusters/:clusterID/downloads/image"


def segment(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def jwt(claims: Any, signature: str = "c2ln") -> str:
    return f"{segment(b'{}')}.{segment(json.dumps(claims).encode())}.{signature}"


TOKEN = jwt({"sub": ID})


def parse(target: str, authorization: str | None = None, base_path: str = "") -> Route:
    headers = {"host": "h"} if authorization is None else {"host": "h", "authorization": authorization}
    return parse_route(target, headers, base_path)


def image(target: str, authorization: str | None = None) -> ImageRoute:
    route = parse(target, authorization)
    assert isinstance(route, ImageRoute)
    return route


def api_key(secret: str) -> Credentials:
    return Credentials(CredentialScheme.API_KEY, secret)


def image_token(secret: str) -> Credentials:
    return Credentials(CredentialScheme.IMAGE_TOKEN, secret)


def authorization(secret: str) -> Credentials:
    return Credentials(CredentialScheme.AUTHORIZATION, secret)


# The contract's table of routes.
IMAGES = [
    (f"/images/{ID}?version=4.20&type=full-iso", BY_QUERY, ("4.20", "x86_64", FULL)),
    (f"/images/{ID}?type=full-iso&version=4.20&arch=aarch64", BY_QUERY, ("4.20", "aarch64", FULL)),
    (f"/images/{ID}?version=4.20&type=full", BY_QUERY, ("4.20", "x86_64", FULL)),
    (f"/images/{ID}?version=4.20&type=minimal", BY_QUERY, ("4.20", "x86_64", MINIMAL)),
    (f"/images/{ID}?version=4.20&type=minimal-iso", BY_QUERY, ("4.20", "x86_64", MINIMAL)),
    (f"/images/{ID}?version=4.20&type=disconnected-iso", BY_QUERY, ("4.20", "x86_64", DISCONNECTED)),
    (f"/images/{ID}?version=4.20&type=full-iso&arch=", BY_QUERY, ("4.20", "x86_64", FULL)),
    (f"/images/{ID}?version=4.20-ec.0%2B1&type=full-iso", BY_QUERY, ("4.20-ec.0+1", "x86_64", FULL)),
    (f"/byid/{ID}/4.20/x86_64/full.iso", BY_ID, ("4.20", "x86_64", FULL)),
    (f"/byid/{ID}/4.20/s390x/minimal.iso", BY_ID, ("4.20", "s390x", MINIMAL)),
    (f"/images/{ID}?type=full-iso&version=4.20&arch=arm64", BY_QUERY, ("4.20", "aarch64", FULL)),
    (f"/byid/{ID}/4.20/amd64/full.iso", BY_ID, ("4.20", "x86_64", FULL)),
    (f"/clusters/{ID}/downloads/image?type=full&arch=arm64", BY_CLUSTER, (None, "aarch64", FULL)),
    (f"/byid/{ID}/4.20/aarch64/disconnected.iso", BY_ID, ("4.20", "aarch64", DISCONNECTED)),
    (f"/byid/{ID}/4.20/x86_64/full.iso?x=y", BY_ID, ("4.20", "x86_64", FULL)),
    (f"/byid/{ID}/9.6.20250523-0/x86_64/full.iso", BY_ID, ("9.6.20250523-0", "x86_64", FULL)),
    (f"/byapikey/{TOKEN}/4.20/x86_64/full.iso", "/byapikey/:token", ("4.20", "x86_64", FULL)),
    (f"/bytoken/{TOKEN}/4.20/x86_64/full.iso", "/bytoken/:token", ("4.20", "x86_64", FULL)),
    (f"/clusters/{ID}/downloads/image", BY_CLUSTER, (None, None, None)),
    (f"/clusters/{ID}/downloads/image?version=&type=&arch=", BY_CLUSTER, (None, None, None)),
    (f"/clusters/{ID}/downloads/image?version=4.20", BY_CLUSTER, ("4.20", None, None)),
    (f"/clusters/{ID}/downloads/image?type=full&arch=ppc64le", BY_CLUSTER, (None, "ppc64le", FULL)),
    (f"/api/assisted-install/v1/clusters/{ID}/downloads/image", BY_CLUSTER, (None, None, None)),
    (f"/api/assisted-install/v2/clusters/{ID}/downloads/image", BY_CLUSTER, (None, None, None)),
]


@pytest.mark.parametrize(("target", "handler", "reference"), IMAGES)
@pytest.mark.parametrize("base_path", ["", "/base", "/a/b"])
def test_routes_follow_the_table(
    target: str, handler: str, reference: tuple[str | None, str | None, Kind | None], base_path: str
) -> None:
    expected = ImageRef(ID, *reference)
    for path in (target, base_path + target):
        route = parse(path, base_path=base_path)
        assert isinstance(route, ImageRoute)
        assert (route.handler, route.ref) == (handler, expected)


INITRD, ADDRSIZE = Kind.PXE_INITRD, Kind.INITRD_ADDRSIZE
BY_INITRD, BY_ADDRSIZE = f"{BY_QUERY}/pxe-initrd", f"{BY_QUERY}/s390x-initrd-addrsize"
BY_PATH = "/boot-artifacts/:version/:arch/:file"
NETBOOT = [
    (f"/images/{ID}/pxe-initrd?version=4.20", BY_INITRD, ImageRef(ID, "4.20", "x86_64", INITRD)),
    (f"/images/{ID}/pxe-initrd?version=4.20&arch=s390x", BY_INITRD, ImageRef(ID, "4.20", "s390x", INITRD)),
    (f"/images/{ID}/pxe-initrd?version=1&arch=", BY_INITRD, ImageRef(ID, "1", "x86_64", INITRD)),
    (
        f"/images/{ID}/s390x-initrd-addrsize?version=4.20",
        BY_ADDRSIZE,
        ImageRef(ID, "4.20", "s390x", ADDRSIZE),
    ),
    (
        f"/images/{ID}/s390x-initrd-addrsize?version=1&arch=x",
        BY_ADDRSIZE,
        ImageRef(ID, "1", "s390x", ADDRSIZE),
    ),
    (
        "/boot-artifacts/kernel?version=1",
        "/boot-artifacts/kernel",
        ArtifactRef(BootArtifact.KERNEL, "1", "x86_64"),
    ),
    (
        "/boot-artifacts/rootfs?version=1&arch=a",
        "/boot-artifacts/rootfs",
        ArtifactRef(BootArtifact.ROOTFS, "1", "a"),
    ),
    (
        "/boot-artifacts/ins-file?arch=s390x&version=1",
        "/boot-artifacts/ins-file",
        ArtifactRef(BootArtifact.INS_FILE, "1", "s390x"),
    ),
    ("/boot-artifacts/4.20/a/vmlinuz", BY_PATH, ArtifactRef(BootArtifact.KERNEL, "4.20", "a")),
    ("/boot-artifacts/4.20/a/initrd.img", BY_PATH, ArtifactRef(BootArtifact.INITRD, "4.20", "a")),
    ("/boot-artifacts/4.20/a/rootfs.img?x=y", BY_PATH, ArtifactRef(BootArtifact.ROOTFS, "4.20", "a")),
    ("/boot-artifacts/4.20/a/generic.ins", BY_PATH, ArtifactRef(BootArtifact.INS_FILE, "4.20", "a")),
]


@pytest.mark.parametrize(("target", "handler", "reference"), NETBOOT)
def test_network_boot_routes(target: str, handler: str, reference: ImageRef | ArtifactRef) -> None:
    """An unknown version in the query is an invalid parameter; in the path it is not found."""
    for path in (target, f"/base{target}"):
        route = parse(path, base_path="/base")
        assert isinstance(route, ImageRoute)
        assert (route.handler, route.ref) == (handler, reference)
        assert route.version_is_parameter is (handler != BY_PATH)


def test_version_of_an_iso_is_no_parameter() -> None:
    assert not any(image(target).version_is_parameter for target, _, _ in IMAGES)


@pytest.mark.parametrize(
    "target",
    ["/boot-artifacts/kernel", "/boot-artifacts/rootfs?arch=x86_64", "/boot-artifacts/ins-file?version="],
)
def test_artifact_needs_a_version(target: str) -> None:
    with pytest.raises(InvalidParameter, match="query parameter version "):
        parse(target)


@pytest.mark.parametrize("what", ["pxe-initrd", "s390x-initrd-addrsize"])
def test_initrd_needs_a_version_and_an_infra_env(what: str) -> None:
    with pytest.raises(InvalidParameter, match="query parameter version "):
        parse(f"/images/{ID}/{what}?arch=s390x")
    with pytest.raises(NotFound, match="lower-case UUID"):
        parse(f"/images/{ID.upper()}/{what}?version=4.20")
    assert image(f"/images/{ID}/{what}?version=4.20&{IN_QUERY}").credentials == api_key("K")
    assert image(f"/images/{ID}/{what}?version=4.20", "Bearer x").credentials == authorization("Bearer x")


def test_artifact_routes_carry_no_credential() -> None:
    for target in (
        f"/boot-artifacts/rootfs?version=1&{IN_QUERY}",
        f"/boot-artifacts/1/a/rootfs.img?{IN_QUERY}",
    ):
        assert image(target, "Bearer x").credentials is None


DIGESTS = [
    f"/byid/{ID}/4.20/x86_64/full.iso.sha256",
    f"/byid/{ID}/4.20/x86_64/full.iso?digest=sha256",
    f"/byid/{ID}/4.20/x86_64/full.iso.sha256?digest=sha256",
    f"/bytoken/{TOKEN}/4.20/x86_64/minimal.iso.sha256",
    f"/byapikey/{TOKEN}/4.20/x86_64/disconnected.iso.sha256",
    f"/images/{ID}?version=4.20&type=full-iso&digest=sha256",
    f"/images/{ID}.sha256?version=4.20&type=full-iso",
    f"/images/{ID}/pxe-initrd?version=4.20&digest=sha256",
    f"/images/{ID}/pxe-initrd.sha256?version=4.20",
    f"/images/{ID}/s390x-initrd-addrsize.sha256?version=4.20",
    "/boot-artifacts/4.20/x86_64/rootfs.img.sha256",
    "/boot-artifacts/rootfs?version=4.20&digest=sha256",
    "/boot-artifacts/rootfs.sha256?version=4.20",
    f"/clusters/{ID}/downloads/image?digest=sha256",
    f"/api/assisted-install/v2/clusters/{ID}/downloads/image.sha256",
]


@pytest.mark.parametrize("target", DIGESTS)
def test_digest_route_names_the_same_image(target: str) -> None:
    without = target.replace(".sha256", "").replace("digest=sha256", "x=y")
    wanted, plain = image(target), image(without)
    assert (wanted.document, plain.document) == (ImageDocument.DIGEST, None)
    stated = image(target.replace(".sha256", ".intoto.json").replace("digest=sha256", "statement=intoto"))
    assert stated == attrs.evolve(wanted, document=ImageDocument.STATEMENT)
    assert (wanted.ref, wanted.credentials, wanted.handler) == (plain.ref, plain.credentials, plain.handler)
    assert wanted.version_is_parameter == plain.version_is_parameter


def test_checksums_of_a_directory() -> None:
    route = parse("/base/boot-artifacts/4.20/arm64/SHA256SUMS", base_path="/base")
    artifacts = {each.value: ArtifactRef(each, "4.20", "aarch64") for each in BootArtifact}
    assert route == ChecksumsRoute("/boot-artifacts/:version/:arch/:file", artifacts)


@pytest.mark.parametrize("directory", ["/boot-artifacts/4.20/arm64", f"/byid/{ID}/4.20/arm64"])
@pytest.mark.parametrize("name", ["SHA256SUMS.sha256", "SHA256SUMS.intoto.json", "SHA256SUMS?digest=sha256"])
def test_checksums_have_no_document(directory: str, name: str) -> None:
    with pytest.raises(NotFound, match="has neither digest nor statement"):
        parse(f"{directory}/{name}")


@pytest.mark.parametrize(
    ("directory", "query"),
    [
        (f"/byid/{ID}", ""),
        (f"/byid/{ID}", "?api_key=secret"),
        (f"/byid/{ID}", "?image_token=secret"),
        (f"/bytoken/{jwt({'sub': ID})}", ""),
        (f"/byapikey/{jwt({'sub': ID})}", ""),
    ],
)
def test_checksums_of_an_infra_env_are_of_the_images_of_its_directory(directory: str, query: str) -> None:
    route = parse(f"{directory}/4.20/arm64/SHA256SUMS{query}")
    assert isinstance(route, ChecksumsRoute)
    assert list(route.files) == ["full.iso", "minimal.iso", "disconnected.iso", "config.iso"]
    for name, ref in route.files.items():
        wanted = image(f"{directory}/4.20/arm64/{name}{query}")
        assert (route.handler, ref, route.credentials) == (wanted.handler, wanted.ref, wanted.credentials)


def test_unknown_form_of_a_statement_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="parameter statement is invalid; the only value is intoto"):
        parse(f"/images/{ID}?version=4.20&type=full&statement=slsa")


@pytest.mark.parametrize("algorithm", ["md5", "SHA256", "sha-256", "sha256%20"])
def test_unknown_digest_algorithm_is_refused(algorithm: str) -> None:
    for target in (
        f"/images/{ID}?version=4.20&type=full&digest=",
        "/boot-artifacts/rootfs?version=4.20&digest=",
    ):
        with pytest.raises(
            InvalidParameter, match=r"query parameter digest .* the only value is sha256"
        ) as caught:
            parse(f"{target}{algorithm}")
        assert status_of(caught.value) == 400
    assert image(f"/images/{ID}?version=4.20&type=full&digest=").document is None


@pytest.mark.parametrize(
    ("path", "ref"),
    [
        ("stable.json", StreamDocumentRef("stable")),
        ("stable-2.json", StreamDocumentRef("stable-2")),
        ("stable/configmap.yaml", StreamConfigMapRef("stable")),
        ("configmap.yaml", StreamConfigMapRef(None)),
        (
            "stable/44.1/x86_64/a%2Fb%252F.iso.sig",
            StreamFileRef("stable", "44.1", "x86_64", "a/b%2F.iso.sig"),
        ),
        ("stable/44.1/x86_64/live.iso.sha256", StreamFileRef("stable", "44.1", "x86_64", "live.iso.sha256")),
    ],
)
def test_file_of_a_stream(path: str, ref: StreamRef) -> None:
    for target in (f"/streams/{path}", f"/base/streams/{path}", f"/streams/{path}?digest=md5"):
        route = parse(target, base_path="/base")
        assert isinstance(route, MirrorRoute)
        assert route.ref == ref


@pytest.mark.parametrize(
    ("path", "handler"),
    [
        ("stable", "/streams/:document"),
        ("stable.yaml", "/streams/:document"),
        ("stable/other.yaml", "/streams/:stream/:document"),
    ],
)
def test_unknown_document_of_a_stream_keeps_its_route_for_log_and_metrics(path: str, handler: str) -> None:
    assert parse(f"/streams/{path}") == MirrorRoute(handler, None)


@pytest.mark.parametrize("document", PublicDocument)
def test_documents_exist_at_the_root_and_below_the_base_path(document: PublicDocument) -> None:
    assert parse(f"{document.value}?x") is document
    assert parse(f"/base{document.value}", base_path="/base") is document


@pytest.mark.parametrize(
    ("target", "probe"),
    [
        ("/health", Probe.HEALTH),
        ("/live", Probe.LIVE),
        ("/images", Probe.IMAGES),
        ("/health?x", Probe.HEALTH),
        ("/health?digest=md5", Probe.HEALTH),
    ],
)
def test_probe_routes(target: str, probe: Probe) -> None:
    assert parse(target) is probe
    assert parse(f"/base{target}", base_path="/base") is probe


@pytest.mark.parametrize(
    "target",
    [
        "//",
        "",
        "/images/",
        f"/images/{ID}/",
        f"/images/{ID}/x?version=4.20&type=full-iso",
        f"//images/{ID}?version=4.20&type=full-iso",
        f"/Images/{ID}?version=4.20&type=full-iso",
        f"/byid/{ID}/4.20/x86_64",
        f"/byid/{ID}/4.20/x86_64/full.iso/",
        f"/byid/{ID}//x86_64/full.iso",
        f"/byid/{ID}/4.20/x86_64/other.iso",
        f"/byid/{ID}/4.20/x86_64/FULL.ISO",
        f"/byid/{ID}/4.20/x86_64/full.iso%00",
        f"/byid/{ID}/4.20/x86_64/agent-ove.x86_64.iso",
        f"/byid/{ID}/%FF/x86_64/full.iso",
        f"/byid/../byid/{ID}/4.20/x86_64/full.iso",
        f"/clusters/{ID}/downloads",
        f"/api/assisted-install/v3/clusters/{ID}/downloads/image",
        f"/byid/{ID}/4.20/x86_64/full.iso.sha256.sha256",
        f"/byid/{ID}/4.20/x86_64/full.iso.md5",
        f"/byid/{ID}/4.20/x86_64/.sha256",
        f"/images/{ID}/initrd?version=4.20",
        f"/images/{ID}/pxe-initrd/?version=4.20",
        f"/images/{ID}/Pxe-Initrd?version=4.20",
        "/boot-artifacts?version=4.20",
        "/boot-artifacts/?version=4.20",
        "/boot-artifacts/initrd?version=4.20",
        "/boot-artifacts/vmlinuz?version=4.20",
        "/boot-artifacts/rootfs/?version=4.20",
        "/boot-artifacts/4.20/x86_64/kernel",
        "/boot-artifacts/4.20/x86_64/rootfs",
        "/boot-artifacts/4.20/x86_64/images/pxeboot/rootfs.img",
        "/boot-artifacts/4.20//rootfs.img",
        "/boot-artifacts/4.20/%FF/rootfs.img",
        "/streams",
        "/streams/",
        "/streams/stable/44.1/x86_64",
        "/streams/stable//x86_64/live.iso",
        "/streams/stable/44.1/x86_64/%FF",
        "/streams/stable/44.1/x86_64/live.iso/",
        "/nothing?digest=md5",
        "/.sha256",
        "/health.sha256",
        "/live.sha256",
        "/health/",
        "/healthy",
        "/live%0A",
        "/base",
    ],
)
def test_unknown_path_is_not_found(target: str) -> None:
    for path in (target, f"/other{target}", f"/base/base{target}", f"/bas{target}"):
        with pytest.raises(NotFound):
            parse(path, base_path="/base")


def test_path_with_two_slashes_in_a_row_is_named() -> None:
    for target in (f"//images/{ID}?version=4.20&type=full-iso", f"/byid/{ID}//x86_64/full.iso"):
        with pytest.raises(NotFound, match="two slashes in a row"):
            parse(target)
    with pytest.raises(NotFound, match=r"^not found$"):
        parse("/images/?url=http://a")


@pytest.mark.parametrize(
    "infra_env_id",
    [
        ID.upper(),
        ID[:-1],
        f"{ID}0",
        ID.replace("-", ""),
        f"{{{ID}}}",
        f"urn:uuid:{ID}",
        ID.replace("a", "g", 1),
        f"{ID}%0A",
        f"%20{ID}",
        ID.replace("1", "%D9%A1", 1),  # another alphabet's digit one
        "..",
    ],
)
@pytest.mark.parametrize(
    "route",
    [
        "/images/{}?version=4.20&type=full-iso",
        "/byid/{}/4.20/x86_64/full.iso",
        "/clusters/{}/downloads/image",
    ],
)
def test_identifier_must_be_a_lower_case_uuid(route: str, infra_env_id: str) -> None:
    with pytest.raises(NotFound, match="lower-case UUID"):
        parse(route.format(infra_env_id))


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "type"),
        ("type=full-iso", "version"),
        ("version=4.20", "type"),
        ("version=&type=full-iso", "version"),
        ("version=4.20&type=", "type"),
        ("Version=4.20&type=full-iso", "version"),
        ("version=4.20&type=iso", "type"),
        ("version=4.20&type=FULL-ISO", "type"),
        ("version=4.20&type=full-iso%20", "type"),
        ("version=4.20;type=full-iso", "type"),
    ],
)
def test_missing_or_unknown_parameter_is_named(query: str, parameter: str) -> None:
    with pytest.raises(InvalidParameter, match=f"query parameter {parameter} ") as caught:
        parse(f"/images/{ID}?{query}")
    assert status_of(caught.value) == 400


def test_cluster_route_refuses_an_unknown_type_too() -> None:
    with pytest.raises(InvalidParameter, match="full-iso"):
        parse(f"/clusters/{ID}/downloads/image?type=x")


def test_first_of_repeated_parameters_counts() -> None:
    route = image(
        f"/images/{ID}?version=1&type=full&version=2&type=minimal&arch=a&arch=b&api_key=k&api_key=l"
    )
    assert route.ref == ImageRef(ID, "1", "a", FULL)
    assert route.credentials == api_key("k")


def test_percent_encoding_is_decoded_once_within_segments() -> None:
    assert image(f"/byid/{ID}/4%2E20%2F1%252F/x%20y/full%2Eiso").ref == ImageRef(ID, "4.20/1%2F", "x y", FULL)
    assert image(f"/images/{ID.replace('a', '%61', 1)}?version=4%2e20&type=full%2Diso").ref == ImageRef(
        ID, "4.20", "x86_64", FULL
    )
    for escaped, version in (("a+b%zz", "a b%zz"), ("%ff", "\ufffd")):
        found = image(f"/images/{ID}?version={escaped}&type=full").ref
        assert found == ImageRef(ID, version, "x86_64", FULL)


# Credentials: the first that is present, in the contract's order.

IN_QUERY = "api_key=K&image_token=T"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (f"/byid/{ID}/4.20/x86_64/full.iso", None),
        (f"/byid/{ID}/4.20/x86_64/full.iso?api_key=", None),
        (f"/byid/{ID}/4.20/x86_64/full.iso?image_token=T", image_token("T")),
        (f"/byid/{ID}/4.20/x86_64/full.iso?image_token=T&api_key=K", api_key("K")),
        (f"/byapikey/{TOKEN}/4.20/x86_64/full.iso", api_key(TOKEN)),
        (f"/byapikey/{TOKEN}/4.20/x86_64/full.iso?{IN_QUERY}", api_key(TOKEN)),
        (f"/bytoken/{TOKEN}/4.20/x86_64/full.iso", image_token(TOKEN)),
        (f"/bytoken/{TOKEN}/4.20/x86_64/full.iso?image_token=T", image_token(TOKEN)),
        (f"/bytoken/{TOKEN}/4.20/x86_64/full.iso?{IN_QUERY}", api_key("K")),
        (f"/images/{ID}?version=4.20&type=full&{IN_QUERY}", api_key("K")),
        (f"/images/{ID}?version=4.20&type=full&image_token=T", image_token("T")),
        (f"/images/{ID}?version=4.20&type=full&api_key=a%26b%3Dc%20d", api_key("a&b=c d")),
        (f"/clusters/{ID}/downloads/image?{IN_QUERY}", api_key("K")),
        (f"/clusters/{ID}/downloads/image", None),
    ],
)
def test_first_credential_present_is_used(target: str, expected: Credentials | None) -> None:
    assert image(target).credentials == expected
    bearer = authorization("Bearer x y=")
    assert image(target, "Bearer x y=").credentials == (expected or bearer)
    assert image(target, "").credentials == expected


# JSON web tokens.


@pytest.mark.parametrize("route", ["/byapikey/{}/4.20/x86_64/full.iso", "/bytoken/{}/4.20/x86_64/full.iso"])
@pytest.mark.parametrize(
    "token",
    [
        jwt({"sub": ID}),
        jwt({"infra_env_id": ID}),
        jwt({"sub": ID, "infra_env_id": OTHER_ID}),
        jwt({"sub": "", "infra_env_id": ID}),
        jwt({"sub": None, "infra_env_id": ID}),
        jwt({"sub": ID, "x": "a"}),
        jwt({"sub": ID, "x": "ab"}),
        jwt({"sub": ID, "x": "abc"}),
        jwt({"sub": ID, "exp": 1e300, "x": [[[]]]}),
        jwt({"sub": ID}, signature=""),
        f".{segment(json.dumps({'sub': ID}).encode())}.",
        f"a.{base64.urlsafe_b64encode(json.dumps({'sub': ID, 'x': 'ab'}).encode()).decode()}.b",  # padded
        f"a.{segment(json.dumps({'sub': ID, 'x': 'ÿ¾?>~' * 9}, ensure_ascii=False).encode())}.b",
    ],
)
def test_identifier_is_read_from_the_token(route: str, token: str) -> None:
    ref = image(route.format(token)).ref
    assert isinstance(ref, ImageRef)
    assert ref.infra_env_id == ID


def test_token_is_decoded_as_base64url() -> None:
    payload = segment(json.dumps({"sub": ID, "x": "ÿ¾?>~" * 9}, ensure_ascii=False).encode())
    assert {"-", "_"} <= set(payload), "the case above shows something"


@pytest.mark.parametrize("route", ["/byapikey/{}/4.20/x86_64/full.iso", "/bytoken/{}/4.20/x86_64/full.iso"])
@pytest.mark.parametrize(
    "token",
    [
        "x",
        ".",
        "..",
        "a.b",
        "a.b.c.d",
        "a.%.c",
        "a.!.c",
        "a.%20.c",
        "a.%E2%82%AC.c",
        f"{TOKEN}.x",
        f"a.{segment(b'')}.c",
        f"a.{segment(b'not JSON')}.c",
        f"a.{segment(bytes([0xFF, 0xFE]))}.c",
        f"a.{segment(b'[' * 5000)}.c",
        f"a.{segment(b'9' * 5000)}.c",
        f"a.{segment(b'{')}.c",
        f"a.A{TOKEN.split('.')[1]}.c",
        f"a.{TOKEN.split('.')[1]}%0A.c",
        f"a.{TOKEN.split('.')[1]}====.c",
        jwt([ID]),
        jwt(ID),
        jwt(5),
        jwt(None),
        jwt({}),
        jwt({"sub": 5}),
        jwt({"sub": [ID]}),
        jwt({"sub": {}, "infra_env_id": {}}),
        jwt({"sub": "admin"}),
        jwt({"sub": ID.upper()}),
        jwt({"sub": f"{ID}\n"}),
        jwt({"sub": f"../{ID}"}),
        jwt({"SUB": ID}),
    ],
)
def test_token_without_an_infra_env_is_not_found(route: str, token: str) -> None:
    with pytest.raises(NotFound):
        parse(route.format(token))


@pytest.mark.parametrize(
    "secret", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0", "a b", "a\tb", "\x7f", "ä", "\u2028"]
)
def test_token_cannot_inject_another_field_upstream(secret: str) -> None:
    for target in (
        f"/images/{ID}?version=4.20&type=full&image_token={quote(secret)}",
        f"/bytoken/{jwt({'sub': ID}, quote(secret, safe=''))}/4.20/x86_64/full.iso",
    ):
        with pytest.raises(InvalidParameter, match="token"):
            parse(target)


SECRET = "s3cr3t"
CLAIM = jwt({"sub": ID, "x": SECRET}, SECRET)
WRONG_CLAIM = jwt({"sub": SECRET})


@pytest.mark.parametrize(
    "target",
    [
        f"/byapikey/{CLAIM}/4.20/x86_64/full.iso",
        f"/bytoken/{CLAIM}/4.20/x86_64/full.iso",
        f"/images/{ID}?version=4.20&type=full&api_key={SECRET}",
        f"/images/{ID}?version=4.20&type=full&image_token={SECRET}",
        f"/clusters/{ID}/downloads/image",
    ],
)
def test_repr_of_a_route_shows_no_credential(target: str) -> None:
    route = image(target, f"Bearer {SECRET}")
    assert route.credentials is not None
    assert SECRET in route.credentials.secret
    assert SECRET not in f"{route!r} {route}"
    assert SECRET not in repr(routes._Target("", {"api_key": SECRET}, SECRET))


@pytest.mark.parametrize(
    "target",
    [
        f"/byapikey/{WRONG_CLAIM}/4.20/x86_64/full.iso",
        f"/bytoken/a.{segment(SECRET.encode())}.{SECRET}/4.20/x86_64/full.iso",
        f"/bytoken/{SECRET}/4.20/x86_64/full.iso",
        f"/bytoken/{CLAIM}/4.20/x86_64/{SECRET}.iso",
        f"/bytoken/{CLAIM}%00/4.20/x86_64/full.iso",
        f"/images/{SECRET}?version=4.20&type=full",
        f"/images/{ID}?version=4.20&type={SECRET}",
        f"/images/{ID}?type=full&api_key={SECRET}",
        f"/images/{ID}?version=4.20&type=full&image_token={SECRET}%0A",
        f"/{SECRET}%FF/{SECRET}",
        f"/byid/{SECRET}%FF/4.20/x86_64/full.iso",
    ],
)
def test_refusals_show_nothing_of_the_target(target: str) -> None:
    with pytest.raises(ImageServiceError) as caught:
        parse(target, f"Bearer {SECRET}")
    assert SECRET not in f"{caught.value!r} {caught.value.fields}"
    assert caught.value.__context__ is None, "an error in the background would hold what was decoded"


targets = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#"), max_size=80)
segments = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#/?"), max_size=20
)


@given(
    targets.map("/{}".format)
    | targets.map(f"/images/{ID}?{{}}".format)
    | targets.map(f"/images/{ID}?version=4.20&type=full&{{}}".format)
    | segments.map("/bytoken/{}/4.20/x86_64/full.iso".format)
    | segments.map(f"/bytoken/{TOKEN}{{}}/4.20/x86_64/full.iso".format)
    | segments.map(f"/byapikey/a.{{}}.c/4.20/{ID}/full.iso".format)
)
def test_any_target_is_a_route_or_a_refusal(target: str) -> None:
    try:
        route = parse(target)
    except (NotFound, InvalidParameter):
        return
    if isinstance(route, ImageRoute) and route.credentials is not None:
        secret = route.credentials.secret
        assert secret
        if route.credentials.scheme is CredentialScheme.IMAGE_TOKEN:
            assert all("!" <= character <= "~" for character in secret)
