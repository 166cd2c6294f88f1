"""Ignition configs: whether a body is one, as far as laying it over an image requires."""

from __future__ import annotations

import json
import re

from image_service.core.errors import IgnitionInvalid, IgnitionNotJson

CONFIG_FILE = "ignition/config.ign"
"""The embedded config in the boot partition of a disk."""
FIRST_BOOT_FILE = "ignition.firstboot"
"""Beside it: the next boot is the first, which runs Ignition."""

_BUTANE = re.compile(rb"^variant\s*:", re.MULTILINE)
# Semantic version 3.x.y, or a specification's draft.
_VERSION_3 = re.compile(r"3\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-experimental)?", re.ASCII)


def is_butane(config: bytes) -> bool:
    """Return whether a config is Butane, which people write and ``butane`` translates to Ignition."""
    return not config.lstrip().startswith(b"{") and _BUTANE.search(config) is not None


def check_is_json(config: bytes, name: str) -> None:
    """Raise IgnitionInvalid for a config of another family: one that is not a JSON object."""
    if not config.lstrip(b" \t\r\n").startswith(b"{"):
        raise IgnitionInvalid(f"{name} is of CoreOS, whose config is Ignition; the infra-env has another one")


def check_ignition(body: bytes) -> None:
    """Raise IgnitionInvalid unless ``body`` is a version 3 config; no detail quotes it, for its secrets."""
    read_ignition_version(body)


def read_ignition_version(body: bytes) -> str:
    """Return the version of a version 3 config; raise as `check_ignition` does."""
    config = _parse(body)
    if not isinstance(config, dict):
        raise IgnitionInvalid("the Ignition config is not a JSON object")
    ignition = config.get("ignition")
    if not isinstance(ignition, dict):
        raise IgnitionInvalid("the Ignition config's 'ignition' is not an object")
    version = ignition.get("version")
    if not isinstance(version, str):
        raise IgnitionInvalid("the Ignition config's 'ignition.version' is not a string")
    if not _VERSION_3.fullmatch(version):
        is_old = version.startswith("2.")
        raise IgnitionInvalid(
            "the Ignition config's 'ignition.version' is not 3.x.y"
            + "; ign-converter translates configs of version 2" * is_old
        )
    return version


def _parse(body: bytes) -> object:
    fault = f"the Ignition config of {len(body)} bytes is not JSON"
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        is_yaml = is_butane(body)
        fault += "; it is Butane: translate it by butane" if is_yaml else f": {_describe_place(error)}"
    except (ValueError, RecursionError):
        pass
    # Raised outside the decoder's error, which contains the whole config and would be this one's context.
    raise IgnitionNotJson(fault)


def _describe_place(error: json.JSONDecodeError) -> str:
    if error.pos >= len(error.doc.rstrip()):
        return "it ends too early"
    return f"line {error.lineno}, column {error.colno}"


def _refuse_constant(name: str) -> object:
    """NaN and the infinities are Python's, not JSON's."""
    raise ValueError(name)
