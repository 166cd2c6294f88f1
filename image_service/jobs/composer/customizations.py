"""The customization in a request: an Ignition config, its URL, kernel arguments. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import TYPE_CHECKING

from image_service.core.errors import Unprocessable
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer.errors import UNSUPPORTED_CUSTOMIZATION
from image_service.jobs.composer.request_bodies import Ignition, KernelBody
from image_service.jobs.model import ImageCustomization

if TYPE_CHECKING:
    from image_service.jobs.composer.request_bodies import Customizations

_SPACE = re.compile(r"\s")
_URL = re.compile(r'(?:https?|tftp)://[^\s"]+')


def parse_customizations(path: str, customizations: Customizations) -> ImageCustomization:
    """Return the customization of an image.

    Raises:
        ApiError: there are two configs, or one of them or the kernel arguments are invalid.
    """
    ignition, kernel = customizations.ignition or Ignition(), customizations.kernel or KernelBody()
    if ignition.embedded is not None and ignition.firstboot is not None:
        raise _refusal(f"{path}.ignition must have embedded or firstboot, not both")
    config = url = None
    if ignition.embedded is not None:
        config = _parse_config(f"{path}.ignition.embedded.config", ignition.embedded.config)
    if ignition.firstboot is not None:
        url = ignition.firstboot.url
        if not _URL.fullmatch(url):
            raise _refusal(f"{path}.ignition.firstboot.url must be a URL of http, https or tftp")
    append = (kernel.append or "").strip()
    customization = ImageCustomization(config, url, (append,) if append else ())
    _check_arguments(path, customization)
    return customization


def _parse_config(path: str, text: str) -> bytes:
    try:
        config = b64decode("".join(text.split()) if _SPACE.search(text) else text, validate=True)
    except ValueError:
        raise _refusal(f"{path} must be base64") from None
    try:
        check_ignition(config)
    except Unprocessable as error:
        raise _refusal(f"{path}: {error.detail}") from None
    return config


def _check_arguments(path: str, customization: ImageCustomization) -> None:
    arguments = [KernelArgument(Operation.APPEND, value) for value in customization.arguments]
    try:
        edit_arguments("", arguments)
    except Unprocessable as error:
        member = "ignition.firstboot.url" if customization.firstboot_url else "kernel.append"
        raise _refusal(f"{path}.{member}: {error.detail}") from None


def _refusal(detail: str) -> ApiError:
    return ApiError(detail, number=UNSUPPORTED_CUSTOMIZATION)
