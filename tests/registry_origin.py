"""A registry in the test's own process, whose answers can be spoilt; it asks for tokens if it has users."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import attrs

from tests.server.catalog.origin import Reply, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.server.catalog.origin import Origin, ReceivedRequest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
RAW = "application/octet-stream"
GZIP_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
TITLE = "org.opencontainers.image.title"
USER = "robot"
PASSWORD = "password-of-a-registry"


def digest_of(content: bytes) -> str:
    """Return the digest of a blob."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar_of(files: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """Return a tar of files, or of other members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            body = content if isinstance(content, bytes) else b""
            member.name, member.size = name, len(body)
            archive.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def layer_of(files: Mapping[str, bytes | tarfile.TarInfo]) -> tuple[bytes, str]:
    """Return a layer of a container image, and its media type."""
    return gzip.compress(tar_of(files), 1, mtime=0), GZIP_LAYER


@attrs.define
class RegistryOrigin:
    """Scripts an origin as a registry.

    Args:
        needs_token: requests need a Bearer token, which the origin issues to `USER` at ``/token``.
        tokens: number of those issued; only the last one is valid.
        token_answer: members of the answer of the token server.
        spoil: changes the reply to a request of a blob.
    """

    origin: Origin
    repository: str = "coreos/iso"
    needs_token: bool = False
    tokens: int = 0
    token_answer: dict[str, Any] = attrs.field(factory=lambda: {"expires_in": 300})
    spoil: Callable[[ReceivedRequest, Reply], Reply] = lambda _, reply: reply
    blobs: dict[str, bytes] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.origin.serve("/token", self._issue)
        self.origin.serve("/v2/", Reply())

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.origin.port}"

    def url(self, name: str = ":latest", path: str = "") -> str:
        """Return the URL of a file."""
        return f"oci://{self.host}/{self.repository}{name}" + (f"#{path}" if path else "")

    def blob(self, content: bytes) -> str:
        """Add a blob; return its digest."""
        digest = digest_of(content)
        self.blobs[digest] = content

        def reply(request: ReceivedRequest) -> Reply:
            return self.spoil(request, Resource(content, "", "")(request))

        self._serve(f"blobs/{digest}", reply)
        return digest

    def manifest(
        self,
        layers: Sequence[tuple[bytes, str] | tuple[bytes, str, str]],
        tag: str = "latest",
        **members: object,
    ) -> str:
        """Add an image; return its digest.

        Args:
            layers: content, media type, and the title if it has one.
            members: further ones of the manifest.
        """
        entries = []
        for content, media_type, *title in layers:
            entry = {"mediaType": media_type, "digest": self.blob(content), "size": len(content)}
            entries.append({**entry, "annotations": {TITLE: title[0]}} if title else entry)
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.empty.v1+json",
                "digest": self.blob(b"{}"),
                "size": 2,
            },
            "layers": entries,
            **members,
        }
        return self.put_manifest(json.dumps(document).encode(), OCI_MANIFEST, tag)

    def index(self, images: Mapping[str, str], tag: str = "latest") -> str:
        """Add an index of images by architecture (Go's names); return its digest."""
        entries = [
            {
                "mediaType": OCI_MANIFEST,
                "digest": digest,
                "size": 1,
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, digest in images.items()
        ]
        content = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).encode()
        return self.put_manifest(content, OCI_INDEX, tag)

    def put_manifest(self, content: bytes, media_type: str, tag: str) -> str:
        """Serve a manifest under its digest and a tag, which is moved; return the digest."""
        digest = digest_of(content)
        fields = {"Content-Type": media_type, "Docker-Content-Digest": digest}
        for name in (tag, digest):
            self._serve(f"manifests/{name}", lambda _: Reply(content, headers=fields))
        return digest

    @property
    def token(self) -> str:
        """The one that is valid."""
        return f"token-{self.tokens}"

    def _serve(self, path: str, reply: Callable[[ReceivedRequest], Reply]) -> None:
        def guarded(request: ReceivedRequest) -> Reply:
            if self.needs_token and request.headers["Authorization"] != f"Bearer {self.token}":
                challenge = f'Bearer realm="{self.origin.url("/token")}",service="tests"'
                return Reply(status=401, headers={"WWW-Authenticate": challenge})
            return reply(request)

        self.origin.replies[f"/v2/{self.repository}/{path}"] = [guarded]

    def _issue(self, request: ReceivedRequest) -> Reply:
        wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if request.headers["Authorization"] != f"Basic {wanted}":
            return Reply(status=401)
        self.tokens += 1
        return Reply(json.dumps({"token": self.token, **self.token_answer}).encode())


def auth_entry(user: str = USER, password: str = PASSWORD) -> Mapping[str, str]:
    """Return an entry of a file of credentials."""
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


GO = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architectures in the names of Go."""


def references(**images: str) -> bytes:
    """Return the images of a release payload, by name."""
    tags = [{"name": name, "from": {"kind": "DockerImage", "name": image}} for name, image in images.items()]
    return json.dumps(
        {"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "spec": {"tags": tags}}
    ).encode()


def publish_payload(
    payload: RegistryOrigin,
    images: RegistryOrigin,
    files: Mapping[str, Mapping[str, bytes]],
    config_map: bytes | None = None,
    tag: str = "5.0",
) -> str:
    """Publish a release payload of the form of a real one; return the digest of its index.

    Args:
        payload: its repository.
        images: the repository of its images.
        files: of machine-os-images, by architecture.
        config_map: ``coreos-bootimages``; None: it has none.
    """
    payloads = {}
    for architecture, content in files.items():
        image = images.manifest(
            [
                layer_of({"etc/os-release": b"RHEL"}),
                layer_of({f"coreos/{name}": each for name, each in content.items()}),
                layer_of({"bin/copy-iso": b"#!"}),
            ],
            tag=f"machine-os-images-{architecture}",
        )
        name = f"{images.host}/{images.repository}@{image}"
        named = references(**{"machine-os-images": name, "cli": name.replace("machine", "cli")})
        manifests = {"release-manifests/image-references": named}
        if config_map is not None:
            manifests["release-manifests/0000_50_installer_coreos-bootimages.yaml"] = config_map
        layers = [layer_of({"bin/cvo": b"x"}), layer_of({**manifests})]
        payloads[GO[architecture]] = payload.manifest(layers, tag=architecture)
    return payload.index(payloads, tag=tag)
