"""Checks requests for composes. Pure.

The service carries out each member of a request, or refuses the request: no member is ignored. A member that
is not supported may only be there without a value.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.openapi.bodies import parse_body, reference
from image_service.core.errors import ContentTooLarge, InvalidRequest
from image_service.core.families.coreos.build_names import rpm_architecture
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.api.schemas import SchemaCheck
from image_service.jobs.composer import errors
from image_service.jobs.composer.customizations import parse_customizations
from image_service.jobs.composer.request_bodies import (
    REFUSED,
    REQUEST_SCHEMAS,
    SECRET,
    ComposeRequestBody,
    Customizations,
    UploadOptions,
)
from image_service.jobs.model import ComposeRequest, ImageType, UploadTarget
from image_service.jobs.plans.plan import CONTAINER, FILE_NAMES, LOCAL, OCI, S3
from image_service.server.web_api.messages import parse_json_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.common.openapi.bodies import Json
    from image_service.jobs.composer.request_bodies import ImageRequestBody
    from image_service.jobs.plans.plan import UploadPlace

_REQUEST = reference("ComposeRequest")
_CHECK = SchemaCheck(REQUEST_SCHEMAS, "ComposeRequest")
_INSTEAD = {
    "aws": f"for an AMI use {S3}, then import-snapshot and register-image of aws ec2",
    "azure": f"use {LOCAL}, download the image, then az storage blob upload and az image create",
    "gcp": f"use {LOCAL}, download the image, then gcloud compute images import",
    "oci.objectstorage": f"use {LOCAL}, download the image, then oci compute image import",
    "pulp.ostree": "no image type of this service is an OSTree commit",
}
"""Where to go for the targets that only osbuild's service has."""
_OPTIONS = {LOCAL: set[str](), S3: {"region", "public"}, OCI: {"name", "form"}, CONTAINER: {"name"}}
_FORMS = ("artifact", "container-disk")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)*")
_CONTAINER_DISKS = (".raw", ".qcow2")


@attrs.frozen
class ComposeLimits:
    """Limits of composes.

    Args:
        max_queued: composes of one tenant that have not ended.
        max_request_bytes: of a request without its Ignition config.
        max_ignition_bytes: of its Ignition config.
        max_disk_bytes: of a requested disk.
        upload_place: for targets of S3; None: they are refused.
        upload_registry: for targets of registries; None: they are refused.
    """

    max_queued: int
    max_request_bytes: int
    max_ignition_bytes: int
    max_disk_bytes: int
    upload_place: UploadPlace | None = None
    upload_registry: str | None = None


def parse_request(body: bytes, limits: ComposeLimits) -> ComposeRequest:
    """Return the request in the content of a POST.

    Raises:
        ApiError: it is refused; the detail has paths of members, and no values.
        ContentTooLarge: it has more bytes.
    """
    document = _parse_document(body)
    kept = _blank_secrets(document, _REQUEST)
    if (kept_bytes := len(json.dumps(kept))) > limits.max_request_bytes:
        raise ContentTooLarge(
            f"JOBS_MAX_REQUEST_BYTES: the request has {kept_bytes} bytes without its Ignition config, at most"
            f" {limits.max_request_bytes} are allowed"
        )
    request = parse_body(ComposeRequestBody, document)
    place, image = _find_image_request(request)
    unsupported = list(_find_unsupported(document, _REQUEST, ""))
    if unsupported:
        raise ApiError(f"not supported: {', '.join(unsupported)}", number=errors.UNSUPPORTED_CUSTOMIZATION)
    image_type = _parse_image_type(place, image.image_type)
    distribution = _find_distribution(request)
    customization = parse_customizations(*_find_customizations(request))
    if (ignition_bytes := len(customization.ignition or b"")) > limits.max_ignition_bytes:
        raise ContentTooLarge(
            f"JOBS_MAX_IGNITION_BYTES: the Ignition config has {ignition_bytes} bytes, at most"
            f" {limits.max_ignition_bytes} are allowed"
        )
    return ComposeRequest(
        distribution=distribution,
        architecture=rpm_architecture(image.architecture),
        image_type=image_type,
        customization=customization,
        size=_parse_size(f"{place}.size", image.size, image_type, limits.max_disk_bytes),
        uploads=tuple(_parse_uploads(place, image, image_type, distribution, limits))
        or (UploadTarget(LOCAL),),
        document=kept,
    )


