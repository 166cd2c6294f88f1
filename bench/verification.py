"""``image-service verify`` beside ``sha256sum`` on the same file: ``python -m bench.verification``.

Each is measured in turn, pair after pair, so that other load of the machine affects all of them; the ratio
of a pair counts. The file is in the page cache.

    python -m bench.verification --directory /var/tmp --gib 1 --pairs 7
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base_images import dense_image

if TYPE_CHECKING:
    from collections.abc import Sequence

_CLI = (sys.executable, "-m", "image_service.cli")


def main() -> None:
    """Print the throughput as multiples of that of sha256sum."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="for the image (default: a temporary one)")
    parser.add_argument("--gib", type=float, default=1.0, help="the size of the image")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        calls = prepare(Path(name), int(options.gib * 1024))
        ratios: dict[str, list[float]] = {what: [] for what in calls}
        for _ in range(options.pairs):
            seconds = {what: measure(command) for what, command in calls.items()}
            for what, taken in seconds.items():
                ratios[what].append(seconds["sha256sum"] / taken)
    for what, found in ratios.items():
        print(f"{what:40}{statistics.median(found):6.2f}  ({min(found):.2f} to {max(found):.2f})")


def measure(command: Sequence[str | Path]) -> float:
    """Return the seconds that a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def prepare(directory: Path, mebibytes: int) -> dict[str, Sequence[str | Path]]:
    """Make a customized ISO, its statement and a vendor's signature; return the commands to compare."""
    base = dense_image(directory, mebibytes)
    image, config = directory / "image.iso", directory / "config.ign"
    key, public, ring = (directory / name for name in ("key.pem", "public.pem", "vendor.gpg"))
    config.write_text('{"ignition": {"version": "3.4.0"}}')
    home = directory / "gpg"
    home.mkdir(0o700)
    gpg: list[str | Path] = [
        "gpg",
        "--homedir",
        home,
        "--batch",
        "--quiet",
        "--pinentry-mode",
        "loopback",
        "--passphrase",
        "",
    ]
    signed: list[str | Path] = ["--statement", f"{image}.intoto.json", "--signing-key", key]
    commands: tuple[list[str | Path], ...] = (
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", key],
        ["openssl", "pkey", "-in", key, "-pubout", "-out", public],
        [*gpg, "--quick-gen-key", "vendor@example.com", "rsa4096", "sign", "never"],
        [*gpg, "--output", ring, "--export", "vendor@example.com"],
        [*gpg, "--detach-sign", base],
        ["gpgconf", "--homedir", home, "--kill", "all"],
        [*_CLI, "customize", base, "--ignition", config, "-o", image, *signed],
    )
    for command in commands:
        measure(command)
    verify: list[str | Path] = [*_CLI, "verify", image, "--key", public]
    vendor: list[str | Path] = ["--vendor-keyring", ring, "--vendor-signature", f"{base}.sig"]
    return {
        "sha256sum": ["sha256sum", image],
        "statement and base digest": verify,
        "and the vendor's signature": [*verify, *vendor],
    }


if __name__ == "__main__":
    main()
