"""``image-service verify`` beside ``sha256sum`` on the same file, which is in the page cache."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bench.pairs import Way, compare, run
from bench.results import Target
from bench.servers import program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stage import Stage
    from bench.study import Figure

_CLI = (sys.executable, "-m", "image_service.cli")


def study_verification(stage: Stage) -> Iterator[Figure]:
    """Verify a customized image by its statement, first alone, then also by its vendor's signature."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as directory:
        image, by_statement, by_vendor = _prepare(Path(directory), stage.image)
        peer = Way("sha256sum", partial(run, "sha256sum", image))
        for what, options, least in (
            ("statement and base digest", by_statement, 0.8),
            ("and the vendor's signature", by_vendor, 0.4),
        ):
            own = Way("image-service verify", partial(run, *_CLI, "verify", image, *options))
            # A digest of the base image comes on top of that of the image, in a thread of its own.
            for figure in compare(stage.effort.rounds, own, peer, Target(at_least=least), Target()):
                yield attrs.evolve(figure, what=f"{what}: {figure.what}")


def _prepare(directory: Path, base: Path) -> tuple[Path, list[str | Path], list[str | Path]]:
    """Make a customized ISO, its statement and a vendor's signature of its base image.

    Returns:
        the ISO; the options that verify it by its statement; those that also verify the vendor's signature.
    """
    image, config, signature = (directory / name for name in ("image.iso", "config.ign", "base.sig"))
    key, public, ring = (directory / name for name in ("key.pem", "public.pem", "vendor.gpg"))
    config.write_text('{"ignition": {"version": "3.4.0"}}')
    home = directory / "gpg"
    home.mkdir(0o700)
    options = ("--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "")
    gpg = (program("gpg"), "--homedir", home, *options)
    statement = ("--statement", f"{image}.intoto.json", "--signing-key", key)
    run("openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
    run("openssl", "pkey", "-in", key, "-pubout", "-out", public)
    run(*gpg, "--quick-gen-key", "vendor@example.com", "rsa4096", "sign", "never")
    run(*gpg, "--output", ring, "--export", "vendor@example.com")
    run(*gpg, "--output", signature, "--detach-sign", base)
    run("gpgconf", "--homedir", home, "--kill", "all")
    run(*_CLI, "customize", base, "--ignition", config, "-o", image, *statement)
    by_statement: list[str | Path] = ["--key", public]
    vendor: list[str | Path] = ["--vendor-keyring", ring, "--vendor-signature", signature]
    return image, by_statement, [*by_statement, *vendor]
