"""What the stand-in's downloads hold: the discovery config and the ramdisk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from image_service.formats.initrd import compress_archive
from image_service.formats.newc import Member, write_archive

if TYPE_CHECKING:
    from image_service.standalone.infra_env import InfraEnv

_KEYFILE_DIRECTORY = "etc/coreos-firstboot-network"
_RAMDISK_LIMIT_BYTES = 64 * 1024 * 1024  # more than all keyfiles that an infra-env may have
_DISCOVERY: dict[str, Any] = {"ignition": {"version": "3.0.0"}}
# What tells the entries of a list apart, by the Ignition 3 specification: the first that an entry has.
_KEYS = ("path", "name", "device", "number", "label")


def discovery_config(infra_env: InfraEnv, token: str | None = None) -> bytes:
    """Make the config that a discovery image boots with.

    Args:
        infra_env: its override is merged over the default, which holds nothing but a version.
        token: put where assisted-service's agent finds it: into the environment of its unit.

    Returns:
        an Ignition config, JSON.
    """
    config = _DISCOVERY if token is None else merge(_DISCOVERY, _agent(token))
    if infra_env.ignition_config_override is not None:
        config = merge(config, json.loads(infra_env.ignition_config_override))
    return json.dumps(config, ensure_ascii=False, separators=(",", ":")).encode()


def ramdisk(infra_env: InfraEnv) -> bytes | None:
    """Make the initrd that configures the network statically.

    Args:
        infra_env: its own ramdisk is taken as it is; else its keyfiles become files that the initramfs
            hands to NetworkManager.

    Returns:
        a compressed newc archive; None: there is no ramdisk, and no keyfiles either.
    """
    if infra_env.ramdisk is not None:
        return infra_env.ramdisk
    members = [
        Member(f"{_KEYFILE_DIRECTORY}/{name}", text.encode())
        for name, text in infra_env.network_keyfiles.items()
    ]
    if not members:
        return None
    return compress_archive(write_archive(members), _RAMDISK_LIMIT_BYTES)


def merge(below: Any, above: Any) -> Any:  # noqa: ANN401 - JSON is any of six types
    """Merge an Ignition config over another, as Ignition merges a child config into its parent.

    Args:
        below: JSON value.
        above: wins where both have a scalar; entries of a list that have one key in common are merged,
            others are added.

    Returns:
        the merged value.
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


def _agent(token: str) -> dict[str, Any]:
    contents = f'[Service]\nEnvironment="PULL_SECRET_TOKEN={token}"\nExecStart=/usr/bin/true\n'
    return {"systemd": {"units": [{"name": "agent.service", "contents": contents}]}}
