"""The base URL, and the choice of its address."""

from __future__ import annotations

import json
from ipaddress import ip_address
from socket import AF_INET
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from image_service.app.admin import base_url
from image_service.app.admin.base_url import FILE, BaseUrl
from image_service.common.http.own_addresses import OwnAddress
from image_service.core.errors import Conflict, InvalidParameter, Unavailable
from image_service.settings.settings import Settings
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

LATER = "192.0.2.9"
STREAM = {"stream": "stable", "architectures": ["x86_64"], "url": "file:///stable.json"}
ADDRESSES = [OwnAddress(ip_address("192.0.2.7"), "eth0"), OwnAddress(ip_address(LATER), "eth1")]


@pytest.fixture(autouse=True)
def _addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {2: ADDRESSES, 10: [OwnAddress(ip_address("2001:db8::7"), "eth0")]}
    monkeypatch.setattr(base_url, "find_own_addresses", lambda family: found[family])
    monkeypatch.setattr("image_service.settings.network.find_default_address", lambda _: ADDRESSES[0].address)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"LISTEN_ADDRESS": "0.0.0.0", "DATA_DIR": str(tmp_path)}  # noqa: S104 - nothing listens


def make(reactor: EPollReactor, environ: dict[str, str], *, standalone: bool = True) -> BaseUrl:
    settings = Settings.from_environment(environ, standalone=standalone)
    return BaseUrl(reactor, settings, 8080, standalone=standalone)


@ensure_deferred
async def test_chosen_address_is_used_at_once_and_after_a_restart(
    reactor: EPollReactor, environ: dict[str, str]
) -> None:
    base = make(reactor, environ)
    assert (base.get(), base.of_plain_port(80)) == ("http://192.0.2.7:8080", "http://192.0.2.7:80")
    await base.choose(LATER)
    for each in (base, make(reactor, environ)):
        assert (each.get(), each.of_plain_port(80)) == (f"http://{LATER}:8080", f"http://{LATER}:80")
        assert each.describe()["chosen"] == LATER
        assert list(each.find_warnings()) == []
    await base.choose(None)
    assert base.get() == make(reactor, environ).get() == "http://192.0.2.7:8080"


@ensure_deferred
async def test_choice_that_cannot_be_stored_changes_nothing(
    reactor: EPollReactor, environ: dict[str, str], tmp_path: Path
) -> None:
    base = make(reactor, {**environ, "DATA_DIR": str(tmp_path / "absent")})
    with pytest.raises(Unavailable, match="cannot be stored in DATA_DIR: No such file or directory"):
        await base.choose(LATER)
    assert (base.get(), base.describe()["chosen"]) == ("http://192.0.2.7:8080", None)


@ensure_deferred
async def test_address_of_ipv6_is_offered_where_the_service_listens_on_it(
    reactor: EPollReactor, environ: dict[str, str]
) -> None:
    base = make(reactor, {**environ, "LISTEN_ADDRESS": "::"})
    await base.choose("2001:db8::7")
    assert (base.get(), base.of_plain_port(80)) == ("http://[2001:db8::7]:8080", "http://[2001:db8::7]:80")
    with pytest.raises(InvalidParameter, match=f"one of this machine's: 192.0.2.7, {LATER}$"):
        await make(reactor, environ).choose("2001:db8::7")


@ensure_deferred
async def test_chosen_address_that_is_gone_gives_way_until_it_returns(
    reactor: EPollReactor, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(reactor, environ).choose(LATER)
    with monkeypatch.context() as patched:
        patched.setattr(base_url, "find_own_addresses", lambda _: ADDRESSES[:1])
        base = make(reactor, environ)
        assert base.get() == "http://192.0.2.7:8080"
        assert base.describe() == {
            "decided_by": None,
            "chosen": LATER,
            "is_present": False,
            "addresses": [{"address": "192.0.2.7", "interface": "eth0"}],
        }
        (warning,) = base.find_warnings()
        assert warning.startswith(
            f"{LATER}, which was chosen for URLs, is not an address of this machine now"
        )
        assert not base.follow()
    assert make(reactor, environ).get() == f"http://{LATER}:8080"
    assert [base.follow(), base.follow()] == [True, False]
    assert base.get() == f"http://{LATER}:8080"


@ensure_deferred
async def test_address_that_goes_while_the_service_runs_stays_in_urls(
    reactor: EPollReactor, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make(reactor, environ)
    await base.choose(LATER)
    monkeypatch.setattr(base_url, "find_own_addresses", lambda _: ADDRESSES[:1])
    assert not base.follow()
    assert (base.get(), base.describe()["is_present"]) == (f"http://{LATER}:8080", False)


@ensure_deferred
async def test_urls_of_other_addresses_are_known_too(reactor: EPollReactor, environ: dict[str, str]) -> None:
    base = make(reactor, environ)
    assert base.find_all() == ["http://192.0.2.7:8080", f"http://{LATER}:8080"]
    await base.choose(LATER)
    assert base.find_all() == [f"http://{LATER}:8080", "http://192.0.2.7:8080"]
    fixed = make(reactor, {**environ, "IMAGE_SERVICE_BASE_URL": "https://images.example.com"})
    assert fixed.find_all() == ["https://images.example.com"]


def test_addresses_are_read_once_for_a_status(
    reactor: EPollReactor, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, find = make(reactor, environ), Mock(return_value=ADDRESSES)
    monkeypatch.setattr(base_url, "find_own_addresses", find)
    base.describe()
    find.assert_called_once_with(AF_INET)


@pytest.mark.parametrize("content", ["{", "[]", '{"address": 1}', "\xff"])
def test_file_that_names_no_address_is_named_in_a_warning(
    reactor: EPollReactor, environ: dict[str, str], tmp_path: Path, content: str
) -> None:
    (tmp_path / FILE).write_text(content, "latin-1")
    base = make(reactor, environ)
    assert base.get() == "http://192.0.2.7:8080"
    (warning,) = base.find_warnings()
    assert FILE in warning


DECIDED = {
    "LISTEN_ADDRESS": [{"LISTEN_ADDRESS": ""}, {"LISTEN_ADDRESS": "192.0.2.7"}],
    "IMAGE_SERVICE_BASE_URL": [
        {"IMAGE_SERVICE_BASE_URL": "http://images.example.com"},
        {"ASSISTED_SERVICE_HOST": "assisted:8090", "COREOS_STREAMS": json.dumps([STREAM])},
    ],
}


@pytest.mark.parametrize(
    ("setting", "variables"), [(name, each) for name, others in DECIDED.items() for each in others]
)
@ensure_deferred
async def test_nothing_is_offered_where_a_setting_decides(
    reactor: EPollReactor, environ: dict[str, str], tmp_path: Path, setting: str, variables: dict[str, str]
) -> None:
    (tmp_path / FILE).write_text(json.dumps({"address": LATER}))
    base = make(reactor, {**environ, **variables}, standalone="ASSISTED_SERVICE_HOST" not in variables)
    assert LATER not in base.get()
    assert base.describe() == {
        "decided_by": setting,
        "chosen": None,
        "is_present": True,
        "addresses": [],
    }
    with pytest.raises(Conflict, match=f"^{setting} decides"):
        await base.choose(LATER)
