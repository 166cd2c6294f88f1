"""What a request names: an image, and the credentials that may see it."""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

DEFAULT_ARCHITECTURE = "x86_64"
"""What is meant where neither request nor infra-env says."""


class Kind(enum.Enum):
    """The kinds of image; the ISOs as ``type`` and ``discovery_iso_type`` spell them."""

    FULL_ISO = "full-iso"
    MINIMAL_ISO = "minimal-iso"
    DISCONNECTED_ISO = "disconnected-iso"
    PXE_INITRD = "pxe-initrd"
    INITRD_ADDRSIZE = "s390x-initrd-addrsize"

    @property
    def is_iso(self) -> bool:
        """Whether a machine boots it as a medium."""
        return self in ISOS

    @property
    def question(self) -> Kind:
        """The kind that assisted-service is asked about: what an s390x is told is about its initrd."""
        return Kind.PXE_INITRD if self is Kind.INITRD_ADDRSIZE else self

    @property
    def base(self) -> Kind:
        """The kind of base image that it is made from."""
        return self if self is Kind.DISCONNECTED_ISO else Kind.FULL_ISO


ISOS = (Kind.FULL_ISO, Kind.MINIMAL_ISO, Kind.DISCONNECTED_ISO)


class Artifact(enum.Enum):
    """The files of a base image that are served as they are, by the names of their downloads."""

    KERNEL = "vmlinuz"
    INITRD = "initrd.img"
    ROOTFS = "rootfs.img"
    INS_FILE = "generic.ins"


@attrs.frozen(cache_hash=True)
class ArtifactRef:
    """One file of one base image.

    Args:
        artifact: which.
        version: the OS build or OpenShift version asked for.
        architecture: as ``OS_IMAGES`` spells it.
    """

    artifact: Artifact
    version: str
    architecture: str


@attrs.frozen(cache_hash=True)
class ImageRef:
    """One image of one infra-env.

    Args:
        infra_env_id: lower-case UUID.
        version: the OS build or OpenShift version asked for; None: the infra-env's own.
        architecture: as ``OS_IMAGES`` spells it (``x86_64``, ``aarch64``, ``s390x``, ``ppc64le``); None:
            the infra-env's own.
        kind: None: the infra-env's own.
    """

    infra_env_id: str
    version: str | None
    architecture: str | None
    kind: Kind | None


Ref: TypeAlias = ImageRef | ArtifactRef


class CredentialScheme(enum.Enum):
    """How a credential travels to assisted-service."""

    API_KEY = "api_key"  # query parameter
    IMAGE_TOKEN = "Image-Token"  # header field  # noqa: S105 - a field's name, not a secret
    AUTHORIZATION = "Authorization"  # header field


@attrs.frozen(cache_hash=True)
class Credentials:
    """The one credential that a request carries on to assisted-service.

    Args:
        scheme: where it goes.
        secret: its value; kept out of every representation.
    """

    scheme: CredentialScheme
    secret: str = attrs.field(repr=False)


@attrs.frozen(cache_hash=True)
class Reader:
    """Who reads what.

    Args:
        address: the client's.
        credentials: the client's.
        ref: what it asked for.
    """

    address: str
    credentials: Credentials | None
    ref: Ref
