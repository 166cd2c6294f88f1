"""Attributes of an infra-env that programs translate before they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from image_service.server.standalone.translation.butane import ButaneConfig
from image_service.server.standalone.translation.hosts import render_static_network
from image_service.server.standalone.translation.keyfiles import convert_networks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.common.concurrency.interruption import Interruption


def needs_programs(fields: Mapping[str, Any]) -> bool:
    """Return True if `translate_fields` starts programs; it blocks its thread then."""
    is_butane_config = isinstance(fields.get("ignition_config_override"), ButaneConfig)
    return is_butane_config or bool(fields.get("static_network_config"))


def translate_fields(fields: Mapping[str, Any], interruption: Interruption) -> dict[str, Any]:
    """Return attributes with the Ignition of their Butane, and the keyfiles of their nmstate YAML.

    Raises:
        InvalidParameter: a program refuses it, or is not installed.
        Unavailable: a program cannot be run, or takes too long.
        Interrupted: the service stops.
    """
    translated = dict(fields)
    override = fields.get("ignition_config_override")
    if isinstance(override, ButaneConfig):
        translated["ignition_config_override"] = override.to_ignition(interruption)
    if "static_network_config" in fields:
        hosts = fields["static_network_config"]
        translated["static_network_config"] = render_static_network(hosts)
        translated["static_network_files"] = convert_networks(hosts, interruption) or None
    return translated
