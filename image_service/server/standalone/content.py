"""Renders the downloads of the stand-in: the discovery config and the ramdisk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from image_service.core.families.coreos.network_keyfiles import keyfile_members, pack_members
from image_service.core.images.reference import Kind
from image_service.server.standalone.translation.machine_files import ignition_config, initrd_members

if TYPE_CHECKING:
    from image_service.server.standalone.infra_env import StandaloneInfraEnv

_DISCOVERY: dict[str, Any] = {"ignition": {"version": "3.0.0"}}
# The keys of list entries in the Ignition 3 specification; the first that an entry has counts.
_KEYS = ("path", "name", "device", "number", "label")


def discovery_config(infra_env: StandaloneInfraEnv, kind: Kind = Kind.FULL_ISO) -> bytes:
    """Return the Ignition config of a discovery image: the override, merged over what other fields ask for.

    Args:
        kind: of the ISO; a full one has the static network here, others have it in their ramdisk.
    """
    config = _DISCOVERY
    if infra_env.ssh_authorized_key is not None:
        user = {"name": "core", "sshAuthorizedKeys": infra_env.ssh_authorized_key.split("\n")}
        config = {**config, "passwd": {"users": [user]}}
    if infra_env.hostname is not None:
        contents = {"source": f"data:,{infra_env.hostname}"}
        file = {"path": "/etc/hostname", "mode": 0o644, "overwrite": True, "contents": contents}
        config = {**config, "storage": {"files": [file]}}
    if infra_env.static_network_files and kind is Kind.FULL_ISO:
        config = merge(config, ignition_config(infra_env.static_network_files))
    if infra_env.ignition_config_override is not None:
        config = merge(config, json.loads(infra_env.ignition_config_override))
    return json.dumps(config, ensure_ascii=False, separators=(",", ":")).encode()


def ramdisk(infra_env: StandaloneInfraEnv) -> bytes | None:
    """Return the initrd that configures the network: the infra-env's own ramdisk, or its networks.

    Machines without a static network of their own keep the keyfiles.

    Returns:
        a compressed newc archive; None if there is no ramdisk and no network.
    """
    if infra_env.ramdisk is not None:
        return infra_env.ramdisk
    keyfiles = {name: text.encode() for name, text in infra_env.network_keyfiles.items()}
    members = [*keyfile_members(keyfiles)]
    if infra_env.static_network_files:
        members += initrd_members(infra_env.static_network_files)
    return pack_members(members) if members else None


def merge(below: Any, above: Any) -> Any:  # noqa: ANN401 - JSON is any of six types
    """Merge the JSON of an Ignition config over another, as Ignition merges a child into its parent.

    A scalar of `above` replaces that of `below`; entries of lists with the same key are merged, others added.
    """
    if isinstance(below, dict) and isinstance(above, dict):
        common = {name: merge(below[name], above[name]) for name in below.keys() & above.keys()}
        return {**below, **above, **common}
    if isinstance(below, list) and isinstance(above, list):
        return _merge_lists(below, above)
    return above


def _merge_lists(below: list[Any], above: list[Any]) -> list[Any]:
    merged = {_identity(entry): entry for entry in below}
    for entry in above:
        identity = _identity(entry)
        merged[identity] = merge(merged[identity], entry) if identity in merged else entry
    return list(merged.values())


def _identity(entry: object) -> str:
    if isinstance(entry, dict):
        for key in _KEYS:
            if key in entry:
                return json.dumps([key, entry[key]])
    return json.dumps(entry)