def check_available(
    request: ComposeRequest, distributions: Mapping[str, Mapping[str, tuple[ImageType, ...]]]
) -> None:
    """Refuse a request for which there is no base image.

    Args:
        distributions: image types by distribution and architecture.

    Raises:
        ApiError: the detail lists the supported names.
    """
    architectures = distributions.get(request.distribution)
    if architectures is None:
        found = ", ".join(sorted(distributions)) or "none"
        raise ApiError(f"supported: {found}", number=errors.UNSUPPORTED_DISTRIBUTION)
    image_types = architectures.get(request.architecture)
    if image_types is None:
        found = ", ".join(sorted(architectures))
        raise ApiError(f"supported: {found}", number=errors.UNSUPPORTED_ARCHITECTURE)
    if request.image_type not in image_types:
        found = ", ".join(sorted(image_types))
        raise ApiError(f"supported: {found}", number=errors.UNSUPPORTED_IMAGE_TYPE)


def _parse_document(body: bytes) -> dict[str, Any]:
    try:
        document = parse_json_object(body)
    except InvalidRequest:
        raise ApiError(number=errors.MALFORMED_JSON) from None
    if {"blueprint", "customizations"} <= document.keys():
        raise ApiError(number=errors.BLUEPRINT_AND_CUSTOMIZATIONS)
    violation = _CHECK.violation(document)
    if violation is not None:
        raise ApiError(violation, number=errors.SCHEMA_VIOLATION)
    if "koji" in document:
        raise ApiError("koji: images are not imported into koji", number=errors.BAD_REQUEST)
    if "bootc" in document:
        raise ApiError("bootc: containers are not supported", number=errors.BAD_REQUEST)
    return document


def _find_image_request(request: ComposeRequestBody) -> tuple[str, ImageRequestBody]:
    """Return the only image request, and its path."""
    found = [(f"image_requests[{n}]", each) for n, each in enumerate(request.image_requests)]
    if request.image_request is not None:
        found.append(("image_request", request.image_request))
    if len(found) != 1:
        raise ApiError(f"the request has {len(found)}", number=errors.NUMBER_OF_IMAGES)
    return found[0]


def _find_customizations(request: ComposeRequestBody) -> tuple[str, Customizations]:
    """Return the path of a request's customizations, and them: its own, or its blueprint's."""
    if request.blueprint is not None:
        return "blueprint.customizations", request.blueprint.customizations or Customizations()
    return "customizations", request.customizations or Customizations()


