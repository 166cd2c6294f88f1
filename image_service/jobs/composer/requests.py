"""Checks requests for composes. Pure.

The service carries out each member of a request, or refuses the request: no member is ignored. A member that
is not supported may only be there without a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from image_service.core.errors import InvalidRequest
from image_service.core.formats.disk.model import MAX_DISK_BYTES, SECTOR_BYTES
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer import errors
from image_service.jobs.composer.customizations import (
    blank_secrets,
    find_customizations,
    parse_customizations,
)
from image_service.jobs.model import ComposeRequest, ImageType, UploadTarget
from image_service.jobs.plans.plan import LOCAL, S3
from image_service.server.management.messages import parse_json_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.jobs.api.schemas import SchemaCheck

_CUSTOMIZATIONS = {
    "ignition": {"embedded": {"config": None}, "firstboot": {"url": None}},
    "kernel": {"append": None},
}
_IMAGE_REQUEST = dict.fromkeys(("architecture", "image_type", "size", "upload_targets", "upload_options"))
_SUPPORTED = {
    "distribution": None,
    "blueprint_id": None,
    "image_request": _IMAGE_REQUEST,
    "image_requests": [_IMAGE_REQUEST],
    "customizations": _CUSTOMIZATIONS,
    "blueprint": {
        **dict.fromkeys(("name", "description", "version", "distro")),
        "customizations": _CUSTOMIZATIONS,
    },
}
"""The members of a request that have an effect; None: with any content."""

_S3_OPTIONS = {"region", "public"}


def parse_request(body: bytes, schema: SchemaCheck, *, can_upload: bool) -> ComposeRequest:
    """Return the request in the content of a POST.

    Args:
        body: JSON.
        schema: of a request.
        can_upload: True if the server has a place for uploads to S3.

    Raises:
        ApiError: it is refused; the detail has paths of members, and no values.
    """
    document = _parse_document(body, schema)
    place, image = _find_image_request(document)
    unsupported = list(_find_unsupported(document, _SUPPORTED, ""))
    if unsupported:
        raise ApiError(f"not supported: {', '.join(unsupported)}", number=errors.UNSUPPORTED_CUSTOMIZATION)
    image_type = _parse_image_type(place, image)
    return ComposeRequest(
        distribution=_parse_distribution(document),
        architecture=image["architecture"],
        image_type=image_type,
        customization=parse_customizations(*find_customizations(document)),
        size=_parse_size(f"{place}.size", image.get("size", 0), image_type),
        uploads=tuple(_parse_uploads(place, image, can_upload=can_upload)) or (UploadTarget(LOCAL),),
        document=blank_secrets(document),
    )


def check_available(
    request: ComposeRequest, distributions: Mapping[str, Mapping[str, tuple[ImageType, ...]]]
) -> None:
    """Refuse a request for which there is no base image.

    Args:
        request: as parsed.
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


def _parse_document(body: bytes, schema: SchemaCheck) -> dict[str, Any]:
    try:
        document = parse_json_object(body)
    except InvalidRequest:
        raise ApiError(number=errors.MALFORMED_JSON) from None
    if {"blueprint", "customizations"} <= document.keys():
        raise ApiError(number=errors.BLUEPRINT_AND_CUSTOMIZATIONS)
    violation = schema.violation(document)
    if violation is not None:
        raise ApiError(violation, number=errors.SCHEMA_VIOLATION)
    if "koji" in document:
        raise ApiError("koji: images are not imported into koji", number=errors.BAD_REQUEST)
    if "bootc" in document:
        raise ApiError("bootc: containers are not supported", number=errors.BAD_REQUEST)
    return document


def _find_image_request(document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the only image request, and its path."""
    found = [(f"image_requests[{n}]", each) for n, each in enumerate(document.get("image_requests", []))]
    if "image_request" in document:
        found.append(("image_request", document["image_request"]))
    if len(found) != 1:
        raise ApiError(f"the request has {len(found)}", number=errors.NUMBER_OF_IMAGES)
    return found[0]


def _find_unsupported(value: Any, supported: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the paths of members that have a value, and are not in `supported`."""
    if isinstance(supported, list):
        for index, item in enumerate(value):
            yield from _find_unsupported(item, supported[0], f"{path}[{index}]")
    elif supported is not None:
        for name, member in value.items():
            below = f"{path}.{name}" if path else name
            if name in supported:
                yield from _find_unsupported(member, supported[name], below)
            elif not _is_empty(member):
                yield below


def _is_empty(value: object) -> bool:
    return all(map(_is_empty, value.values())) if isinstance(value, dict) else not value


def _parse_distribution(document: dict[str, Any]) -> str:
    """Return the distribution; a blueprint may repeat it, or name it alone."""
    named = [document.get("distribution"), document.get("blueprint", {}).get("distro")]
    names = set(filter(None, named))
    if len(names) != 1:
        detail = "distribution and blueprint.distro differ" if names else "distribution is missing"
        raise ApiError(detail, number=errors.UNSUPPORTED_DISTRIBUTION)
    return str(names.pop())


def _parse_image_type(place: str, image: dict[str, Any]) -> ImageType:
    if image["image_type"] not in set(ImageType):
        expected = ", ".join(ImageType)
        raise ApiError(f"{place}.image_type must be one of {expected}", number=errors.UNSUPPORTED_IMAGE_TYPE)
    return ImageType(image["image_type"])


def _parse_size(path: str, size: int, image_type: ImageType) -> int | None:
    if not size:
        return None
    if not image_type.is_disk:
        raise ApiError(
            f"{path}: {image_type} has the size of its base", number=errors.UNSUPPORTED_CUSTOMIZATION
        )
    if size % SECTOR_BYTES or size > MAX_DISK_BYTES:
        raise ApiError(
            f"{path} must be a multiple of {SECTOR_BYTES} bytes, at most {MAX_DISK_BYTES}",
            number=errors.BAD_REQUEST,
        )
    return int(size)  # 1024.0 is an integer of JSON Schema, too


def _parse_uploads(place: str, image: dict[str, Any], *, can_upload: bool) -> Iterator[UploadTarget]:
    """Yield the targets; ``upload_options`` alone are those of S3."""
    targets = [
        (f"{place}.upload_targets[{number}]", target["type"], target["upload_options"])
        for number, target in enumerate(image.get("upload_targets", []))
    ]
    if "upload_options" in image:
        targets.append((place, S3, image["upload_options"]))
    for path, type_, options in targets:
        fault = _find_upload_fault(type_, options, can_upload=can_upload)
        if fault is not None:
            raise ApiError(f"{path}{fault}", number=errors.UNSUPPORTED_UPLOAD)
        yield UploadTarget(type_, options.get("public", False), options.get("region"))


def _find_upload_fault(type_: str, options: dict[str, Any], *, can_upload: bool) -> str | None:
    if type_ not in {LOCAL, S3}:
        return f".type must be {LOCAL} or {S3}"
    unknown = options.keys() - (_S3_OPTIONS if type_ == S3 else set())
    if unknown:
        return f".upload_options of {type_} must not have {', '.join(sorted(unknown))}"
    if type_ == S3 and not options.get("region"):
        return f".upload_options of {S3} must have region"
    if type_ == S3 and not can_upload:
        return f": this server has no place for {S3}, because UPLOAD_S3_URL is not set"
    return None
