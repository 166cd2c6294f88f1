"""Converts static networks to the files that machines get, by ``nmstatectl gc``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError, InvalidParameter, KeyfileInvalid
from image_service.core.families.coreos.network_keyfiles import check_keyfile_name
from image_service.core.formats.documents.yaml_texts import parse_yaml
from image_service.server.standalone.translation.translators import Translator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.common.concurrency.interruption import Interruption
    from image_service.server.standalone.translation.hosts import HostNetwork

_NMSTATECTL = Translator(
    ("nmstatectl", "gc", "-"),
    "static_network_config: nmstatectl is not installed where the service runs; where it is,"
    " `nmstatectl gc FILE` prints keyfiles for network_keyfiles",
)
_PREFIX = "Provide file is not valid NetworkState: "
_SETTINGS = {"autoconnect": "true", "autoconnect-priority": "1"}


def convert_networks(hosts: Sequence[HostNetwork], interruption: Interruption) -> dict[str, str]:
    """Return the files of all machines by path, as assisted-service makes them. Blocks its thread.

    Raises:
        InvalidParameter: nmstate refuses the YAML of a machine, or is not installed.
        Unavailable: it cannot be run, or takes too long.
        Interrupted: the service stops.
    """
    files = {}
    for number, host in enumerate(hosts):
        for name, keyfile in _keyfiles(host, interruption):
            files[f"host{number}/{name}"] = keyfile
        files[f"host{number}/mac_interface.ini"] = host.mac_interface_ini
    return files


def _keyfiles(host: HostNetwork, interruption: Interruption) -> Iterator[tuple[str, str]]:
    result = _NMSTATECTL.run(host.network_yaml.encode(), interruption)
    where = f"static_network_config: nmstate refuses the network_yaml of {host.name}"
    if result.status != 0:
        raise InvalidParameter(
            f"{where}: {_NMSTATECTL.fault(result, result.last_message.removeprefix(_PREFIX))}"
        )
    try:
        keyfiles = [*_read_keyfiles(result.output)]
    except (FormatError, KeyfileInvalid, UnicodeDecodeError):
        raise InvalidParameter(f"{where}: `nmstatectl gc` does not print keyfiles of it") from None
    if not keyfiles:
        raise InvalidParameter(f"{where}: it has no interface to configure")
    yield from keyfiles


def _read_keyfiles(output: bytes) -> Iterator[tuple[str, str]]:
    document = parse_yaml(output.decode())
    connections = document.get("NetworkManager") if isinstance(document, dict) else None
    for connection in connections if isinstance(connections, list) else [None]:
        match connection:
            case [str(name), str(keyfile)]:
                check_keyfile_name(name)
                yield name, _with_priority(keyfile)
            case _:
                raise FormatError("it is not a list of names and keyfiles")


def _with_priority(keyfile: str) -> str:
    """Return a keyfile that NetworkManager prefers to those that it makes itself."""
    head, group, rest = keyfile.partition("[connection]\n")
    settings, gap, others = rest.partition("\n\n")
    for name, value in _SETTINGS.items():
        line = f"{name}={value}"
        settings, found = re.subn(rf"^{name}=.*$", line, settings, flags=re.MULTILINE)
        if not found:
            settings = f"{settings}\n{line}"
    return f"{head}{group}{settings}{gap}{others}"
