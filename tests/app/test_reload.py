"""Reloads: one at a time, all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred

from image_service.app.reload import Configuration, Reloader, read_configuration
from image_service.app.service_manager import ServiceManager
from image_service.core.errors import ConfigurationError
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


@attrs.define(eq=False)
class Doubles:
    """A configuration that is read, and parts that apply it when the test says so."""

    texts: dict[str, str] = attrs.field(factory=dict)
    fault: str = ""
    applied: list[Deferred[list[str]]] = attrs.field(factory=list)
    reloader: Reloader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reloader = Reloader(self.read, self.apply, ServiceManager({}))

    def read(self) -> Configuration:
        if self.fault:
            raise ConfigurationError(self.fault)
        return Configuration(Settings(), dict(self.texts))

    def apply(self, _: Configuration) -> Deferred[list[str]]:
        self.applied.append(Deferred())
        return self.applied[-1]


@pytest.fixture
def doubles() -> Doubles:
    return Doubles()


def test_changed_variables_and_files_are_logged(doubles: Doubles, messages: list[str]) -> None:
    doubles.reloader.texts = {"OS_IMAGES": "[]", "LOGLEVEL": "info"}
    doubles.texts = {"OS_IMAGES": "[{}]", "LOGLEVEL": "info"}
    doubles.reloader.request()
    doubles.applied[0].callback(["/tls.crt, /tls.key"])
    doubles.reloader.request()
    doubles.applied[1].callback([])
    assert messages == [
        "reloaded: OS_IMAGES, /tls.crt, /tls.key changed",
        "reloaded: nothing changed",
    ]


def test_requests_during_a_reload_cause_one_more(doubles: Doubles) -> None:
    for _ in range(3):
        doubles.reloader.request()
    assert len(doubles.applied) == 1
    doubles.applied[0].callback([])
    assert len(doubles.applied) == 2
    doubles.applied[1].callback([])
    assert len(doubles.applied) == 2


@pytest.mark.parametrize("phase", ["read", "applied"])
def test_configuration_with_faults_is_not_in_use(doubles: Doubles, messages: list[str], phase: str) -> None:
    doubles.reloader.texts = {"LOGLEVEL": "info"}
    doubles.texts = {"LOGLEVEL": "debug"}
    faults = "OS_IMAGES: must be JSON\nHTTPS_KEY_FILE: not a pair"
    doubles.fault = faults if phase == "read" else ""
    doubles.reloader.request()
    if phase == "applied":
        doubles.applied[0].errback(ConfigurationError(faults))
    assert messages == [
        (
            "cannot reload, keeping the previous configuration: "
            "OS_IMAGES: must be JSON; HTTPS_KEY_FILE: not a pair"
        )
    ]
    assert doubles.reloader.texts == {"LOGLEVEL": "info"}


def test_each_file_is_read_once(tmp_path: Path) -> None:
    level = tmp_path / "level"
    level.write_text("debug\n")
    environ = {"LOGLEVEL": f"@{level}", "DATA_DIR": str(tmp_path)}
    configuration = read_configuration(environ, standalone=True)
    assert configuration.settings.log.level == "debug"
    assert configuration.texts == {"LOGLEVEL": "debug"}
    assert "texts" not in repr(configuration)
