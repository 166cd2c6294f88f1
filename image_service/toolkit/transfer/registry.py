"""Publishes a file in an OCI registry: as an artifact, or as a container disk of KubeVirt."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from image_service.common.concurrency.interruption import Interruption
from image_service.common.http.watch import RequestLimits
from image_service.common.registry.client import digest_of
from image_service.common.registry.connections import (
    RegistryCall,
    RegistryOptions,
    Unchanging,
    read_once,
)
from image_service.common.registry.credentials import CredentialStore, parse_auth_file
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.manifests import (
    DISK_FORMATS,
    DISK_TYPE,
    EMPTY_TYPE,
    FILE_TYPE,
    GO_ARCHITECTURES,
    MANIFEST_TYPE,
    TITLE,
)
from image_service.common.registry.mirrors import RegistryRules
from image_service.common.registry.pusher import BlobSource, RegistryPusher
from image_service.core.errors import ConfigurationError, InvalidArguments, TransferFailed
from image_service.core.formats.reading import read_exactly
from image_service.toolkit.transfer.parallel import TransferMeter, run_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.common.registry.references import ImageReference
    from image_service.toolkit.transfer.publish import PublishableFile
    from image_service.toolkit.workspace.workspace import Workspace

ARTIFACT, CONTAINER_DISK = "artifact", "container-disk"
FORMS = (ARTIFACT, CONTAINER_DISK)

_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_BLOCK = 1 << 20
_QEMU = 107  # user and group of QEMU in KubeVirt's pods


_Part: TypeAlias = "tuple[Callable[[int, int], bytes], int]"


@attrs.frozen
class RegistryPublication:
    """How a file is published in a registry.

    Args:
        form: one of `FORMS`.
        name: of the file, as readers get it.
        content: the format of the file; None: not known.
        architecture: in the names of RPM; of a container disk.
        annotations: further ones of the manifest.
        mount_from: a repository of the registry that may have the same blobs.
    """

    form: str
    name: str
    content: str | None
    architecture: str = "x86_64"
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    mount_from: str = ""


@attrs.frozen
class RegistryAccess:
    """How a registry is reached.

    Args:
        auth_file: credentials; None: those of the user, if there are any.
        ca_file: authorities, beside those of the system.
        is_insecure: the certificate is not verified, and plain HTTP is allowed.
    """

    auth_file: Path | None = None
    ca_file: Path | None = None
    is_insecure: bool = False


@attrs.frozen
class PublishedArtifact:
    """What was published.

    Args:
        location: ``oci://`` with the digest of the manifest.
        digest: of the manifest.
    """

    location: str
    digest: str


def publish_artifact(
    file: PublishableFile,
    reference: ImageReference,
    publication: RegistryPublication,
    access: RegistryAccess,
    workspace: Workspace,
) -> PublishedArtifact:
    """Upload a file, and then its manifest, so that nobody finds a part of it.

    Raises:
        InvalidArguments: a container disk is not of this format.
        TransferFailed: the registry cannot be reached, or refuses.
        TimedOut: a limit is exceeded.
    """
    layer, members = _make_layer(file, publication, workspace)
    config, config_type = _make_config(publication, layer)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        **({"artifactType": members["mediaType"]} if config_type == EMPTY_TYPE else {}),
        "config": {"mediaType": config_type, "digest": digest_of(config), "size": len(config)},
        "layers": [{**members, "digest": layer.digest, "size": layer.size}],
        **({"annotations": dict(publication.annotations)} if publication.annotations else {}),
    }
    manifest = json.dumps(document).encode()
    interruption = Interruption()
    call = RegistryCall(RequestLimits(total_seconds=workspace.seconds_left), interruption)
    workspace.progress.start("upload", layer.size)
    meter = TransferMeter(workspace)

    def push() -> str:
        with closing(RegistryPusher(_options(access, reference), reference, call)) as pusher:
            pusher.push_blob(layer, meter.add, publication.mount_from)
            pusher.push_blob(BlobSource(digest_of(config), len(config), partial(_slice, config)))
            return pusher.push_manifest(manifest, MANIFEST_TYPE, reference.tag or digest_of(manifest))

    try:
        digest = run_one(push, workspace, interruption.interrupt)
    except RegistryFailed as error:
        raise TransferFailed(error.reason) from None
    workspace.progress.finish()
    return PublishedArtifact(f"oci://{reference.with_digest(digest)}", digest)


def _make_layer(
    file: PublishableFile, publication: RegistryPublication, workspace: Workspace
) -> tuple[BlobSource, dict[str, Any]]:
    """Return the layer, and what the manifest says about it."""

    def read_at(offset: int, length: int) -> bytes:
        return os.pread(file.descriptor, length, offset)

    is_disk = publication.content in DISK_FORMATS
    if publication.form == ARTIFACT:
        digest = _digest([(read_at, file.size)], workspace)
        layer = BlobSource(digest, file.size, partial(read_exactly, read_at))
        annotations = {TITLE: publication.name, **({"disktype": publication.content} if is_disk else {})}
        media_type = f"{DISK_TYPE}{publication.content}" if is_disk else FILE_TYPE
        return layer, {"mediaType": media_type, "annotations": annotations}
    if not is_disk:
        raise InvalidArguments(
            f"a container disk is {' or '.join(DISK_FORMATS)}, not {publication.content or 'any file'}:"
            " convert the image first"
        )
    head = _tar_head(publication.name, file.size)
    tail = bytes(-file.size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)
    parts: list[_Part] = [
        (partial(_slice, head), len(head)),
        (read_at, file.size),
        (partial(_slice, tail), len(tail)),
    ]

    def read_layer(offset: int, length: int) -> bytes:
        found, start = [], 0
        for read, size in parts:
            begin, end = max(offset, start), min(offset + length, start + size)
            if begin < end:
                found.append(read_exactly(read, begin - start, end - begin))
            start += size
        return b"".join(found)

    size = sum(size for _, size in parts)
    return BlobSource(_digest(parts, workspace), size, read_layer), {"mediaType": _LAYER}


def _tar_head(name: str, size: int) -> bytes:
    """Return the members of a tar before the content of ``disk/NAME``, as KubeVirt wants it."""
    directory, file = tarfile.TarInfo("disk"), tarfile.TarInfo(f"disk/{name}")
    directory.type, directory.mode = tarfile.DIRTYPE, 0o555
    file.size, file.mode = size, 0o440
    for member in (directory, file):
        member.uid = member.gid = _QEMU
    return b"".join(member.tobuf(tarfile.PAX_FORMAT) for member in (directory, file))


def _make_config(publication: RegistryPublication, layer: BlobSource) -> tuple[bytes, str]:
    """Return the config of the manifest, and its media type."""
    if publication.form == ARTIFACT:
        return b"{}", EMPTY_TYPE
    architecture = GO_ARCHITECTURES.get(publication.architecture, publication.architecture)
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }
    return json.dumps(document).encode(), _CONFIG


def _digest(parts: list[_Part], workspace: Workspace) -> str:
    digest = hashlib.sha256()
    workspace.progress.start("digest", sum(size for _, size in parts))
    done = 0
    for read, size in parts:
        for offset in range(0, size, _BLOCK):
            block = read_exactly(read, offset, min(_BLOCK, size - offset))
            digest.update(block)
            done += len(block)
            workspace.pace(len(block))
            workspace.progress.set(done)
    workspace.progress.finish()
    return f"sha256:{digest.hexdigest()}"


def _slice(content: bytes, offset: int, length: int) -> bytes:
    return content[offset : offset + length]


def _options(access: RegistryAccess, reference: ImageReference) -> RegistryOptions:
    return RegistryOptions(
        Unchanging(_read_credentials(access.auth_file)),
        Unchanging(RegistryRules()),
        certs_dirs=tuple(map(Path, _names_in("REGISTRY_CERTS_DIR"))),
        ca_file=access.ca_file,
        insecure=frozenset(
            ({reference.registry} if access.is_insecure else set()) | set(_names_in("INSECURE_REGISTRIES"))
        ),
        make_current=read_once,
    )


def _names_in(variable: str) -> list[str]:
    """Return what a variable names, separated by commas."""
    return [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]


def _read_credentials(named: Path | None) -> CredentialStore:
    """Return the credentials of a file, or those that the user has."""
    environ = os.environ
    usual = [
        *map(Path, _names_in("REGISTRY_AUTH_FILE")),
        Path(environ.get("XDG_RUNTIME_DIR") or "/nonexistent", "containers/auth.json"),
        Path(environ.get("HOME") or "/nonexistent", ".docker/config.json"),
    ]
    for path in (named,) if named else usual:
        try:
            return parse_auth_file(path.read_text())
        except OSError as error:
            if named:
                raise ConfigurationError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            if named:
                raise ConfigurationError(f"{path} {'; '.join(error.args)}") from None
    return CredentialStore()
