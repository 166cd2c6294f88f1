"""sushy-tools' emulator of BMCs, whose virtual CD is read by ranges, as those of real BMCs are.

Of itself it copies an image when that is inserted, and its fake machines read nothing. Here the URL is the
medium, and a machine is a program, which is started when the machine is switched on or reset: the words of
MACHINE_COMMAND in the emulator's configuration, in which {url} is the medium.
"""

from __future__ import annotations

import subprocess
from typing import Any

from sushy_tools.emulator import main
from sushy_tools.emulator.resources.systems.fakedriver import FakeDriver
from sushy_tools.emulator.resources.vmedia import StaticDriver


def _keep_url(_self: StaticDriver, url: str, *_: object) -> tuple[str, str]:
    return "image.iso", url


def _start(self: Any, identity: str, state: str) -> None:
    url, _, _ = self.get_boot_image(identity, "Cd")
    command = [word.replace("{url}", url) for word in self._config["MACHINE_COMMAND"]]
    subprocess.Popen(command, stdin=subprocess.DEVNULL)
    self._update(identity, power_state="On")
    assert state in {"On", "ForceOn", "ForceRestart"}


if __name__ == "__main__":
    StaticDriver._get_image = _keep_url
    FakeDriver.set_power_state = _start
    main.main()
