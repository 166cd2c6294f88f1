"""``image-service infra-env`` at the API of a stand-in, and what it says without one."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import succeed
from twisted.internet.threads import deferToThread

from image_service.cli import main
from tests.ports import free_port
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.standalone.programs import SYSTEM_PATH, put_printer
from tests.server.standalone.running import BASE_URL, LOOPBACK, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import TypeAlias

    from twisted.internet.epollreactor import EPollReactor

    from tests.cli.conftest import Run

    Ask: TypeAlias = Callable[..., Awaitable[tuple[int, str, str]]]

KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(36)).decode()
MAC = "52:54:00:12:34:56"
STATE = "interfaces:\n- name: eth0\n  type: ethernet\n"
NETWORK = f"""\
- mac_interface_map:
  - mac_address: {MAC}
    logical_nic_name: eth0
  network_yaml: |
    interfaces:
    - name: eth0
      type: ethernet
"""
KEYFILES = "NetworkManager: [[eth0.nmconnection, '[connection]']]"
TOKEN = "t0ken-of-the-stand-in"


@async_fixture
async def ask(reactor: EPollReactor, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[Ask]:
    """Run a verb at a stand-in with a token; return status, output and errors."""
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    async with running(reactor, tmp_path / "data", LOOPBACK, TOKEN) as standalone:
        standalone.find_family = lambda version, _: succeed("debian-installer" if version == "12" else None)
        service = ["--api", standalone.api_url, "--token-file", str(token_file)]

        async def ask_here(verb: str, *arguments: object) -> tuple[int, str, str]:
            words = ["infra-env", verb, *map(str, arguments), *service]
            status = await deferToThread(main, words)
            return status, *capfd.readouterr()

        yield ask_here


@ensure_deferred
async def test_infra_env_is_made_shown_changed_copied_and_removed(ask: Ask, tmp_path: Path) -> None:
    files = {
        "config.ign": '{"ignition": {"version": "3.2.0"}}',
        "key.pub": f"{KEY}\n",
        "eth0.nmconnection": "[connection]\nid=eth0\n",
        "family.cfg": "text",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    status, output, errors = await ask(
        "create",
        *("--name", "lab", "--base", "4.20", "--hostname", "worker-1", "--json"),
        *("--ignition", tmp_path / "config.ign", "--ssh-key", tmp_path / "key.pub"),
        *("--config", tmp_path / "family.cfg", "--network-keyfile", tmp_path / "eth0.nmconnection"),
        *("--karg", "console=ttyS0", "--karg-delete", "quiet"),
    )
    assert (status, errors) == (0, "")
    made = json.loads(output)
    assert made == made | {
        "name": "lab",
        "openshift_version": "4.20",
        "cpu_architecture": "x86_64",
        "hostname": "worker-1",
        "ignition_config_override": files["config.ign"],
        "ssh_authorized_key": KEY,
        "family_config_set": True,
        "network_keyfiles": {"eth0.nmconnection": files["eth0.nmconnection"]},
    }
    assert json.loads(made["kernel_arguments"]) == [
        {"operation": "append", "value": "console=ttyS0"},
        {"operation": "delete", "value": "quiet"},
    ]

    status, output, errors = await ask("show", "lab")
    assert (status, errors) == (0, "")
    iso = f"{BASE_URL}/byid/{made['id']}/4.20/x86_64/full.iso"
    for line in (
        f"ISO          {iso}",
        f"its SHA-256  {iso}.sha256",
        f"download     curl -fo full.iso {iso}",
    ):
        assert line in output.splitlines()
    assert all(url in output for url in made["image_urls"].values())
    assert KEY not in output

    status, output, _ = await ask("edit", made["id"], "--hostname", "", "--json")
    assert (status, json.loads(output)["hostname"]) == (0, None)
    status, output, _ = await ask("copy", "lab", "--name", "lab 2", "--json")
    copied = json.loads(output)
    assert (status, copied["name"], copied["ssh_authorized_key"]) == (0, "lab 2", KEY)

    status, output, _ = await ask("list")
    assert status == 0
    assert [line.split()[0] for line in output.splitlines()] == ["ID", made["id"], copied["id"]]
    assert (await ask("delete", "lab", "no such")) == (
        1,
        "",
        "image-service: no infra-env has the name or id no such\n",
    )
    assert (await ask("delete", "lab", copied["id"])) == (0, "", "")
    assert (await ask("list", "--json")) == (0, "[]\n", "")


@ensure_deferred
async def test_kinds_choose_the_urls_that_are_printed(ask: Ask) -> None:
    create = ("create", "--name", "lab", "--base", "4.20")
    status, output, errors = await ask(*create, "--kind", "minimal-iso", "--kind", "ipxe")
    assert (status, errors) == (0, "")
    labels = [line.split("  ")[0] for line in output.splitlines()]
    assert labels == ["infra-env", "minimal ISO", "its SHA-256", "iPXE script", "download", "boot"]
    assert "curl -fo minimal.iso http" in output
    status, output, errors = await ask("show", "lab", "--kind", "pxe")
    assert (status, errors) == (0, "")
    labels = [line.split("  ")[0] for line in output.splitlines()]
    assert labels == ["infra-env", "kernel", "initrd", "rootfs"]
    status, output, errors = await ask("show", "lab", "--kind", "iso", "--json")
    assert (status, errors) == (0, "")
    assert set(json.loads(output)["image_urls"]) == {"iso", "iso_sha256"}
    await ask("create", "--name", "debian", "--base", "12")
    status, output, errors = await ask("show", "debian", "--kind", "minimal-iso")
    assert (status, errors) == (0, "")
    assert output.splitlines()[1:] == ["images     the base image has no image of the given --kind"]


def test_kinds_of_a_table_are_refused(run: Run) -> None:
    result = run("infra-env", "create", "--csv", "rack.csv", "--base", "4.20", "--kind", "iso")
    assert result.status == 2
    assert "--kind does not go with --csv" in result.errors


@ensure_deferred
async def test_refusals_name_the_fault_and_no_content(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", SYSTEM_PATH)
    config = tmp_path / "config"
    create = ("create", "--name", "a", "--base", "4.20")
    for content, option, fault in (
        (
            b"variant: fcos\nsecret: s3cret\n",
            "--ignition",
            "`butane --strict <FILE` prints",
        ),
        (
            b"variant: fcos\nsecret: s3cret\n",
            "--butane",
            "`butane --strict <FILE` prints",
        ),
        (b"secret: s3cret\n", "--butane", "is not Butane, which has a line variant: NAME"),
        (b"- s3cret: [\n", "--static-network", "line 2, column 1 is not YAML"),
        (b"s3cret: []\n", "--static-network", "must be a list of at most 128 objects"),
        (b"- network_yaml: s3cret\n", "--static-network", "must be objects with the string network_yaml"),
        (b'{"s3cret"', "--ignition", "is not JSON"),
        (b"s3cret\n", "--ssh-key", "line 1 is not"),
        (b"s3cret\xff", "--ignition", "is not text in UTF-8"),
    ):
        config.write_bytes(content)
        status, output, errors = await ask(*create, option, config)
        assert (status, output) == (1, "")
        assert fault in errors
        assert "s3cret" not in errors
    assert (await ask("edit", "a"))[2] == "image-service: edit: no option says what to change\n"
    for _ in range(2):
        assert (await ask(*create))[0] == 0
    assert "a is the name of 2 infra-envs: " in (await ask("show", "a"))[2]


@ensure_deferred
async def test_butane_and_nmstate_are_translated(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.bu").write_text("variant: fcos\nversion: 1.5.0\n")
    (tmp_path / "network.yaml").write_text(NETWORK)
    create = ("create", "--name", "a", "--base", "4.20", "--json")
    put_printer(monkeypatch, tmp_path, "butane", '{"ignition":{"version":"3.4.0"}}')
    _, output, _ = await ask(*create, "--butane", tmp_path / "config.bu")
    assert json.loads(output)["ignition_config_override"] == '{"ignition":{"version":"3.4.0"}}'
    put_printer(monkeypatch, tmp_path, "nmstatectl", KEYFILES)
    _, output, _ = await ask(*create, "--static-network", tmp_path / "network.yaml")
    (network,) = json.loads(json.loads(output)["static_network_config"])
    assert network["network_yaml"] == STATE
    assert network["mac_interface_map"] == [{"logical_nic_name": "eth0", "mac_address": MAC}]


@ensure_deferred
async def test_each_row_of_a_table_has_its_own_result(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_printer(monkeypatch, tmp_path, "nmstatectl", KEYFILES)
    rack = tmp_path / "rack"
    rack.mkdir()
    (rack / "a.ign").write_text('{"ignition": {"version": "3.1.0"}}')
    (rack / "broken.ign").write_text('{"s3cret"')
    (rack / "net.yml").write_text(STATE)
    (tmp_path / "common.ign").write_text('{"ignition": {"version": "3.2.0"}}')
    (rack / "rack.csv").write_text(
        "\ufeffname,mac,ignition,network,karg,base\n"
        f"worker-1,{MAC},a.ign,net.yml,a=1 b=2,\n"
        '"worker 2",,broken.ign,,,\n'
        "worker-3,,missing.ign,,,\n"
        ",,,,,\n"
        "worker-5,,,,,4.21\n"
        "worker-6,,,net.yml,,\n"
        "worker-7,,,,,4.20,more\n"
    )
    common = ("--base", "4.20", "--ignition", tmp_path / "common.ign", "--karg", "quiet")
    status, output, errors = await ask("create", "--csv", rack / "rack.csv", *common, "--json")
    results = json.loads(output)
    assert (status, errors) == (1, "image-service: 5 of 7 infra-envs were not registered\n")
    assert [(result["line"], result["name"]) for result in results] == [
        (2, "worker-1"),
        (3, "worker 2"),
        (4, "worker-3"),
        (5, None),
        (6, "worker-5"),
        (7, "worker-6"),
        (8, "worker-7"),
    ]
    first, second, third, fourth, fifth, sixth, seventh = results
    made = first["infra_env"]
    assert (first["mac"], made["name"], made["openshift_version"]) == (MAC, "worker-1", "4.20")
    assert made["ignition_config_override"] == '{"ignition": {"version": "3.1.0"}}'
    assert json.loads(made["static_network_config"])[0]["network_yaml"] == STATE
    assert [each["value"] for each in json.loads(made["kernel_arguments"])] == ["quiet", "a=1", "b=2"]
    assert "it ends too early" in second["fault"]
    assert "s3cret" not in output
    assert third["fault"] == f"{rack / 'missing.ign'}: No such file or directory"
    assert fourth["fault"] == "there is no name, or no base"
    made = fifth["infra_env"]
    assert made["openshift_version"] == "4.21"
    assert made["ignition_config_override"] == '{"ignition": {"version": "3.2.0"}}'
    assert "network needs mac" in sixth["fault"]
    assert "more cells" in seventh["fault"]

    status, output, _ = await ask("create", "--csv", rack / "rack.csv", *common)
    heads, line, *others = output.splitlines()
    assert (status, heads.split()) == (1, ["LINE", "NAME", "MAC", "ISO"])
    assert line.split()[:3] == ["2", "worker-1", MAC]
    assert line.endswith("/4.20/x86_64/full.iso")
    assert others[0].startswith("3     worker 2  -")
    assert "not registered: " in others[0]


@ensure_deferred
async def test_table_of_a_spreadsheet_is_read(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "rack.csv").write_text("base; name ;config\r\n12;a, b;preseed.cfg\r\n")
    (tmp_path / "preseed.cfg").write_text("d-i a/b string c\n")
    status, output, errors = await ask("create", "--csv", tmp_path / "rack.csv", "--json")
    assert (status, errors) == (0, "")
    (result,) = json.loads(output)
    assert (result["name"], result["infra_env"]["family_config_set"]) == ("a, b", True)


@ensure_deferred
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the first line must name columns, each once"),
        (b"mac,base\n", "the first line must name columns"),
        (b"name,name\n", "each once"),
        (b"name,colour\n", "; not 'colour'"),
        (b'name\n"a\nb', "line 3: unexpected end of data"),
        (b"name\n\xff", "is not text in UTF-8"),
    ],
)
async def test_what_is_not_a_table_is_refused_as_a_whole(
    ask: Ask, tmp_path: Path, content: bytes, fault: str
) -> None:
    (tmp_path / "rack.csv").write_bytes(content)
    status, output, errors = await ask("create", "--csv", tmp_path / "rack.csv", "--base", "4.20")
    assert (status, output) == (1, "")
    assert fault in errors


@pytest.mark.parametrize("arguments", [["--name", "a"], ["--base", "4.20"]])
def test_create_needs_a_name_and_a_base(run: Run, arguments: list[str]) -> None:
    result = run("infra-env", "create", *arguments)
    assert result.status == 2
    assert "create needs --name and --base, or --csv" in result.errors


@ensure_deferred
async def test_config_of_a_family_is_refused_with_line_and_column(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "preseed.cfg").write_text("d-i a/b string c\nd-i a/b strng s3cret\n")
    config = ("--config", tmp_path / "preseed.cfg")
    refused = await ask("create", "--name", "a", "--base", "12", *config)
    assert refused[0] == 1
    assert "line 2, column 9 of the preseed file has no type of debconf" in refused[2]
    assert (await ask("create", "--name", "a", "--base", "4.20"))[0] == 0
    changed = await ask("edit", "a", "--base", "12", *config)
    assert (changed[0], "line 2, column 9" in changed[2]) == (1, True)
    assert "s3cret" not in "".join((*refused[1:], *changed[1:]))


@ensure_deferred
async def test_text_of_others_cannot_write_to_the_terminal(ask: Ask) -> None:
    assert (await ask("create", "--name", "a\u202e\u009b2J", "--base", "4.20"))[0] == 0
    for arguments in (["list"], ["show", "a\u202e\u009b2J"]):
        status, output, _ = await ask(*arguments)
        assert status == 0
        assert "a\\u202e\\x9b2J" in output


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - nobody listens
def test_without_api_that_of_the_environment_is_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    port = free_port()
    monkeypatch.setenv("STANDALONE_LISTEN", f"{listen}:{port}")
    url = f"http://127.0.0.1:{port}/api/assisted-install/v2/infra-envs"
    assert f"cannot fetch {url}: " in run("infra-env", "list").errors
