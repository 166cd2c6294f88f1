from __future__ import annotations

import gzip
import json
import stat
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.formats.initrd import read_members
from image_service.core.formats.newc import read_archive
from image_service.server.standalone.content import discovery_config, merge, ramdisk
from image_service.server.standalone.infra_env import StandaloneInfraEnv

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def infra_env(**fields: Any) -> StandaloneInfraEnv:
    return StandaloneInfraEnv.register(
        {"name": "a", "openshift_version": "4.20", **fields}, datetime(2026, 1, 1, tzinfo=UTC)
    )


def test_config_without_override_is_valid() -> None:
    check_ignition(discovery_config(infra_env()))


def test_override_is_served() -> None:
    override = {"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/ä", "mode": 420}]}}
    served = discovery_config(infra_env(ignition_config_override=json.dumps(override)))
    check_ignition(served)
    assert json.loads(served) == override


def test_ssh_keys_are_added_to_those_of_the_override() -> None:
    user = {"name": "core", "sshAuthorizedKeys": ["c"], "groups": ["wheel"]}
    override = {"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "a"}, user]}}
    served = discovery_config(
        infra_env(ignition_config_override=json.dumps(override), ssh_authorized_key="a\nb")
    )
    check_ignition(served)
    users = {user["name"]: user for user in json.loads(served)["passwd"]["users"]}
    assert users == {"a": {"name": "a"}, "core": {**user, "sshAuthorizedKeys": ["a", "b", "c"]}}


def test_host_name_is_a_file_that_the_override_may_replace() -> None:
    def hostname(**fields: Any) -> object:
        config = json.loads(discovery_config(infra_env(hostname="a.example", **fields)))
        (file,) = config["storage"]["files"]
        assert (file["path"], file["mode"], file["overwrite"]) == ("/etc/hostname", 0o644, True)
        return file["contents"]["source"]

    assert hostname() == "data:,a.example"
    files = [{"path": "/etc/hostname", "contents": {"source": "data:,b"}}]
    override = {"ignition": {"version": "3.4.0"}, "storage": {"files": files}}
    assert hostname(ignition_config_override=json.dumps(override)) == "data:,b"


def test_list_entries_with_the_same_key_are_merged() -> None:
    below = {
        "files": [{"path": "/a", "mode": 1, "user": {"id": 1}}, {"path": "/b"}],
        "keys": ["x", "y"],
        "s": 1,
    }
    above = {
        "files": [{"path": "/c"}, {"path": "/a", "mode": 2, "user": {"name": "u"}}],
        "keys": ["y", "z"],
        "s": 2,
    }
    assert merge(below, above) == {
        "files": [{"path": "/a", "mode": 2, "user": {"id": 1, "name": "u"}}, {"path": "/b"}, {"path": "/c"}],
        "keys": ["x", "y", "z"],
        "s": 2,
    }


def test_list_entries_without_a_key_are_merged_if_equal() -> None:
    assert merge([{"a": 1}, 7], [{"a": 2}, {"a": 1}, 7, "7"]) == [{"a": 1}, 7, {"a": 2}, "7"]


@given(st.dictionaries(st.text(max_size=2), values, max_size=3))
def test_merge_into_empty_object_changes_nothing(config: dict[str, Any]) -> None:
    assert merge({}, config) == config


@given(values, st.none() | st.booleans() | st.integers() | st.text())
def test_upper_scalar_replaces_the_lower_value(below: object, above: object) -> None:
    assert merge(below, above) == above


def test_infra_env_without_keyfiles_has_no_ramdisk() -> None:
    assert ramdisk(infra_env()) is None


def test_keyfiles_are_in_the_directory_of_the_initramfs() -> None:
    keyfiles = {"eth1.nmconnection": "[connection]\nid=ä\n", "eth0.nmconnection": ""}
    content = ramdisk(infra_env(network_keyfiles=keyfiles))
    assert content is not None
    assert content.startswith(b"\x1f\x8b")
    files = {name: member.data.decode() for name, member in read_members(content).items()}
    assert files == {f"etc/coreos-firstboot-network/{name}": text for name, text in keyfiles.items()}


def test_ramdisk_has_the_directories_of_keyfiles() -> None:
    content = ramdisk(infra_env(network_keyfiles={"eth0.nmconnection": "a"}))
    assert content is not None
    members, _ = read_archive(gzip.decompress(content))
    assert [(member.name, stat.S_ISDIR(member.mode)) for member in members] == [
        ("etc", True),
        ("etc/coreos-firstboot-network", True),
        ("etc/coreos-firstboot-network/eth0.nmconnection", False),
    ]


def test_own_ramdisk_is_served_unchanged() -> None:
    own = gzip.compress(b"a", mtime=0) + bytes(3)
    assert ramdisk(infra_env(ramdisk=own)) == own
    assert ramdisk(infra_env(ramdisk=own, network_keyfiles={"eth0.nmconnection": "a"})) == own


def test_config_does_not_depend_on_the_ramdisk() -> None:
    with_both = infra_env(ramdisk=b"\x1f\x8b", network_keyfiles={"eth0.nmconnection": "a"})
    assert discovery_config(with_both) == discovery_config(infra_env())


def test_largest_set_of_keyfiles_fits_the_ramdisk() -> None:
    keyfiles = {f"{number}.nmconnection": "🙂" * 65_536 for number in range(64)}
    assert ramdisk(infra_env(network_keyfiles=keyfiles)) is not None
