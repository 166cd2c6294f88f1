"""static_network_config, from the request to what a machine does with its files."""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
import subprocess
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import InvalidParameter
from image_service.core.formats.initrd import read_members
from image_service.core.formats.newc import read_archive
from image_service.server.standalone.translation.hosts import HostNetwork, parse_static_network
from image_service.server.standalone.translation.keyfiles import convert_networks
from tests.pytwisted import ensure_deferred
from tests.server.standalone.programs import SYSTEM_PATH, put_client, put_double, put_printer
from tests.server.standalone.running import INFRA_ENVS, ApiClient

if TYPE_CHECKING:
    from pathlib import Path

MAC = "52:54:00:12:34:56"
STATE = """\
interfaces:
- name: eth0
  type: ethernet
  state: up
  ipv4:
    enabled: true
    dhcp: false
    address:
    - {ip: 192.0.2.10, prefix-length: 24}
- name: eth0.100
  type: vlan
  state: up
  vlan: {base-iface: eth0, id: 100}
"""
# `nmstatectl gc` 2.2.62 prints this, and more settings, of the state.
PRINTED = """\
NetworkManager:
- - eth0.nmconnection
  - |
    [connection]
    autoconnect=true
    id=eth0
    interface-name=eth0
    type=802-3-ethernet

    [ipv4]
    address0=192.0.2.10/24
    method=manual
- - eth0.100.nmconnection
  - |
    [connection]
    id=eth0.100
    interface-name=eth0.100
    type=vlan

    [vlan]
    id=100
    parent=eth0
"""


def mapping(*macs: str) -> list[dict[str, str]]:
    return [{"mac_address": mac, "logical_nic_name": f"eth{at}"} for at, mac in enumerate(macs)]


def of_host(state: str = STATE, *macs: str) -> dict[str, Any]:
    return {"network_yaml": state, "mac_interface_map": mapping(*(macs or (MAC,)))}


def convert(*hosts: object) -> dict[str, str]:
    return convert_networks(parse_static_network(list(hosts)), Interruption())


def test_order_of_machines_changes_nothing() -> None:
    first, second = of_host(STATE, MAC, "52:54:00:00:00:01"), of_host(STATE, "52:54:00:00:00:02")
    parsed = parse_static_network([first, second])
    assert parsed == parse_static_network([second, first])
    assert [host.mac_interface_ini for host in parsed] == [
        "52:54:00:00:00:02=eth0",
        f"52:54:00:00:00:01=eth1\n{MAC}=eth0",
    ]
    assert "192.0.2.10" not in repr(parsed)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({}, "a list of at most 128"),
        ([of_host()] * 129, "a list of at most 128"),
        ([7], "objects with the string network_yaml"),
        ([{**of_host(), "more": 1}], "objects with the string network_yaml"),
        ([{**of_host(), "mac_interface_map": []}], "1 to 64 objects"),
        ([of_host(STATE, *(f"52:54:00:00:00:{n:02x}" for n in range(65)))], "1 to 64 objects"),
        ([of_host(STATE, "52:54")], "objects with mac_address, such as"),
        ([{**of_host(), "mac_interface_map": [{"mac_address": MAC}]}], "objects with mac_address"),
        (
            [
                {
                    **of_host(),
                    "mac_interface_map": [{"mac_address": MAC, "logical_nic_name": "a\nb"}],
                }
            ],
            "objects with mac_address",
        ),
        ([of_host(STATE, "52:54:00:00:00:aa", "52:54:00:00:00:AA")], "of a machine once"),
        ([of_host("a: [\n b: }")], f"YAML in the network_yaml of {MAC}: line 2, column 5 is not YAML"),
        ([of_host("[" * 20_000)], f"YAML in the network_yaml of {MAC}"),
        ([of_host("#" * 200_000)] * 2, "at most 262144 characters"),
        ([of_host("interfaces: [{name: eth7, type: ethernet}]")], "map the interface 'eth7'"),
        (
            [of_host("interfaces: [{name: b, type: bond, link-aggregation: {port: [eth0, eth8]}}]")],
            "map the interface 'eth8'",
        ),
    ],
)
def test_invalid_networks_are_refused(value: object, fault: str) -> None:
    with pytest.raises(ValueError, match=r"^must ") as refusal:
        parse_static_network(value)
    assert fault in str(refusal.value)


