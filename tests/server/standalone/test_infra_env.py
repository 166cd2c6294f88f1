from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.openapi.bodies import render_body
from image_service.core.errors import InvalidParameter, InvalidRequest
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.newc import Member, write_archive
from image_service.core.images.reference import Kind
from image_service.server.http.problem import status_of
from image_service.server.standalone.infra_env import (
    MAX_OVERRIDE_BYTES,
    MAX_RAMDISK_BYTES,
    StandaloneInfraEnv,
    parse_fields,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
REQUIRED: dict[str, Any] = {"name": "a", "openshift_version": "4.20"}
IGNITION = '{"ignition":{"version":"3.2.0"}}'
KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(36)).decode()
RAMDISK = gzip.compress(write_archive([Member("s3cret", b"")]), mtime=0)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [
        *REQUIRED,
        "cpu_architecture",
        "image_type",
        "ignition_config_override",
        "kernel_arguments",
        "network_keyfiles",
        "ramdisk",
        "ssh_authorized_key",
        "hostname",
        "static_network_config",
    ]
)


def rendered(infra_env: StandaloneInfraEnv, download_url: str = "") -> Any:
    return json.loads(json.dumps(infra_env.describe(download_url, {}), default=render_body).encode())


def read(**fields: Any) -> dict[str, Any]:
    return parse_fields(json.dumps({**REQUIRED, **fields}).encode(), registering=True)


def append(value: str) -> dict[str, str]:
    return {"operation": "append", "value": value}


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_all_fields_are_set() -> None:
    fields = read(
        cpu_architecture="aarch64",
        image_type="minimal-iso",
        ignition_config_override=IGNITION,
        kernel_arguments=[
            append("a=1"),
            {"operation": "delete", "value": "quiet"},
            {"operation": "replace", "value": "a=1=2"},
        ],
        network_keyfiles={"eth0.nmconnection": "[connection]\n"},
        ramdisk=in_base64(RAMDISK),
    )
    infra_env = StandaloneInfraEnv.register(fields, NOW)
    assert infra_env.kernel_arguments == (
        KernelArgument(Operation.APPEND, "a=1"),
        KernelArgument(Operation.DELETE, "quiet"),
        KernelArgument(Operation.REPLACE, "a=1=2"),
    )
    assert infra_env.ramdisk == RAMDISK
    assert infra_env.image_type is Kind.MINIMAL_ISO
    document = rendered(infra_env, "http://images.test/a.iso")
    assert json.loads(str(document["kernel_arguments"])) == [
        append("a=1"),
        {"operation": "delete", "value": "quiet"},
        {"operation": "replace", "value": "a=1=2"},
    ]
    assert document == document | {
        "name": "a",
        "openshift_version": "4.20",
        "cpu_architecture": "aarch64",
        "type": "minimal-iso",
        "ignition_config_override": IGNITION,
        "network_keyfiles": {"eth0.nmconnection": "[connection]\n"},
        "ramdisk_set": True,
        "created_at": "2026-01-02T03:04:05Z",
        "updated_at": "2026-01-02T03:04:05Z",
        "download_url": "http://images.test/a.iso",
        "href": f"/api/assisted-install/v2/infra-envs/{infra_env.id}",
    }


def test_ignition_config_may_be_an_object() -> None:
    config = {"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": "/ä"}]}}
    override = read(ignition_config_override=config)["ignition_config_override"]
    assert json.loads(override) == config


def test_refused_ignition_config_says_where_it_is_wrong() -> None:
    with pytest.raises(InvalidParameter, match=r"is not JSON: line 2, column 2$"):
        read(ignition_config_override="{\n}}")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (KEY, KEY),
        (f"# mine\r\n {KEY} me@example.com\r\n\r\n{KEY}\n", f"{KEY} me@example.com\n{KEY}"),
        (f'restrict,command="a b" {KEY} ä', f'restrict,command="a b" {KEY} ä'),
        ("", None),
        (None, None),
    ],
)
def test_ssh_keys_are_lines(text: str | None, keys: str | None) -> None:
    infra_env = StandaloneInfraEnv.register(read(ssh_authorized_key=text), NOW)
    assert rendered(infra_env)["ssh_authorized_key"] == keys


def test_refused_ssh_key_is_not_repeated() -> None:
    with pytest.raises(InvalidParameter, match=r"line 2 is not$") as caught:
        read(ssh_authorized_key=f"{KEY}\ns3cret")
    assert "s3cret" not in caught.value.detail


@pytest.mark.parametrize("empty", [None, []])
def test_empty_static_network_config_is_taken(empty: object) -> None:
    assert read(static_network_config=empty) == {**REQUIRED, "static_network_config": ()}


