"""The infra-envs on the administrative listener: no reply has a config, a key or a network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from openapi_spec_validator import validate
from twisted.internet.defer import succeed

from image_service.core.errors import InvalidParameter, NotFound
from image_service.server.admin.admin_api import api_routes
from image_service.server.admin.infra_envs_api import INFRA_ENVS_PATH, InfraEnvsElsewhere
from image_service.server.standalone.infra_env import MAX_OVERRIDE_BYTES
from image_service.server.standalone.translation.butane import MAX_BUTANE_BYTES
from image_service.server.web_api.messages import ApiRequest
from image_service.server.web_api.router import ApiRouter
from tests.pytwisted import ensure_deferred
from tests.server.standalone.programs import SYSTEM_PATH, put_double, put_ksvalidator, put_printer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import TypeAlias

    from tests.server.standalone.faults import FaultyStandalone

    Ask: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

SECRET = "s3cret"
NETWORK = """\
- mac_interface_map: [{mac_address: 52:54:00:12:34:56, logical_nic_name: eth0}]
  network_yaml: '{interfaces: [{name: eth0, type: ethernet}]}'
"""
CONFIG = {"ignition": {"version": "3.2.0"}, "a": SECRET}


@pytest.fixture
def ask(standalone: FaultyStandalone) -> Ask:
    router = ApiRouter(api_routes([standalone.operations]))

    async def ask_here(method: str, path: str, document: object = None) -> Any:
        body = b"" if document is None else json.dumps(document).encode()
        return json.loads((await router.respond(ApiRequest(method, path, body=body))).body or b"null")

    return ask_here


@ensure_deferred
async def test_no_reply_has_what_may_be_secret(ask: Ask) -> None:
    fields = {
        "name": "a",
        "openshift_version": "4.20",
        "ignition_config_override": CONFIG,
        "network_keyfiles": {"a.nmconnection": SECRET},
        "family_config": SECRET,
        "kernel_arguments": [{"operation": "append", "value": "a=1"}],
    }
    made = await ask("POST", INFRA_ENVS_PATH, fields)
    path = f"{INFRA_ENVS_PATH}/{made['id']}"
    replies = [
        made,
        await ask("GET", INFRA_ENVS_PATH),
        await ask("GET", path),
        await ask("PATCH", path, {"name": "b"}),
        await ask("POST", f"{path}/copies", {}),
    ]
    assert SECRET not in json.dumps(replies)
    assert made == made | {
        "config_set": True,
        "ssh_keys": 0,
        "keyfiles": 1,
        "kernel_arguments": [{"operation": "append", "value": "a=1"}],
    }
    assert await ask("DELETE", path) is None
    with pytest.raises(NotFound):
        await ask("GET", path)


@ensure_deferred
@pytest.mark.parametrize(
    ("text", "times", "fault"),
    [
        (json.dumps(CONFIG), 1, None),
        ('{"s3cret"', 1, "it ends too early"),
        (" ", MAX_OVERRIDE_BYTES + 1, f"more than {MAX_OVERRIDE_BYTES}"),
    ],
)
async def test_config_is_checked_without_being_repeated(
    ask: Ask, text: str, times: int, fault: str | None
) -> None:
    config = text * times
    found = await ask("POST", "/api/v1/config-checks", {"config": config})
    assert (found["size"], found["max_size"]) == (len(config), MAX_OVERRIDE_BYTES)
    assert found["fault"] is None if fault is None else fault in found["fault"]
    assert SECRET not in json.dumps(found)


@ensure_deferred
async def test_butane_is_checked_without_being_repeated(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = f"variant: fcos\na: {SECRET}"

    async def fault(config: str) -> str | None:
        found = await ask("POST", "/api/v1/config-checks", {"config": config})
        assert (found["language"], found["size"]) == ("Butane config", len(config))
        assert found["max_size"] == MAX_BUTANE_BYTES
        assert SECRET not in json.dumps(found)
        return cast("str | None", found["fault"])

    monkeypatch.setenv("PATH", SYSTEM_PATH)
    assert "butane is not installed" in (await fault(config) or "")
    assert f"more than {MAX_BUTANE_BYTES}" in (await fault(config + " " * MAX_BUTANE_BYTES) or "")
    put_double(monkeypatch, tmp_path, "butane", f"echo 'line 2 col 4: `{SECRET}`' >&2; exit 1")
    assert "line 2, column 4" in (await fault(config) or "")
    put_printer(monkeypatch, tmp_path, "butane", json.dumps(CONFIG))
    assert await fault(config) is None


@ensure_deferred
async def test_config_is_checked_by_the_family_of_its_base_image(
    ask: Ask, standalone: FaultyStandalone
) -> None:
    standalone.find_family = lambda version, _: succeed({"12": "debian-installer"}.get(version))
    for version, language, fault in (
        ("12", "preseed file", "line 1, column 9 of the preseed file"),
        ("4.20", "Ignition config", "is not JSON"),
    ):
        given = {"config": f"d-i a/b strng {SECRET}", "openshift_version": version}
        found = await ask("POST", "/api/v1/config-checks", given)
        assert found["language"] == language
        assert fault in found["fault"]
        assert SECRET not in json.dumps(found)
    valid = {"config": "d-i a/b string x", "openshift_version": "12", "cpu_architecture": "x86_64"}
    assert (await ask("POST", "/api/v1/config-checks", valid))["fault"] is None


@ensure_deferred
@pytest.mark.slow
async def test_config_is_checked_by_the_program_of_its_family(
    ask: Ask, standalone: FaultyStandalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ksvalidator(monkeypatch)
    standalone.find_family = lambda *_: succeed("anaconda")
    found = await ask("POST", "/api/v1/config-checks", {"config": SECRET, "openshift_version": "40"})
    assert found["fault"] == "ksvalidator does not accept the kickstart file: line 1: Unknown command: …"


@ensure_deferred
@pytest.mark.parametrize(
    "document",
    [{}, {"config": 7}, {"config": "", "more": "1"}, {"config": "", "openshift_version": None}],
)
async def test_check_without_a_config_is_refused(ask: Ask, document: object) -> None:
    with pytest.raises(InvalidParameter):
        await ask("POST", "/api/v1/config-checks", document)


@ensure_deferred
@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"static_network_config": NETWORK}, None),
        ({"static_network_config": f"- {SECRET}: ["}, "line 1, column 12 is not YAML"),
        ({"static_network_config": NETWORK.replace("52:", "")}, "mac_address, such as 52:54:00:12:34:56"),
        ({"static_network_config": NETWORK.replace("eth0", r'"\ud800"')}, "logical_nic_name"),
        ({"static_network_config": " " * 600_000}, "more than 524288"),
        ({"table": f"name,mac\n{SECRET},\n"}, None),
        ({"table": f'name\n"{SECRET}'}, "line 2: unexpected end of data"),
        ({"table": "name,colour\n"}, "not 'colour'"),
        ({"table": "name\n" + "a\n" * 600}, "has more than 512 lines below the first one"),
        ({"table": " " * 1_100_000}, "more than 1048576"),
    ],
)
async def test_networks_and_tables_are_checked_without_being_repeated(
    ask: Ask, document: dict[str, str], fault: str | None
) -> None:
    found = await ask("POST", "/api/v1/config-checks", document)
    (text,) = document.values()
    assert found["size"] == len(text)
    assert found["fault"] is None if fault is None else fault in found["fault"]
    assert SECRET not in json.dumps(found)


@ensure_deferred
async def test_each_line_of_a_table_is_registered_or_has_its_fault(ask: Ask) -> None:
    files = {"a.ign": json.dumps(CONFIG), "broken.ign": f'{{"{SECRET}"'}
    common = {"openshift_version": "4.20", "kernel_arguments": [{"operation": "append", "value": "quiet"}]}
    table = "name,mac,ignition,karg\na,52:54:00:12:34:56,configs/a.ign,b=1\nb,,broken.ign,\nc,,c.ign,\n,,,\n"
    document = {"table": table, "files": files, "common": common}
    rows = (await ask("POST", "/api/v1/infra-env-tables", document))["rows"]
    assert [(row["line"], row["name"], row["fault"] is None) for row in rows] == [
        (2, "a", True),
        (3, "b", False),
        (4, "c", False),
        (5, None, False),
    ]
    made = rows[0]["infra_env"]
    assert (rows[0]["mac"], made["config_set"]) == ("52:54:00:12:34:56", True)
    assert [each["value"] for each in made["kernel_arguments"]] == ["quiet", "b=1"]
    assert "the file 'c.ign' is not among those that were given" in rows[2]["fault"]
    assert [each["name"] for each in (await ask("GET", INFRA_ENVS_PATH))["infra_envs"]] == ["a"]
    assert SECRET not in json.dumps(rows)


@ensure_deferred
@pytest.mark.parametrize(
    "document",
    [{}, {"table": 1}, {"table": "name\n", "files": {"a": 1}}, {"table": "name\n", "common": 1}, {"a": "b"}],
)
async def test_what_is_not_a_request_for_a_table_is_refused(ask: Ask, document: object) -> None:
    with pytest.raises(InvalidParameter, match="table must be a string"):
        await ask("POST", "/api/v1/infra-env-tables", document)


@ensure_deferred
async def test_openapi_document_is_valid(ask: Ask) -> None:
    validate(await ask("GET", "/openapi.json"))


@ensure_deferred
async def test_beside_assisted_service_the_reply_says_where_infra_envs_are_made() -> None:
    router = ApiRouter(api_routes([InfraEnvsElsewhere("assisted-service, https://assisted.example.com")]))
    reply = json.loads((await router.respond(ApiRequest("GET", INFRA_ENVS_PATH))).body)
    assert reply == {"infra_envs": None, "made_at": "assisted-service, https://assisted.example.com"}
    validate(json.loads((await router.respond(ApiRequest("GET", "/openapi.json"))).body))
