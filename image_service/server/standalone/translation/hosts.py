"""The field ``static_network_config``: nmstate's YAML for each machine, and the machine's MAC addresses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.openapi.document import TEXT, object_schema
from image_service.core.errors import FormatError
from image_service.core.formats.documents.yaml_texts import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.common.openapi.bodies import Json

_MAX_HOSTS = 128
_MAX_INTERFACES = 64
_MAX_CHARACTERS = 256 * 1024  # of all YAML, which a parser in Python reads
MAX_TEXT_CHARACTERS = 2 * _MAX_CHARACTERS
"""Of the list as a text, in which the YAML of machines is indented."""
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")
_INTERFACE = re.compile(r"[^\s/=\x00-\x1f\x7f\ud800-\udfff]{1,64}")
_PREDICTABLE = re.compile(r"en[PsvxXbucaipod]")  # man systemd.net-naming-scheme
_ETHERNET = frozenset({"ethernet", "802-3-ethernet"})
_MAC_SCHEMA: Json = {"type": "string", "pattern": f"^{_MAC.pattern}$"}
_MAP_SCHEMA: Json = {
    "type": "array",
    "minItems": 1,
    "maxItems": _MAX_INTERFACES,
    "items": object_schema(mac_address=_MAC_SCHEMA, logical_nic_name={"type": "string", "minLength": 1}),
}
STATIC_NETWORK_SCHEMA: Json = {
    "type": ["array", "string", "null"],
    "maxItems": _MAX_HOSTS,
    "items": object_schema(network_yaml=TEXT, mac_interface_map=_MAP_SCHEMA),
}


@attrs.frozen
class HostNetwork:
    """The network of one machine.

    Args:
        network_yaml: its state as nmstate describes it.
        interfaces: names in that YAML, each with the MAC address that the interface has in the machine.
    """

    network_yaml: str = attrs.field(repr=False)
    interfaces: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The machine in messages: one of its MAC addresses."""
        return self.interfaces[0][1]

    @property
    def mac_interface_ini(self) -> str:
        """The file from which the machine knows that the network is its own."""
        return "\n".join(sorted(f"{mac}={name}" for name, mac in self.interfaces))


def parse_static_network(value: object) -> tuple[HostNetwork, ...]:
    """Return the networks, in the order in which assisted-service stores them.

    Args:
        value: a list of objects, or a text of YAML or JSON that has such a list.

    Raises:
        ValueError: says what is wrong, of which machine.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = _parse_text(value)
    if not isinstance(value, list) or len(value) > _MAX_HOSTS:
        raise ValueError(f"must be a list of at most {_MAX_HOSTS} objects")
    hosts = [_parse_host(item) for item in value]
    if sum(len(host.network_yaml) for host in hosts) > _MAX_CHARACTERS:
        raise ValueError(f"must have at most {_MAX_CHARACTERS} characters of YAML")
    for host in hosts:
        _check_interfaces(host)
    return tuple(sorted(hosts, key=lambda host: (host.network_yaml, len(host.interfaces), host.interfaces)))


def render_static_network(hosts: Sequence[HostNetwork]) -> str | None:
    """Return the JSON that assisted-service has in its replies; None: there is no network."""
    rendered = [
        {
            "mac_interface_map": [
                {"logical_nic_name": name, "mac_address": mac} for name, mac in host.interfaces
            ],
            "network_yaml": host.network_yaml,
        }
        for host in hosts
    ]
    return json.dumps(rendered, ensure_ascii=False, separators=(",", ":")) if rendered else None


def _parse_text(text: str) -> object:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"has {len(text)} characters, more than {MAX_TEXT_CHARACTERS}")
    try:
        return parse_yaml(text)
    except FormatError as error:
        raise ValueError(f"must be a list in YAML: {error.detail}") from None


def _parse_host(item: object) -> HostNetwork:
    match item:
        case {"network_yaml": str(network), "mac_interface_map": list(mapping), **others} if not others:
            interfaces = tuple(sorted(map(_parse_interface, mapping)))
        case _:
            raise ValueError("must be objects with the string network_yaml and the list mac_interface_map")
    names, macs = ({each[at] for each in interfaces} for at in (0, 1))
    if not interfaces or len(interfaces) > _MAX_INTERFACES:
        raise ValueError(f"must have 1 to {_MAX_INTERFACES} objects in each mac_interface_map")
    if len(names) < len(interfaces) or len({mac.upper() for mac in macs}) < len(interfaces):
        raise ValueError("must have each mac_address and each logical_nic_name of a machine once")
    return HostNetwork(network, interfaces)


def _parse_interface(item: object) -> tuple[str, str]:
    match item:
        case {"mac_address": str(mac), "logical_nic_name": str(name), **others} if not others:
            if _MAC.fullmatch(mac) and _INTERFACE.fullmatch(name):
                return name, mac
    raise ValueError(
        "must have objects with mac_address, such as 52:54:00:12:34:56, and logical_nic_name, such as eth0,"
        " in each mac_interface_map"
    )


def _check_interfaces(host: HostNetwork) -> None:
    """Refuse YAML with an interface that a machine lacks: not mapped, and not named as systemd names it."""
    try:
        state = parse_yaml(host.network_yaml)
    except FormatError as error:
        raise ValueError(f"must have YAML in the network_yaml of {host.name}: {error.detail}") from None
    listed = state.get("interfaces") if isinstance(state, dict) else None
    interfaces = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    known = {name for name, _ in host.interfaces}
    known |= {str(each.get("name")) for each in interfaces if each.get("identifier") == "mac-address"}
    for name in (name for interface in interfaces for name in _ports(interface)):
        if name not in known and not _PREDICTABLE.match(name):
            raise ValueError(
                f"must map the interface {name[:64]!a} of the network_yaml of {host.name} to a MAC address"
            )


def _ports(interface: dict[str, Any]) -> Iterator[str]:
    """Yield the names of Ethernet interfaces that an interface is, or is a bond of."""
    if interface.get("type") in _ETHERNET:
        yield str(interface.get("name"))
    bond = interface.get("link-aggregation")
    if interface.get("type") == "bond" and isinstance(bond, dict):
        ports = bond.get("port", bond.get("ports"))
        yield from map(str, ports if isinstance(ports, list) else ())
