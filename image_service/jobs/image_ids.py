"""The ids of images of the catalog, and their aliases in EC2's API. Pure."""

from __future__ import annotations

from uuid import UUID, uuid5

INSTANCE = "i-"
VOLUME = "vol-"
IMAGE = "ami-"
SNAPSHOT = "snap-"
"""With the first 17 digits of an image's id: the ids that it has as instance, volume, image and snapshot."""

_DIGITS = 17


def alias_digits(image_id: str) -> str:
    """Return the digits of the aliases of an image."""
    return image_id.replace("-", "")[:_DIGITS]


def instance_alias(image_id: str) -> str:
    """Return the id under which EC2's API exports an image."""
    return f"{INSTANCE}{alias_digits(image_id)}"


def volume_alias(image_id: str) -> str:
    """Return the id of an image's volume in EC2's API."""
    return f"{VOLUME}{alias_digits(image_id)}"


def imported_image_id(compose_id: str, number: int) -> str:
    """Return the id of an image that an import makes; `number` counts its disks from 0."""
    return compose_id if number == 0 else str(uuid5(UUID(compose_id), str(number)))