def _find_unsupported(value: Any, schema: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the paths of refused members that have a value."""
    if schema.get("description") == REFUSED:
        if not _is_empty(value):
            yield path
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_unsupported(item, _below(schema, None), f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _find_unsupported(member, _below(schema, name), f"{path}.{name}" if path else name)


def _blank_secrets(value: Any, schema: Any) -> Any:  # noqa: ANN401 - same
    """Return a copy in which the members that may be secret are empty."""
    if schema.get("format") == SECRET.values["format"]:
        return ""
    if isinstance(value, list):
        return [_blank_secrets(item, _below(schema, None)) for item in value]
    if isinstance(value, dict):
        return {name: _blank_secrets(member, _below(schema, name)) for name, member in value.items()}
    return value


def _below(schema: Any, name: str | None) -> Any:  # noqa: ANN401 - same
    """Return the schema of a member of objects, or that of the items of arrays; empty if there is none."""
    if "$ref" in schema:
        schema = {**REQUEST_SCHEMAS[schema["$ref"].rpartition("/")[2]], **schema}
    return schema.get("items", {}) if name is None else schema.get("properties", {}).get(name, {})


def _is_empty(value: object) -> bool:
    return all(map(_is_empty, value.values())) if isinstance(value, dict) else not value


def _find_distribution(request: ComposeRequestBody) -> str:
    """Return the distribution; a blueprint may repeat it, or name it alone."""
    blueprint = request.blueprint
    names = {request.distribution, blueprint.distro if blueprint else None} - {None, ""}
    if len(names) != 1:
        detail = "distribution and blueprint.distro differ" if names else "distribution is missing"
        raise ApiError(detail, number=errors.UNSUPPORTED_DISTRIBUTION)
    return str(names.pop())


def _parse_image_type(place: str, name: str) -> ImageType:
    if name not in set(ImageType):
        expected = ", ".join(ImageType)
        raise ApiError(f"{place}.image_type must be one of {expected}", number=errors.UNSUPPORTED_IMAGE_TYPE)
    return ImageType(name)


def _parse_size(path: str, size: int, image_type: ImageType, max_bytes: int) -> int | None:
    if not size:
        return None
    if not image_type.is_disk:
        raise ApiError(
            f"{path}: {image_type} has the size of its base", number=errors.UNSUPPORTED_CUSTOMIZATION
        )
    if size % SECTOR_BYTES or size > max_bytes:
        raise ApiError(
            f"{path} must be a multiple of {SECTOR_BYTES} bytes, at most {max_bytes} (JOBS_MAX_DISK_SIZE)",
            number=errors.BAD_REQUEST,
        )
    return size


def _parse_uploads(
    place: str, image: ImageRequestBody, image_type: ImageType, distribution: str, limits: ComposeLimits
) -> Iterator[UploadTarget]:
    """Yield the targets; ``upload_options`` alone are those of S3.

    Args:
        distribution: the repository of a container that has no name, as in osbuild-composer.
    """
    targets = [
        (f"{place}.upload_targets[{number}]", target.type, target.upload_options)
        for number, target in enumerate(image.upload_targets)
    ]
    if image.upload_options is not None:
        targets.append((place, S3, image.upload_options))
    for path, type_, sent in targets:
        fault = _find_upload_fault(type_, sent, can_upload=limits.upload_place is not None)
        if fault is not None:
            raise ApiError(f"{path}{fault}", number=errors.UNSUPPORTED_UPLOAD)
        options = parse_body(UploadOptions, sent)
        name, form = options.name, options.form
        if type_ == CONTAINER:
            name, form = name or distribution, _FORMS[1]
        target = UploadTarget(type_, options.public, options.region, name, form)
        if type_ in {OCI, CONTAINER}:
            fault = _find_registry_fault(target, image_type, can_push=limits.upload_registry is not None)
            if fault is not None:
                raise ApiError(f"{path}{fault}", number=errors.UNSUPPORTED_UPLOAD)
        yield target


def _find_upload_fault(type_: str, options: Json, *, can_upload: bool) -> str | None:
    if type_ not in _OPTIONS:
        instead = _INSTEAD.get(type_)
        return f".type must be {LOCAL}, {S3}, {OCI} or {CONTAINER}" + (f"; {instead}" if instead else "")
    unknown = options.keys() - _OPTIONS[type_]
    if type_ == CONTAINER and "tag" in unknown:
        return ".upload_options.tag must be absent: the tag is the id of the compose, and replaces no other"
    if unknown:
        return f".upload_options of {type_} must not have {', '.join(sorted(unknown))}"
    if type_ == S3 and not options.get("region"):
        return f".upload_options of {S3} must have region"
    if type_ == S3 and not can_upload:
        return f": this server has no place for {S3}, because UPLOAD_S3_URL is not set"
    return None


def _find_registry_fault(target: UploadTarget, image_type: ImageType, *, can_push: bool) -> str | None:
    if not can_push:
        return f": this server has no place for {target.type}, because UPLOAD_REGISTRY is not set"
    if not target.name or not _REPOSITORY.fullmatch(target.name):
        return (
            ".upload_options.name must be a repository: lower-case letters, digits, and . _ - / between them"
        )
    if target.form not in {None, *_FORMS}:
        return f".upload_options.form must be {' or '.join(_FORMS)}"
    if target.form == _FORMS[1] and not FILE_NAMES[image_type].endswith(_CONTAINER_DISKS):
        of_what = ".upload_options.form" if target.type == OCI else ".type"
        return f"{of_what}: {image_type} is not a raw or qcow2 disk, as a container disk is"
    return None
