"""The bodies of requests: osbuild-composer's, without the parts of members that are refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import attrs

from image_service.common.openapi.bodies import Json, Keywords, body, reference, schemas_of
from image_service.jobs.model import ImageType
from image_service.jobs.plans.plan import CONTAINER, LOCAL, OCI, S3

REFUSED: Final = "refused by error 35, unless it is empty"
"""The description of members that osbuild-composer knows and this service does not support."""
SECRET: Final = Keywords(format="password")
"""Of members that may hold secrets, which are not stored with the request."""

_MAX_UPLOADS = 16
_SHORT = Keywords(maxLength=255)
"""Of names."""
_LONG = Keywords(maxLength=8192)
"""Of texts, as of URLs."""
_NOT_BOTH: dict[str, Any] = {"not": {"required": ["customizations", "blueprint"]}}


def _refused(names: str, description: str = REFUSED) -> dict[str, dict[str, str]]:
    return {name: {"description": description} for name in names.split()}


@body()
class EmbeddedConfig:
    """A config in the request."""

    config: Annotated[str, "an Ignition config, base64", SECRET] = attrs.field(repr=False)


@body()
class FirstbootConfig:
    """A config elsewhere."""

    url: Annotated[str, "from which the machine fetches its config", SECRET, _LONG] = attrs.field(repr=False)


@body(description="embedded or firstboot, not both")
class Ignition:
    """The Ignition config of an image."""

    embedded: EmbeddedConfig | None = None
    firstboot: FirstbootConfig | None = None


@body(properties=_refused("name"))
class KernelBody:
    """The kernel arguments of an image."""

    append: Annotated[str | None, "kernel arguments, separated by blanks", SECRET, _LONG] = attrs.field(
        default=None, repr=False
    )


@body(
    properties=_refused(
        """
        cacerts containers custom_repositories directories disk dnf enabled_modules fdo files filesystem fips
        firewall groups hostname installation_device installer locale openscap packages partitioning_mode
        payload_repositories rhsm rpm services subscription timezone users
        """
    )
)
class Customizations:
    """The customization of an image."""

    ignition: Ignition | None = None
    kernel: KernelBody | None = None


@body(
    properties=_refused(
        """
        cacerts directories disk dnf fdo files filesystem fips firewall group hostname installation_device
        installer locale openscap partitioning_mode repositories rhsm rpm services sshkey timezone user
        """
    )
)
class BlueprintCustomizations(Customizations):
    """The same in a blueprint."""


@body(properties=_refused("containers enabled_modules groups modules packages"))
class Blueprint:
    """A blueprint."""

    name: Annotated[str, _SHORT]
    description: Annotated[str | None, _LONG] = None
    version: Annotated[str | None, _SHORT] = None
    distro: Annotated[str | None, "equal to distribution, if both are there", _SHORT] = None
    customizations: BlueprintCustomizations | None = None


@body(
    properties=_refused(
        """
        basepath bucket hyper_v_generation image_name location repository resource_group server_address
        share_with_accounts snapshot_name subscription_id tag tenant_id
        """,
        "refused by error 38",
    )
)
class UploadOptions:
    """The options of an upload."""

    region: Annotated[str | None, f"of {S3}, which requires it", _SHORT] = None
    public: Annotated[bool, f"of {S3}: readable by everyone"] = False
    name: Annotated[
        str | None,
        f"of {OCI}, which requires it, and {CONTAINER}: the repository, below UPLOAD_REGISTRY",
        _SHORT,
    ] = None
    form: Annotated[str | None, f"of {OCI}: artifact (if absent) or container-disk", _SHORT] = None


# As it was sent: which options may be there depends on the type.
_Options: TypeAlias = Annotated[Json, Keywords(**reference("UploadOptions"))]


@body(is_open=True)
class UploadTargetBody:
    """The destination of an image."""

    type: Annotated[str, f"{LOCAL}, {S3}, {OCI} or {CONTAINER}", _SHORT]
    upload_options: _Options


@body(properties=_refused("ostree"))
class ImageRequestBody:
    """The image of a compose."""

    architecture: Annotated[str, _SHORT]
    image_type: Annotated[str, f"one of {', '.join(ImageType)}", _SHORT]
    repositories: Annotated[list[object], REFUSED]
    upload_targets: Annotated[tuple[UploadTargetBody, ...], Keywords(maxItems=_MAX_UPLOADS)] = ()
    upload_options: Annotated[_Options | None, f"of a further target {S3}"] = None
    size: Annotated[
        int, "virtual size of a disk in bytes; 0: that of the base image", Keywords(minimum=0)
    ] = 0


@body(
    properties=_refused("koji bootc", "refused by error 42"),
    **_NOT_BOTH,
)
class ComposeRequestBody:
    """The request for a compose."""

    distribution: Annotated[str | None, "a name of /distributions", _SHORT] = None
    image_request: ImageRequestBody | None = None
    image_requests: Annotated[tuple[ImageRequestBody, ...], "exactly one"] = ()
    customizations: Customizations | None = None
    blueprint: Blueprint | None = None
    blueprint_id: Annotated[str | None, "recorded only", Keywords(format="uuid"), _SHORT] = None


REQUEST_SCHEMAS = schemas_of(ComposeRequestBody, UploadOptions)
