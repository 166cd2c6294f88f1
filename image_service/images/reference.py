"""What a request names: an image, and the credentials that may see it."""

from __future__ import annotations

import enum

import attrs

DEFAULT_ARCHITECTURE = "x86_64"
"""What is meant where neither request nor infra-env says."""


class Kind(enum.Enum):
    """The kinds of image, as ``type`` and ``discovery_iso_type`` spell them."""

    FULL_ISO = "full-iso"
    MINIMAL_ISO = "minimal-iso"
    DISCONNECTED_ISO = "disconnected-iso"


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