@pytest.mark.parametrize(
    "state",
    [
        "",
        "interfaces: none",
        "interfaces: [{name: enp1s0, type: ethernet}]",
        "interfaces: [{name: lan, type: ethernet, identifier: mac-address, mac-address: 52:54:00:00:00:07}]",
        "interfaces: [{name: bond0, type: bond, link-aggregation: {port: [eth0, enp1s0]}}]",
        "interfaces: [7, {name: b, type: bond, link-aggregation: 7}, {name: br, type: linux-bridge}]",
    ],
)
def test_interfaces_that_a_machine_has_are_accepted(state: str) -> None:
    assert parse_static_network([of_host(state)]) == (HostNetwork(state, (("eth0", MAC),)),)


def test_keyfiles_are_preferred_to_those_that_networkmanager_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_printer(monkeypatch, tmp_path, "nmstatectl", PRINTED)
    files = convert(of_host())
    assert list(files) == [
        "host0/eth0.nmconnection",
        "host0/eth0.100.nmconnection",
        "host0/mac_interface.ini",
    ]
    ethernet, vlan, macs = files.values()
    assert ethernet.startswith(
        "[connection]\nautoconnect=true\nid=eth0\ninterface-name=eth0\ntype=802-3-ethernet\n"
        "autoconnect-priority=1\n\n[ipv4]\n"
    )
    assert "type=vlan\nautoconnect=true\nautoconnect-priority=1\n\n[vlan]\n" in vlan
    assert macs == f"{MAC}=eth0"


@pytest.mark.soak  # compiles for minutes
def test_real_nmstate_makes_keyfiles(monkeypatch: pytest.MonkeyPatch) -> None:
    put_client(monkeypatch, "nmstatectl")
    ethernet, vlan, _ = convert(of_host()).values()
    assert "address0=192.0.2.10/24\n" in ethernet
    assert "parent=eth0\n" in vlan
    for keyfile in (ethernet, vlan):
        assert "autoconnect-priority=1\n" in keyfile.partition("\n\n")[0] + "\n"


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("interfaces: Need 1|0 at line 2 column 1", "interfaces: Need 1|0 at line 2, column 1"),
        ('invalid type: string "s3cret", expected struct', "invalid type: string …, expected struct"),
    ],
)
def test_fault_of_nmstate_is_told_without_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, message: str, fault: str
) -> None:
    told = f"[INFO  nmstatectl] s3cret\nProvide file is not valid NetworkState: {message}"
    put_double(monkeypatch, tmp_path, "nmstatectl", f"echo '{told}' >&2; exit 1")
    with pytest.raises(InvalidParameter) as refusal:
        convert(of_host())
    where = f"static_network_config: nmstate refuses the network_yaml of {MAC}: "
    assert refusal.value.detail == f"{where}{fault}"


@pytest.mark.soak  # compiles for minutes
@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("interfaces:\n- {name: eth0, type: ethernet, ipv4: {enabled: s3cret}}\n", "line 2, column 1"),
        ("s3cret", "invalid type: string …"),
        ("interfaces: []", "it has no interface to configure"),
    ],
)
def test_what_real_nmstate_refuses_is_told_without_content(
    monkeypatch: pytest.MonkeyPatch, state: str, fault: str
) -> None:
    put_client(monkeypatch, "nmstatectl")
    with pytest.raises(InvalidParameter) as refusal:
        convert(of_host(state))
    assert f"nmstate refuses the network_yaml of {MAC}: " in refusal.value.detail
    assert fault in refusal.value.detail
    assert "s3cret" not in refusal.value.detail


@pytest.mark.parametrize(
    "printed", ["a: [", "7", "a: 1", "NetworkManager: [[a]]", "NetworkManager: [[../a, b]]", "\x1b"]
)
def test_output_that_is_not_keyfiles_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str
) -> None:
    put_printer(monkeypatch, tmp_path, "nmstatectl", printed)
    with pytest.raises(InvalidParameter, match="does not print keyfiles"):
        convert(of_host())


def test_without_nmstatectl_the_refusal_has_the_line_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", SYSTEM_PATH)
    with pytest.raises(InvalidParameter, match="`nmstatectl gc FILE`"):
        convert(of_host())


