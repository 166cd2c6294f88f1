"""``make boot``: a virtual machine boots a customized ISO of the service, and shows the config that it found.

The ISO is a small Linux, made once of this machine's packages: Debian's kernel and busybox.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.boot_iso import make_boot_iso
from tests.acceptance.guest import HOST, NETWORK, boot, medium
from tests.acceptance.service import CHECKOUT, os_image, run_service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BASE = CHECKOUT / ".cache" / "boot" / "live.iso"
VERSION = "small-linux"
GREETING = {"path": "/etc/motd", "contents": {"source": "data:,Hello%20from%20the%20config"}}
CONFIG = {"ignition": {"version": "3.4.0"}, "storage": {"files": [GREETING]}}
ARGUMENT = "customized.by=image-service"
PATHS = {
    "full-iso": f"/byid/{{}}/{VERSION}/x86_64/full.iso",
    "minimal-iso": f"/byid/{{}}/{VERSION}/x86_64/minimal.iso",
    "ipxe": f"/images/{{}}/ipxe?version={VERSION}&arch=x86_64",
}
"""By kind of image, with a place for the infra-env."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Boot once; return the exit status."""
    parser = argparse.ArgumentParser(prog="make boot", description=__doc__)
    parser.add_argument("image", nargs="?", choices=list(PATHS), default="full-iso")
    parser.add_argument("--ignition", type=Path, metavar="FILE", help="the config (default: a greeting)")
    options = parser.parse_args(arguments)
    try:
        config = json.loads(options.ignition.read_bytes()) if options.ignition else CONFIG
    except (OSError, ValueError) as error:
        parser.error(f"--ignition: {error}")
    try:
        if not BASE.exists():
            tell(f"making {BASE}, a small Linux of this machine's packages")
            make_base()
        boot_once(options.image, config)
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


def boot_once(image: str, config: Mapping[str, object]) -> None:
    """Serve the ISO, customize it, boot a machine from the image's URL, and show what the machine found."""
    with (
        TemporaryDirectory() as directory,
        run_service(Path(directory), [os_image(BASE, VERSION)], reached_by=HOST) as service,
    ):
        url = service.url + PATHS[image].format(service.register(VERSION, config, [ARGUMENT]))
        by_network = f"user,model=virtio,bootfile={url.replace('127.0.0.1', HOST)}"
        options = ["-boot", "n", "-nic", by_network] if image == "ipxe" else [*NETWORK, *medium("cd", url)]
        tell(f"the machine boots from {url}, with this config:", json.dumps(config), "booting …")
        report = boot(*options)
        tell("the machine found this config:", report.config.decode(), "these kernel arguments:")
        tell(report.arguments, f"and this root file system, by its SHA-256: {report.rootfs_digest or 'none'}")


def tell(*lines: str) -> None:
    """Print lines at once."""
    print(*lines, sep="\n", flush=True)  # noqa: T201 - the program's output


if __name__ == "__main__":
    sys.exit(main())