def test_unset_fields_have_defaults() -> None:
    document = rendered(StandaloneInfraEnv.register(read(), NOW))
    assert document["cpu_architecture"] == "x86_64"
    assert document["type"] == "full-iso"
    assert document["ignition_config_override"] is None
    assert document["network_keyfiles"] == {}
    assert document["ramdisk_set"] is False
    assert "kernel_arguments" not in document


def test_ids_are_unique() -> None:
    assert StandaloneInfraEnv.register(read(), NOW).id != StandaloneInfraEnv.register(read(), NOW).id


def test_secrets_are_not_in_repr() -> None:
    fields = read(
        ignition_config_override='{"ignition":{"version":"3.2.0"},"a":"s3cret"}',
        kernel_arguments=[append("s3cret")],
        network_keyfiles={"s3cret.nmconnection": "s3cret"},
        ramdisk=in_base64(write_archive([Member("s3cret", b"")])),
    )
    assert "s3cret" not in repr(StandaloneInfraEnv.register(fields, NOW))


@pytest.mark.parametrize("secret", ['{"auths":{}}', "", None, 7, {"auths": {}}])
def test_pull_secret_is_ignored_whatever_its_type(secret: object) -> None:
    assert read(pull_secret=secret) == read()


def test_ramdisk_is_not_in_the_json() -> None:
    fields = read(ramdisk=in_base64(RAMDISK.ljust(MAX_RAMDISK_BYTES, b"\0")))
    document = rendered(StandaloneInfraEnv.register(fields, NOW))
    assert len(json.dumps(document)) < 1000


@pytest.mark.parametrize(
    ("name", "cleared"),
    [
        ("ignition_config_override", None),
        ("kernel_arguments", ()),
        ("network_keyfiles", {}),
        ("ramdisk", None),
    ],
)
def test_null_clears_a_field(name: str, cleared: object) -> None:
    assert parse_fields(json.dumps({name: None}).encode(), registering=False) == {name: cleared}


def test_architecture_alias_is_resolved() -> None:
    assert read(cpu_architecture="arm64")["cpu_architecture"] == "aarch64"
    assert read(cpu_architecture="amd64")["cpu_architecture"] == "x86_64"


def test_all_faults_are_reported_together() -> None:
    body = {"nmae": "a", "ssh_key": "s3cret", "cpu_architecture": "vax", "image_type": 7}
    with pytest.raises(InvalidParameter) as caught:
        parse_fields(json.dumps(body).encode(), registering=True)
    detail = caught.value.detail
    for fault in (
        "'nmae' is not a field",
        "'ssh_key' is not a field",
        "name is required",
        "openshift_version is required",
        "cpu_architecture must be one of x86_64, aarch64, ppc64le, s390x, riscv64, amd64, arm64",
        "image_type must be full-iso or minimal-iso",
    ):
        assert fault in detail
    assert "s3cret" not in detail


