"""Our checks of configs beside those of the families' own projects: what we refuse, they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml
from pykickstart.errors import KickstartError
from pykickstart.parser import KickstartParser
from pykickstart.version import DEVEL, makeVersion

from image_service.core.errors import ConfigInvalid
from image_service.core.families.live.families import get_family
from tests.core.families.live.test_config_checks import INVALID, VALID


def is_accepted(family: str, config: bytes) -> bool:
    try:
        get_family(family).check(config)
    except ConfigInvalid:
        return False
    return True


def sources(variable: str, project: str) -> Path:
    """Return the directory of a project's sources, which are in no registry of packages."""
    named = os.environ.get(variable)
    if not named:
        pytest.skip(f"optional client: {variable} does not name the directory of the sources of {project}")
    return Path(named)


@pytest.mark.parametrize("config", VALID["anaconda"])
def test_pykickstart_accepts_what_we_accept(config: str) -> None:
    read_kickstart(config)


@pytest.mark.parametrize(
    "config", [config for name, config, _ in INVALID if name == "anaconda" and "\0" not in config]
)
def test_pykickstart_refuses_what_we_refuse(config: str) -> None:
    with pytest.raises(KickstartError):
        read_kickstart(config)


def read_kickstart(config: str) -> None:
    parser = KickstartParser(makeVersion(DEVEL), followIncludes=False, errorsAreFatal=True)
    parser.readKickstartFromString(config)


def test_configs_of_subiquitys_schema_are_accepted() -> None:
    files = sorted(sources("SUBIQUITY", "subiquity").glob("examples/autoinstall/*.yaml"))
    valid = [file for file in files if is_of_subiquitys_schema(file.read_text())]
    assert valid
    assert [file for file in valid if not is_accepted("ubuntu", file.read_bytes())] == []
    assert [config for config in VALID["ubuntu"] if not is_of_subiquitys_schema(config)] == []


@pytest.mark.parametrize("config", [config for name, config, _ in INVALID if name == "ubuntu"])
def test_subiquitys_schema_refuses_what_we_refuse(config: str) -> None:
    assert not is_of_subiquitys_schema(config)


def is_of_subiquitys_schema(config: str) -> bool:
    schema = json.loads((sources("SUBIQUITY", "subiquity") / "autoinstall-schema.json").read_text())
    try:
        parsed = yaml.safe_load(config)
    except yaml.YAMLError:
        return False
    return jsonschema.Draft7Validator(schema).is_valid(parsed.get("autoinstall", parsed))


def test_answer_files_of_the_installer_of_proxmox_are_accepted() -> None:
    directory = sources("PVE_INSTALLER", "pve-installer") / "proxmox-auto-installer/tests/resources"
    files = sorted(directory.glob("parse_answer/*.toml"))
    assert files
    assert [file.name for file in files if not is_accepted("proxmox", file.read_bytes())] == []
