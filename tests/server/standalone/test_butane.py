"""Butane in the place of Ignition: translated by the real program, or refused with what to run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred
from twisted.web.client import ResponseNeverReceived

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import InvalidParameter, Unavailable
from image_service.server.standalone.translation import translators
from image_service.server.standalone.translation.butane import MAX_BUTANE_BYTES, ButaneConfig
from tests.pytwisted import ensure_deferred
from tests.server.standalone.programs import SYSTEM_PATH, put_client, put_double, put_printer
from tests.server.standalone.running import INFRA_ENVS, ApiClient, running
from tests.server.transport.reactor_turns import until

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

FILES = "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n"
VALID = f"{FILES}    - path: /etc/a\n      contents:\n        inline: hello\n"
IGNITION = '{"ignition":{"version":"3.4.0"}}'


def translate(text: str) -> str:
    return ButaneConfig(text).to_ignition(Interruption())


def refused(text: str) -> str:
    with pytest.raises(InvalidParameter) as refusal:
        translate(text)
    return refusal.value.detail


@pytest.mark.soak  # compiles for minutes
def test_real_butane_translates(monkeypatch: pytest.MonkeyPatch) -> None:
    put_client(monkeypatch, "butane")
    (file,) = json.loads(translate(VALID))["storage"]["files"]
    assert (file["path"], file["contents"]["source"]) == ("/etc/a", "data:,hello")


@pytest.mark.parametrize(
    ("messages", "fault"),
    [  # those of butane 0.23.0
        (
            "warning at $.a, line 8 col 7: Unused key a\nError translating config: source config is invalid",
            "warning at $.a, line 8, column 7: Unused key a",
        ),
        (
            "Error translating config: yaml: unmarshal errors:\n  line 6: cannot use `s3cret` as int",
            "yaml: unmarshal errors: line 6: cannot use … as int",
        ),
        ("Error translating config: No translator exists for a", "No translator exists for a"),
        ("Error translating config: source config is invalid", "source config is invalid"),
    ],
)
def test_fault_of_butane_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: str, fault: str
) -> None:
    put_double(monkeypatch, tmp_path, "butane", f"echo '{messages}' >&2; exit 1")
    assert refused(VALID) == f"the Butane config is invalid: {fault}"


@pytest.mark.soak  # compiles for minutes
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{FILES}    - path: etc/a\n", "line 5, column 13: path not absolute"),
        (f"{FILES}    - path: /etc/a\n      more: s3cret\n", "line 6, column 7: Unused key more"),
        (f"{FILES}    - path: /etc/a\n      mode: s3cret\n", "line 6: cannot unmarshal !!str … into int"),
        (f"{FILES}    - path: /a\n   b: : c\n", "line 3: did not find expected key"),
        ("variant: other\nversion: 1.5.0\n", "No translator exists for variant other"),
        (f"{FILES}    - path: /a\n      contents:\n        local: s3cret\n", "line 7, column 16: local file"),
    ],
)
def test_fault_of_real_butane_has_its_place(monkeypatch: pytest.MonkeyPatch, text: str, fault: str) -> None:
    put_client(monkeypatch, "butane")
    told = refused(text)
    assert fault in told
    assert "s3cret" not in told


def test_without_butane_the_refusal_has_the_line_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", SYSTEM_PATH)
    assert "`butane --strict <FILE`" in refused(VALID)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("echo 'a \"s3cret\" \033[31mb' >&2; exit 1", "invalid: a … [31mb"),
        ("exit 3", "invalid: it does not say why"),
        ("kill -9 $$", "butane was ended by signal 9"),
    ],
)
def test_program_that_fails_is_told_of_in_plain_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, fault: str
) -> None:
    put_double(monkeypatch, tmp_path, "butane", script)
    assert fault in refused(VALID)


def test_program_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_double(monkeypatch, tmp_path, "butane", "sleep 1000")
    monkeypatch.setattr(translators, "_WALL_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="butane took more than"):
        translate(VALID)


def test_stop_ends_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_double(monkeypatch, tmp_path, "butane", "sleep 1000")
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(Interrupted):
        ButaneConfig(VALID).to_ignition(interruption)


@ensure_deferred
async def test_api_stores_what_butane_prints(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_printer(monkeypatch, tmp_path, "butane", f"{IGNITION}\n")
    made = await api.register(ignition_config_override=VALID)
    shown = (await api("GET", f"{INFRA_ENVS}/{made}")).document
    assert shown["ignition_config_override"] == IGNITION
    changed = await api("PATCH", f"{INFRA_ENVS}/{made}", {"ignition_config_override": VALID})
    assert (changed.status, changed.document["ignition_config_override"]) == (201, IGNITION)


@ensure_deferred
async def test_api_refuses_what_butane_does_not_translate_to_ignition(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = {"name": "a", "openshift_version": "4.20", "ignition_config_override": VALID}
    put_printer(monkeypatch, tmp_path, "butane", "apiVersion: machineconfiguration.openshift.io/v1\n")
    reply = await api("POST", INFRA_ENVS, document)
    assert (reply.status, reply.document["code"]) == (400, "parameter-invalid")
    assert "prints no Ignition config" in reply.document["detail"]
    reply = await api(
        "POST", INFRA_ENVS, {**document, "ignition_config_override": VALID + "#" * MAX_BUTANE_BYTES}
    )
    assert f"more than {MAX_BUTANE_BYTES}" in reply.document["detail"]


@ensure_deferred
async def test_service_that_stops_ends_a_translation(
    reactor: EPollReactor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_double(monkeypatch, tmp_path, "butane", "sleep 1000")
    async with running(reactor, tmp_path / "data") as standalone:
        running_program = standalone._program_lock
        api = ApiClient(reactor, standalone.api_url)
        document = {"name": "a", "openshift_version": "4.20", "ignition_config_override": VALID}
        replied = Deferred.fromCoroutine(api("POST", INFRA_ENVS, document))
        await until(reactor, lambda: running_program.locked)
    await replied.addErrback(lambda failure: failure.trap(ResponseNeverReceived))  # or it is a refusal
    await until(reactor, lambda: not running_program.locked)
