"""``make boot``: a virtual machine boots a customized ISO of the service, and shows the config that it found.

The ISO is a small Linux, made once of this machine's packages: Debian's kernel and busybox.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.acceptance.boot_iso import make_boot_iso
from tests.acceptance.guest import boot, medium
from tests.acceptance.service import CHECKOUT, os_image, run_service

BASE = CHECKOUT / ".cache" / "boot" / "live.iso"
VERSION = "small-linux"
GREETING = {"path": "/etc/motd", "contents": {"source": "data:,Hello%20from%20the%20config"}}
CONFIG = {"ignition": {"version": "3.4.0"}, "storage": {"files": [GREETING]}}
ARGUMENT = "customized.by=image-service"


def main() -> int:
    """Boot once; return the exit status."""
    try:
        if not BASE.exists():
            tell(f"making {BASE}, a small Linux of this machine's packages")
            make_base()
        boot_once()
    except pytest.skip.Exception as missing:
        tell(f"make boot: {missing}; `make deps` installs it")
        return 1
    return 0


def make_base() -> None:
    """Write the ISO; it appears when it is complete."""
    BASE.parent.mkdir(parents=True, exist_ok=True)
    unfinished = BASE.with_suffix(".unfinished")
    make_boot_iso(unfinished)
    unfinished.rename(BASE)


def boot_once() -> None:
    """Serve the ISO, customize it, boot a machine from its URL, and show what the machine found."""
    with (
        TemporaryDirectory() as directory,
        run_service(Path(directory), [os_image(BASE, VERSION)]) as service,
    ):
        infra_env = service.register(VERSION, CONFIG, [ARGUMENT])
        url = f"{service.url}/byid/{infra_env}/{VERSION}/x86_64/full.iso"
        tell(f"the machine reads {url} as its CD, with this config:", json.dumps(CONFIG), "booting …")
        report = boot(*medium("cd", url))
        tell("the machine found this config:", report.config.decode(), "and these kernel arguments:")
        tell(report.arguments)


def tell(*lines: str) -> None:
    """Print lines at once."""
    print(*lines, sep="\n", flush=True)  # noqa: T201 - the program's output


if __name__ == "__main__":
    sys.exit(main())
