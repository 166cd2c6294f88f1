"""Schemathesis compares the OpenAPI documents with the service: no 5xx, every response as described."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.service import SERVE, Service, run_service
from tests.acceptance.stored_mount import SAMPLE
from tests.ports import free_port
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

_TIMEOUT_SECONDS = 300
EXAMPLES = 3
"""Of each operation when it is fuzzed in `make soak`."""
PHASES = pytest.mark.parametrize(
    ("phase", "examples"), [("fuzzing", 2), soaked("fuzzing", EXAMPLES), soaked("coverage", EXAMPLES)]
)
"""With the number of examples of each operation; coverage sends every value of each schema that is near a
limit, and methods that a path lacks."""
UNKNOWN_TO_SCHEMAS = {
    "makeLink": "which URLs are of this service",
    "findImageSize": "the same",
    "examineImage": "the same",
    "registerTable": "what a table is, and what its fields are",
    "getInitrdAddrsize": "that no image of the sample is for s390x",
    "RegisterInfraEnv": "what an Ignition config, a kernel argument, a keyfile and a ramdisk are",
    "UpdateInfraEnv": "the same",
    "CopyInfraEnv": "the same",
}
"""Operations that may refuse a request with 400 though it is of its schema, which does not say this."""


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """Run a service; return it with the URL of its administrative listener."""
    listen = f"127.0.0.1:{free_port()}"
    directory = tmp_path_factory.mktemp("service")
    environment = {"ADMIN_LISTEN": listen}
    with run_service(directory, [], command=(*SERVE, "--standalone"), environment=environment) as service:
        yield service, f"http://{listen}"


def check_api(url: str, directory: Path, *options: str, examples: int = EXAMPLES, config: str = "") -> None:
    """Send requests of all operations, valid and invalid ones; each response must be as the document says."""
    file = directory / "schemathesis.toml"
    lenient = [
        f'[[operations]]\ninclude-operation-id = "{name}"\nchecks.positive_data_acceptance.enabled = false\n'
        for name in UNKNOWN_TO_SCHEMAS
    ]
    file.write_text("".join([dedent(config), *lenient]))
    command = [
        *("schemathesis", "--config-file", str(file), "run", f"{url}/openapi.json", "--url", url),
        *("--max-examples", str(examples), "--seed", "1", "--no-color", "--suppress-health-check", "all"),
        *options,
    ]
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [program, *command[1:]],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@PHASES
def test_public_listener_does_what_its_document_says(
    administered: tuple[Service, str], tmp_path: Path, phase: str, examples: int
) -> None:
    service, _ = administered
    config = f"""
        [parameters]
        "path.infra_env" = "{SAMPLE}"
        "path.cluster" = "{SAMPLE}"
        "path.file" = "full.iso"
        "path.artifact" = "kernel"
        version = "sample"
        arch = "x86_64"
    """
    check_api(service.url, tmp_path, "--phases", phase, examples=examples, config=config)


@PHASES
def test_stand_in_does_what_its_document_says(
    administered: tuple[Service, str], tmp_path: Path, phase: str, examples: int
) -> None:
    service, _ = administered
    check_api(service.api_url, tmp_path, "--phases", phase, examples=examples)


@PHASES
def test_administrative_listener_does_what_its_document_says(
    administered: tuple[Service, str], tmp_path: Path, phase: str, examples: int
) -> None:
    _, admin_url = administered
    check_api(admin_url, tmp_path, "--phases", phase, examples=examples)
