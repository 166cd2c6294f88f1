"""Files of Debian packages, unpacked but not installed: a kernel package would run boot loader hooks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.acceptance.clients import missing, needs_client

_CACHE = Path(__file__).parents[2] / ".cache" / "packages"


def unpacked_package(name: str, release: str = "") -> Path:
    """Return the directory with a package's files, downloaded once per checkout.

    Args:
        name: a package, or the metapackage of a kernel.
        release: of Debian, with the package's dependencies; empty: that of this machine.
    """
    target = _CACHE / release / name
    if not target.exists():
        _fetch(name, release, target)
    return target


def _fetch(name: str, release: str, target: Path) -> None:
    """Download and unpack a package; the directory appears complete or not at all.

    Several processes of a run may do so at once: the first that is ready wins.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=_CACHE) as directory:
        if release:
            options = ("--variant=extract", f"--include={name}", "--quiet")
            _run(name, directory, "mmdebstrap", *options, release, "files")
        else:
            _run(name, directory, "apt-get", "download", _concrete(name))
            archive = next(Path(directory).glob("*.deb"))
            _run(name, directory, "dpkg", "-x", str(archive), "files")
        try:
            (Path(directory) / "files").rename(target)
        except OSError:
            if not target.exists():
                raise


def _concrete(name: str) -> str:
    """Return the kernel package of a metapackage; any other name unchanged."""
    depends = _run(name, ".", "apt-cache", "depends", name)
    kernel = re.search(r"Depends: (linux-image-\S+)", depends)
    return kernel[1] if kernel else name


def _run(package: str, directory: str, program: str, *arguments: str) -> str:
    command = [needs_client(program), *arguments]
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        missing(f"files of the Debian package {package}, which cannot be fetched: {run.stderr.strip()}")
    return run.stdout
