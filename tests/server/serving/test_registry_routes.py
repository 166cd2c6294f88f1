"""What requests to the registry ask for, and with which credentials."""

from __future__ import annotations

import base64
import json

import pytest

from image_service.core.errors import NotFound
from image_service.core.images.reference import Credentials, CredentialScheme, ImageRef, Kind
from image_service.server.serving.registry_routes import RegistryObject, RegistryRoute, parse_registry_route

ID = "5a3b1e00-0000-4000-8000-000000000001"
REPOSITORY = f"byid/{ID}/4.20/x86_64/full.iso"
DIGEST = "ab" * 32


def jwt(**claims: str) -> str:
    parts = ({"alg": "none"}, claims)
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        + ".x"
    )


def asked_for(target: str, authorization: str | None = None) -> RegistryRoute:
    headers = {} if authorization is None else {"authorization": authorization}
    route = parse_registry_route(target, headers)
    assert route is not None
    return route


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("path", "kind", "digest"),
    [
        ("manifests/latest", RegistryObject.MANIFEST, None),
        (f"manifests/sha256:{DIGEST}", RegistryObject.MANIFEST, bytes.fromhex(DIGEST)),
        (f"blobs/sha256:{DIGEST}", RegistryObject.BLOB, bytes.fromhex(DIGEST)),
        ("tags/list", RegistryObject.TAGS, None),
    ],
)
def test_repository_is_the_path_of_the_image(path: str, kind: RegistryObject, digest: bytes | None) -> None:
    route = asked_for(f"/v2/{REPOSITORY}/{path}?n=1")
    assert (route.kind, route.digest, route.repository) == (kind, digest, REPOSITORY)
    assert route.image is not None
    assert route.image.ref == ImageRef(ID, "4.20", "x86_64", Kind.FULL_ISO)


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (None, None),
        (basic(":"), None),
        ("Basic ???", None),
        (basic("user"), None),
        (basic("user:a b"), None),
        (basic("user:ä"), None),
        (basic("user:key"), Credentials(CredentialScheme.API_KEY, "key")),
        (basic("image_token:key:more"), Credentials(CredentialScheme.IMAGE_TOKEN, "key:more")),
        (basic(f"user:{jwt(sub=ID)}"), Credentials(CredentialScheme.IMAGE_TOKEN, jwt(sub=ID))),
        (
            basic(f"image_token:{jwt(infra_env_id=ID)}"),
            Credentials(CredentialScheme.API_KEY, jwt(infra_env_id=ID)),
        ),
        ("Bearer key", Credentials(CredentialScheme.AUTHORIZATION, "Bearer key")),
    ],
)
def test_password_is_what_the_url_would_have(authorization: str | None, expected: Credentials | None) -> None:
    route = asked_for(f"/v2/{REPOSITORY}/tags/list", authorization)
    assert route.image is not None
    assert route.image.credentials == expected
    assert route.has_credentials is (authorization is not None)


@pytest.mark.parametrize(
    "path",
    [
        "x",
        "library/x/manifests/latest",
        f"{REPOSITORY}/manifests/4.20",
        f"{REPOSITORY}/blobs/latest",
        f"{REPOSITORY}/tags/latest",
        f"{REPOSITORY}/blobs/sha512:{DIGEST}",
        f"{REPOSITORY}/blobs/sha256:{DIGEST.upper()}",
        f"{REPOSITORY}.sha256/tags/list",
        "byid/../../health/tags/list",
        f"byid/{ID}/4.20/x86_64/other.iso/tags/list",
        f"byid/{ID.upper()}/4.20/x86_64/full.iso/tags/list",
    ],
)
def test_other_paths_of_the_registry_are_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        parse_registry_route(f"/v2/{path}", {})


@pytest.mark.parametrize("target", ["/", "/v2", f"/{REPOSITORY}", "/v20/"])
def test_other_paths_are_not_of_the_registry(target: str) -> None:
    assert parse_registry_route(target, {}) is None