def test_update_requires_no_field() -> None:
    assert parse_fields(b"{}", registering=False) == {}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'"a"', b"{", b"\xff", b"[" * 100_000, b'{"name":"\\ud800"}']
)
def test_content_other_than_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_fields(body, registering=False)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("name", ""),
        ("name", "a" * 129),
        ("name", "a\nb"),
        ("name", None),
        ("openshift_version", "4/20"),
        ("openshift_version", "../4.20"),
        ("openshift_version", "4.20 "),
        ("openshift_version", 4.2),
        ("image_type", "disconnected-iso"),
        ("image_type", ["full-iso"]),
        ("cpu_architecture", ["x86_64"]),
        ("ignition_config_override", "{}"),
        ("ignition_config_override", '{"ignition":{"version":"2.2.0"}}'),
        ("ignition_config_override", "{"),
        ("ignition_config_override", {"ignition": {"version": "2.2.0"}}),
        ("ignition_config_override", ["ignition"]),
        ("ignition_config_override", {"ignition": {"version": "3.2.0"}, "a": float("nan")}),
        ("ssh_authorized_key", 7),
        ("ssh_authorized_key", "s3cret"),
        ("ssh_authorized_key", "ssh-ed25519"),
        ("ssh_authorized_key", "ssh-ed25519 AAAA"),
        ("ssh_authorized_key", KEY.replace("ssh-ed25519", "ssh-rsa")),
        ("ssh_authorized_key", f"{KEY}\n-----BEGIN OPENSSH PRIVATE KEY-----"),
        ("ssh_authorized_key", f"{KEY} a\x1b[2J"),
        ("ssh_authorized_key", f"{KEY} {'a' * 65536}"),
        ("static_network_config", [{"network_yaml": "", "mac_interface_map": []}]),
        ("static_network_config", "a"),
        ("hostname", 7),
        ("hostname", "a b"),
        ("hostname", "-a"),
        ("hostname", "a..b"),
        ("hostname", "a."),
        ("hostname", "a\n"),
        ("hostname", "a,%0Ab"),
        ("hostname", "a" * 64),
        ("hostname", f"{'a' * 63}.b"),
        ("kernel_arguments", "a=1"),
        ("kernel_arguments", {"operation": "append", "value": "a"}),
        ("kernel_arguments", ["a"]),
        ("kernel_arguments", [{"operation": "append"}]),
        ("kernel_arguments", [append("a") | {"more": 1}]),
        ("kernel_arguments", [{"operation": "prepend", "value": "a"}]),
        ("kernel_arguments", [append("$a")]),
        ("kernel_arguments", [append("")]),
        ("kernel_arguments", [append("a" * 4097)]),
        ("kernel_arguments", [{"operation": "replace", "value": "a=b"}]),
        ("kernel_arguments", [{"operation": "delete", "value": 'a="b'}]),
        ("kernel_arguments", [append("a")] * 65),
        ("network_keyfiles", []),
        ("network_keyfiles", {"../a.nmconnection": ""}),
        ("network_keyfiles", {"a/b.nmconnection": ""}),
        ("network_keyfiles", {".a.nmconnection": ""}),
        ("network_keyfiles", {"": ""}),
        ("network_keyfiles", {"eth0": ""}),
        ("network_keyfiles", {"a\n.nmconnection": ""}),
        ("network_keyfiles", {"ä" * 122 + ".nmconnection": ""}),
        ("network_keyfiles", {"a.nmconnection": None}),
        ("network_keyfiles", {"a.nmconnection": "\0"}),
        ("network_keyfiles", {"a.nmconnection": "x" * 65_537}),
        ("network_keyfiles", {f"{number}.nmconnection": "" for number in range(65)}),
        ("ramdisk", 7),
        ("ramdisk", ["H4sI"]),
        ("ramdisk", "H4sI\n"),
        ("ramdisk", "H4s"),
        ("ramdisk", "ä"),
        ("ramdisk", in_base64(b"070707")),
        ("ramdisk", in_base64(RAMDISK[:-9])),
        ("ramdisk", in_base64(lzma.compress(write_archive([])))),
        ("ramdisk", in_base64(write_archive([Member("a", b"")])[:-124])),
        ("ramdisk", in_base64(RAMDISK.ljust(MAX_RAMDISK_BYTES + 1, b"\0"))),
    ],
)
def test_wrong_value_is_refused_with_the_field_name(name: str, wrong: object) -> None:
    with pytest.raises(InvalidParameter, match=f"^{name} ") as caught:
        read(**{name: wrong})
    assert status_of(caught.value) == 400


def test_config_override_is_limited() -> None:
    """Not one of the values above, which each process of the tests keeps."""
    with pytest.raises(InvalidParameter, match=r"^ignition_config_override "):
        read(ignition_config_override=IGNITION + " " * MAX_OVERRIDE_BYTES)


@pytest.mark.parametrize(
    "name",
    [
        "Wired connection 1.nmconnection",
        "bond0+vlan.nmconnection",
        "eth0:1.nmconnection",
        "é.nmconnection",
    ],
)
def test_keyfiles_have_the_names_that_networkmanager_gives(name: str) -> None:
    assert read(network_keyfiles={name: "[connection]\n"})["network_keyfiles"] == {name: "[connection]\n"}


def test_refused_ramdisk_says_what_to_do() -> None:
    with pytest.raises(InvalidParameter, match="CRC64, which the kernel does not read; use xz --check=crc32"):
        read(ramdisk=in_base64(lzma.compress(write_archive([]))))


@pytest.mark.parametrize(
    "ramdisk",
    [zstd.compress(write_archive([])), bz2.compress(write_archive([])), b"\0" + RAMDISK],
)
def test_ramdisk_that_some_kernels_unpack_is_set(ramdisk: bytes) -> None:
    assert read(ramdisk=in_base64(ramdisk))["ramdisk"] == ramdisk


@given(st.dictionaries(names | st.text(max_size=8), values, max_size=4))
def test_every_json_object_is_parsed_or_refused(document: dict[str, Any]) -> None:
    try:
        fields = parse_fields(json.dumps(document).encode(), registering=False)
    except InvalidRequest:
        return
    assert set(fields) == set(document) - {"pull_secret", "static_network_config"}
    rendered(StandaloneInfraEnv.register({**REQUIRED, **fields}, NOW))
