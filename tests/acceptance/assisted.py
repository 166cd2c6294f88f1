"""The stand-in for assisted-service as a process of its own, which outlives the service under test.

It signs a new token into every Ignition config, as assisted-service's local authentication does, and prints a
line for each request.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import Deferred

from image_service.settings.parsers import ListenAddress
from tests.acceptance.service import INFRA_ENVS, fetch
from tests.server.standalone.faults import Call, Fault, FaultyStandalone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twisted.internet.epollreactor import EPollReactor

_TIMEOUT_SECONDS = 60


@attrs.define
class Assisted:
    """A running stand-in.

    Args:
        url: its base URL for the service under test.
        api_url: where infra-envs are registered.
        ca_file: the CA of its certificate.
        output: the file of its standard output.
    """

    url: str
    api_url: str
    ca_file: str
    output: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the service's environment variables that point to it."""
        return {
            "ASSISTED_SERVICE_SCHEME": "https",
            "ASSISTED_SERVICE_HOST": self.url.removeprefix("https://"),
            "ASSISTED_SERVICE_API_TRUSTED_CA_FILE": self.ca_file,
        }

    @property
    def rounds(self) -> int:
        """Return the number of requests for Ignition configs."""
        return self.output.read_text().split().count(Call.IGNITION.name)

    def register(self, version: str, config: Mapping[str, object]) -> str:
        """Register an infra-env; return its identifier."""
        return self._send("POST", INFRA_ENVS, config, name="x", openshift_version=version)["id"]

    def change(self, infra_env_id: str, config: Mapping[str, object]) -> None:
        """Replace the Ignition config of an infra-env."""
        self._send("PATCH", f"{INFRA_ENVS}/{infra_env_id}", config)

    def _send(self, method: str, path: str, config: Mapping[str, object], **fields: str) -> dict[str, str]:
        body = json.dumps({**fields, "ignition_config_override": json.dumps(config)}).encode()
        answer = fetch(self.api_url + path, method, headers={"Content-Type": "application/json"}, body=body)
        assert answer.status == 201, answer
        return answer.json()


@contextmanager
def run_assisted(directory: Path) -> Iterator[Assisted]:
    """Run it in an empty directory until the block ends."""
    output = directory / "assisted"
    command = (sys.executable, "-m", "tests.acceptance.assisted", directory)
    checkout = Path(__file__).parents[2]
    with output.open("wb") as stdout, Popen(command, cwd=checkout, stdin=PIPE, stdout=stdout) as process:
        try:
            yield Assisted(**_wait_for_addresses(output), output=output)
            process.terminate()
            assert process.wait(_TIMEOUT_SECONDS) == 0
        finally:
            process.kill()


def _wait_for_addresses(output: Path) -> dict[str, str]:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not (lines := output.read_text().splitlines(keepends=True)) or not lines[0].endswith("\n"):
        assert time.monotonic() < deadline, "the stand-in does not start"
        time.sleep(0.05)
    addresses: dict[str, str] = json.loads(lines[0])
    return addresses


class _Printed(Counter[tuple[str, Call]]):
    def __setitem__(self, asked: tuple[str, Call], times: int) -> None:
        super().__setitem__(asked, times)
        print(asked[1].name, flush=True)  # noqa: T201 - what this process is for


async def _serve(reactor: EPollReactor, directory: Path) -> None:
    standalone = FaultyStandalone(
        reactor, directory, ListenAddress("127.0.0.1", 0), None, lambda: "http://images.test"
    )
    standalone.calls = _Printed()
    standalone.faults[Call.IGNITION] = Fault(sign_token=True, last_modified=False)
    await standalone.start()
    addresses = {
        "url": standalone.base_url,
        "api_url": standalone.api_url,
        "ca_file": str(standalone.ca_file),
    }
    print(json.dumps(addresses), flush=True)  # noqa: T201 - same


def main() -> None:
    """Run until SIGTERM."""
    from twisted.internet import reactor  # noqa: PLC0415, TID251 - the entry point of a process

    running = cast("EPollReactor", reactor)
    running.callWhenRunning(lambda: Deferred.fromCoroutine(_serve(running, Path(sys.argv[1]))))
    running.run()


if __name__ == "__main__":
    main()
