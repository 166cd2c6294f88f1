"""References: which image or boot artifact a request names, and with which credentials."""

from __future__ import annotations

import enum
import hashlib
import secrets
from typing import ClassVar, Literal, TypeAlias

import attrs

DEFAULT_ARCHITECTURE = "x86_64"
"""The architecture if neither the request nor the infra-env names one."""


class Kind(enum.Enum):
    """The kinds of image; the ISOs' values are those of ``type`` and ``discovery_iso_type``."""

    FULL_ISO = "full-iso"
    MINIMAL_ISO = "minimal-iso"
    DISCONNECTED_ISO = "disconnected-iso"
    PXE_INITRD = "pxe-initrd"
    INITRD_ADDRSIZE = "s390x-initrd-addrsize"
    IPXE_SCRIPT = "ipxe-script"
    CONFIG_ISO = "config-iso"

    @property
    def is_iso(self) -> bool:
        """True if a machine boots it as a medium."""
        return self in ISOS

    @property
    def customization_kind(self) -> Kind:
        """The kind whose customization it is made from: the addrsize file describes a PXE initrd."""
        return Kind.PXE_INITRD if self is Kind.INITRD_ADDRSIZE else self

    @property
    def base_kind(self) -> Kind:
        """The kind of base image that it is made from: full or disconnected ISO."""
        return self if self is Kind.DISCONNECTED_ISO else Kind.FULL_ISO


ISOS = (Kind.FULL_ISO, Kind.MINIMAL_ISO, Kind.DISCONNECTED_ISO)


class BootArtifact(enum.Enum):
    """The files of a base image that are served unchanged, by the names of their downloads."""

    KERNEL = "vmlinuz"
    INITRD = "initrd.img"
    ROOTFS = "rootfs.img"
    INS_FILE = "generic.ins"


@attrs.frozen(cache_hash=True)
class ArtifactRef:
    """One file of one base image."""

    needs_customization: ClassVar[Literal[False]] = False

    artifact: BootArtifact
    version: str  # the requested OS build or OpenShift version
    architecture: str  # as in ``OS_IMAGES``


@attrs.frozen(cache_hash=True)
class ImageRef:
    """One image of one infra-env. None stands for the infra-env's own value."""

    needs_customization: ClassVar[Literal[True]] = True

    infra_env_id: str  # lower-case UUID
    version: str | None  # the requested OS build or OpenShift version
    architecture: str | None  # as in ``OS_IMAGES`` (``x86_64``, ``aarch64``, ``s390x``, ``ppc64le``)
    kind: Kind | None


Ref: TypeAlias = ImageRef | ArtifactRef
_SALT = secrets.token_bytes(32)


@attrs.frozen
class StreamDocumentRef:
    """The metadata of a stream, or of one release: NAME, or NAME-RELEASE."""

    name: str


@attrs.frozen
class StreamConfigMapRef:
    """The metadata of streams as a ConfigMap of OpenShift."""

    name: str | None  # of a stream or an OpenShift version; None: all streams


@attrs.frozen
class StreamFileRef:
    """A file of a stream's release, or its signature."""

    stream: str
    version: str
    architecture: str
    name: str


StreamRef: TypeAlias = StreamDocumentRef | StreamConfigMapRef | StreamFileRef


class CredentialScheme(enum.Enum):
    """The kinds of credential that a request may carry."""

    API_KEY = "api-key"
    IMAGE_TOKEN = "image-token"  # noqa: S105 - a name, not a secret
    AUTHORIZATION = "authorization"


@attrs.frozen(cache_hash=True)
class Credentials:
    """The credential of a request, passed on to assisted-service. Caches know it by its digest alone."""

    scheme: CredentialScheme = attrs.field(eq=False)
    secret: str = attrs.field(repr=False, eq=False)
    digest: bytes = attrs.field(init=False, repr=False)  # SHA-256 of both, salted: different in each process

    @digest.default
    def _make_digest(self) -> bytes:
        return hashlib.sha256(_SALT + f"{self.scheme.value} {self.secret}".encode()).digest()


def digest_of(credentials: Credentials | None) -> bytes | None:
    """Return the digest of credentials; None: a request without any."""
    return None if credentials is None else credentials.digest


@attrs.frozen
class PinnedVersion:
    """The one version of an image that a pinned link names.

    Args:
        base_sha256: of the base image, lower-case hex.
    """

    generation: int
    base_sha256: str


ReaderKey: TypeAlias = tuple[str, bytes | None, Ref, PinnedVersion | None]
"""A reader without its secret: address, digest of the credentials, reference, pin."""


@attrs.frozen
class Reader:
    """A client that reads an image, and the key by which caches know it.

    Args:
        pin: the only version that it may read; None: the newest, and in a mount the one that it has begun.
    """

    address: str
    credentials: Credentials | None
    ref: Ref
    pin: PinnedVersion | None = None
    key: ReaderKey = attrs.field(init=False, eq=False, repr=False)

    @key.default
    def _make_key(self) -> ReaderKey:
        return self.address, digest_of(self.credentials), self.ref, self.pin