@ensure_deferred
async def test_api_answers_as_assisted_service_and_gives_files_to_each_kind_of_image(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_printer(monkeypatch, tmp_path, "nmstatectl", PRINTED)
    networks = [of_host()]
    made = await api.register(static_network_config=networks, image_type="minimal-iso")
    one = f"{INFRA_ENVS}/{made}"
    shown = (await api("GET", one)).document
    assert json.loads(shown["static_network_config"]) == networks

    in_initrd = {
        "etc/assisted/network/host0/eth0.nmconnection",
        "etc/assisted/network/host0/eth0.100.nmconnection",
        "etc/assisted/network/host0/mac_interface.ini",
        "usr/local/bin/static-network.sh",
        "etc/systemd/system/static-network.service",
    }
    ramdisk = (await api("GET", f"{one}/downloads/minimal-initrd")).body
    assert read_members(ramdisk).keys() == in_initrd

    config = f"{one}/downloads/files?file_name=discovery.ign"
    full = (await api("GET", f"{config}&discovery_iso_type=full-iso")).document
    assert {file["path"][1:] for file in full["storage"]["files"]} == in_initrd - {
        "etc/systemd/system/static-network.service"
    }
    (unit,) = full["systemd"]["units"]
    assert (unit["name"], unit["enabled"]) == ("static-network.service", True)
    for query in ("", "&discovery_iso_type=minimal-iso"):  # the infra-env's own kind is minimal
        assert "storage" not in (await api("GET", config + query)).document

    cleared = await api("PATCH", one, {"static_network_config": []})
    assert (cleared.status, cleared.document["static_network_config"]) == (201, None)
    assert (await api("GET", f"{one}/downloads/minimal-initrd")).status == 204


@ensure_deferred
@pytest.mark.parametrize("kind", ["initrd", "system"])
async def test_machine_takes_its_own_network(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """The script of the image runs in a directory that stands for a machine, whose eth0 is called ens3."""
    put_printer(monkeypatch, tmp_path, "nmstatectl", PRINTED)
    other = of_host(f"{STATE}# other\n", "52:54:00:00:00:09")
    made = await api.register(static_network_config=[of_host(), other])
    machine = tmp_path / "machine"
    downloads = f"{INFRA_ENVS}/{made}/downloads"
    if kind == "initrd":
        unpack((await api("GET", f"{downloads}/minimal-initrd")).body, machine)
        (machine / "etc/initrd-release").touch()
        wanted = machine / "etc/systemd/system/initrd.target.wants/static-network.service"
        assert os.fspath(wanted.readlink()) == "/etc/systemd/system/static-network.service"
    else:
        write_files((await api("GET", f"{downloads}/files?file_name=discovery.ign")).document, machine)
    interface = machine / "sys/class/net/ens3"
    interface.mkdir(parents=True)
    (interface / "address").write_text(f"{MAC}\n")

    put_double(monkeypatch, tmp_path, "sleep", "")  # the script waits until interfaces are stable
    told = configure(machine)
    target = "coreos-firstboot-network" if kind == "initrd" else "NetworkManager/system-connections"
    keyfiles = {path.name: path.read_text() for path in (machine / "etc" / target).iterdir()}
    assert keyfiles.keys() == {"ens3.nmconnection", "ens3.100.nmconnection"}, told
    assert "\ninterface-name=ens3\n" in keyfiles["ens3.nmconnection"]
    assert "\nparent=ens3\n" in keyfiles["ens3.100.nmconnection"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that stands for a machine with two interfaces, and the networks of two machines."""
    put_double(monkeypatch, tmp_path, "sleep", "")
    root = tmp_path / "machine"
    script = root / "usr/local/bin/static-network.sh"
    script.parent.mkdir(parents=True)
    content = resources.files("image_service.server.standalone.translation").joinpath("static-network.sh")
    script.write_bytes(content.read_bytes())
    script.chmod(0o755)
    put_interface(root, "lo", "00:00:00:00:00:00")
    put_interface(root, "enp175s0f0np0", "52:54:00:aa:bb:01")
    put_interface(root, "ens4", "52:54:00:aa:bb:02")
    put_network(root, 0, {"52:54:00:00:00:09": "eth0"}, {"eth0": "[connection]\nid=other\n"})
    return root


def put_interface(root: Path, name: str, mac: str) -> None:
    directory = root / "sys/class/net" / name
    directory.mkdir(parents=True)
    (directory / "address").write_text(f"{mac}\n")


def put_network(root: Path, number: int, names: dict[str, str], keyfiles: dict[str, str]) -> None:
    directory = root / f"etc/assisted/network/host{number}"
    directory.mkdir(parents=True)
    (directory / "mac_interface.ini").write_text("\n".join(f"{mac}={name}" for mac, name in names.items()))
    for name, text in keyfiles.items():
        (directory / f"{name}.nmconnection").write_text(text)


def connections(root: Path) -> dict[str, str]:
    directory = root / "etc/NetworkManager/system-connections"
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in directory.iterdir())
    return {path.name.removesuffix(".nmconnection"): path.read_text() for path in directory.iterdir()}


def test_names_of_interfaces_become_those_of_the_machine(machine: Path) -> None:
    names = {"52:54:00:AA:BB:01": "eth0", "52:54:00:aa:bb:02": "e.t]h*"}
    odd = "[connection]\n$(touch {root}/run)=a\ncontroller=bond0\ninterface-name=e.t]h*\n\nflags=\n"
    keyfiles = {
        "eth0": "[connection]\nid=eth0\ninterface-name=eth0\n[ipv4]\naddress1=192.0.2.1/24\ndns=eth0;",
        "eth0.100": "[connection]\ninterface-name=eth0.100\n[vlan]\nparent=eth0\nid=100\n",
        "e.t]h*": odd.format(root=machine),
        "bond0": "[connection]\ninterface-name=bond0\n",
    }
    put_network(machine, 1, names, keyfiles)
    default = machine / "etc/NetworkManager/system-connections/default_connection.nmconnection"
    default.parent.mkdir(parents=True)
    default.touch()
    configure(machine)
    longest = "enp175s0f0n.100"  # 15 characters
    assert connections(machine) == {
        "enp175s0f0np0": "[connection]\nid=enp175s0f0np0\ninterface-name=enp175s0f0np0\n[ipv4]\n"
        "address1=192.0.2.1/24\ndns=eth0;\n",
        longest: f"[connection]\ninterface-name={longest}\n[vlan]\nparent=enp175s0f0np0\nid=100\n",
        "ens4": odd.format(root=machine).replace("e.t]h*", "ens4"),
        "bond0": keyfiles["bond0"],
    }
    assert not (machine / "run").exists()


def test_network_is_that_of_which_most_is_there(machine: Path) -> None:
    """The first whose interfaces are all there; else the first of which one is."""
    keyfile = {"a": "[connection]\nid=a\n"}
    put_network(machine, 1, {"52:54:00:aa:bb:01": "a", "52:54:00:00:00:08": "b"}, keyfile)
    configure(machine)
    assert connections(machine).keys() == {"enp175s0f0np0"}
    put_network(machine, 2, {"52:54:00:aa:bb:02": "a"}, keyfile)
    configure(machine)
    assert connections(machine).keys() == {"ens4"}


def test_machine_without_a_network_keeps_its_connections(machine: Path) -> None:
    kept = machine / "etc/NetworkManager/system-connections/a.nmconnection"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert "lists a MAC address of this machine" in configure(machine)
    assert kept.exists()


def configure(machine: Path) -> str:
    script = machine / "usr/local/bin/static-network.sh"
    assert script.stat().st_mode & 0o111
    environment = {**os.environ, "PATH_PREFIX": str(machine)}
    done = subprocess.run(
        ["/bin/bash", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def unpack(ramdisk: bytes, root: Path) -> None:
    members, _ = read_archive(gzip.decompress(ramdisk))
    for member in members:
        path = root / member.name
        if stat.S_ISDIR(member.mode):
            path.mkdir(parents=True)
        elif stat.S_ISLNK(member.mode):
            path.symlink_to(member.data.decode())
        else:
            path.write_bytes(member.data)
            path.chmod(stat.S_IMODE(member.mode))


def write_files(config: Any, root: Path) -> None:
    for file in config["storage"]["files"]:
        path = root / file["path"][1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(file["contents"]["source"].partition("base64,")[2]))
        path.chmod(file["mode"])
