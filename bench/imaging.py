"""The imaging toolkit beside the programs that a user would take instead, each by its command.

All write in the same directory; the files of both end with fsync. `coreos-installer install` has no row: it
writes whole images to block devices, while the toolkit changes some blocks of a file.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bench.base_images import dense_image
from bench.pairs import Way, compare, run
from bench.ports import free_port
from bench.servers import program, start
from image_service.toolkit.conversion.qemu_img import qemu_options
from image_service.toolkit.conversion.target import find_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.stage import Stage
    from bench.study import Figure

_MIB = 1 << 20
_PIECE = 16 * _MIB  # of data, after which come holes
_CONFIG = '{"ignition": {"version": "3.4.0"}}'
_TOOLKIT = "image-toolkit"
_COMMAND = (sys.executable, "-m", "image_service.toolkit")


def study_conversion(
    stage: Stage, *, source_format: str, target_format: str, mebibytes: int, digests: bool = False
) -> Iterator[Figure]:
    """Convert a disk, a quarter of which is data, beside qemu-img with the same settings.

    Args:
        stage: of the run.
        source_format: of the disk: raw or qcow2.
        target_format: of the result.
        mebibytes: of the disk.
        digests: the toolkit computes the SHA-256 of both files, and so does sha256sum after qemu-img.
    """
    qemu_img = program("qemu-img")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as name:
        directory = Path(name)
        source, out = directory / "source", directory / f"out.{target_format}"
        raw = source if source_format == "raw" else directory / "raw"
        _write_disk(raw, mebibytes * _MIB)
        if raw != source:
            run(qemu_img, "convert", "-f", "raw", "-O", source_format, raw, source)
            raw.unlink()
        convert = (*_COMMAND, "convert", source, out, "--format", target_format, "--scratch", directory)
        options = (*qemu_options(find_target(target_format)), "-p")

        def convert_by_qemu_img() -> None:
            run(qemu_img, "convert", "-f", source_format, *options, source, out)
            _sync(out)
            if digests:
                run("sha256sum", source, out)

        remove = partial(out.unlink, missing_ok=True)
        own = Way(_TOOLKIT, partial(run, *convert, *(() if digests else ("--no-digest",))), remove)
        peer = Way("qemu-img and sha256sum" if digests else "qemu-img", convert_by_qemu_img, remove)
        yield from _compare_times(stage.effort.rounds, own, peer)


def study_iso_customization(stage: Stage) -> Iterator[Figure]:
    """Put an Ignition config into a copy of the base image, beside coreos-installer."""
    coreos_installer = program("coreos-installer")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as name:
        config, out = Path(name, "config.ign"), Path(name, "out.iso")
        config.write_text(_CONFIG)
        remove = partial(out.unlink, missing_ok=True)

        def customize_by_coreos_installer() -> None:
            run(coreos_installer, "iso", "ignition", "embed", "-i", config, "-o", out, stage.image)
            _sync(out)

        customize = (sys.executable, "-m", "image_service.cli", "customize", stage.image)
        own = Way("image-service", partial(run, *customize, "--ignition", config, "-o", out), remove)
        peer = Way("coreos-installer", customize_by_coreos_installer, remove)
        yield from compare(stage.effort.rounds, own, peer)


def study_disk_customization(stage: Stage) -> Iterator[Figure]:
    """Put an Ignition config into a raw CoreOS disk of 10 GiB in place, beside guestfish."""
    guestfish = program("guestfish")
    with _coreos_disk(stage) as source:
        directory = source.parent
        disk, config = directory / "customized", directory / "config.ign"
        config.write_text(_CONFIG)

        def copy() -> None:
            run("cp", "--sparse=always", source, disk)
            _sync(disk)

        customize = (*_COMMAND, "customize", disk, "--in-place", "--ignition", config, "--no-digest")
        own = Way(_TOOLKIT, partial(run, *customize, "--scratch", directory), copy)
        upload = ("mkdir-p", "/ignition", ":", "upload", config, "/ignition/config.ign")
        by_guestfish = (guestfish, "--format=raw", "-a", disk, "-m", "/dev/sda3", *upload)
        peer = Way("guestfish", partial(run, *by_guestfish), copy)
        yield from _compare_times(stage.effort.rounds, own, peer)


def study_disk_inspection(stage: Stage) -> Iterator[Figure]:
    """Describe a raw CoreOS disk of 10 GiB, without a digest, beside virt-inspector."""
    inspector = program("virt-inspector")
    with _coreos_disk(stage) as disk:
        inspect = (*_COMMAND, "inspect", disk, "--no-digest", "--json", "--scratch", disk.parent)
        own = Way(_TOOLKIT, partial(run, *inspect))
        peer = Way("virt-inspector", partial(run, inspector, "--format=raw", "-a", disk))
        yield from _compare_times(stage.effort.rounds, own, peer)


@contextmanager
def _coreos_disk(stage: Stage) -> Iterator[Path]:
    """Make a raw CoreOS disk of 10 GiB in a directory of its own, which is removed."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as name:
        run(sys.executable, "-m", "tests.toolkit.coreos_disk", name)
        (disk,) = Path(name).glob("*.raw")
        yield disk


def study_transfers(stage: Stage, *, mebibytes: int) -> Iterator[Figure]:
    """Publish and fetch an image beside the AWS command line, with an S3 server on loopback."""
    aws = program("aws")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as name,
        _s3_server(name) as variables,
    ):
        run_with = partial(run, environment=variables)
        source, out, manifest = (
            dense_image(stage.directory, mebibytes),
            Path(name, "out"),
            Path(name, "manifest"),
        )
        publish = (*_COMMAND, "publish", source, "--no-digest", "--scratch", name)
        own = Way(_TOOLKIT, partial(run_with, *publish, "s3://images/own", "--single", "--force"))
        peer = Way("aws s3 cp", partial(run_with, aws, "s3", "cp", "--quiet", source, "s3://images/peer"))
        for figure in compare(stage.effort.rounds, own, peer):
            yield attrs.evolve(figure, what=f"publish: {figure.what}")

        def fetch_by_aws() -> None:
            run_with(aws, "s3", "cp", "--quiet", "s3://images/peer", out)
            _sync(out)

        run_with(*publish, "s3://images/parts", "--manifest-file", manifest)
        fetch = (
            *_COMMAND,
            "fetch",
            manifest,
            out,
            "--allow-host",
            variables["AWS_ENDPOINT_URL"],
            "--no-digest",
        )
        remove = partial(out.unlink, missing_ok=True)
        own = Way(_TOOLKIT, partial(run_with, *fetch, "--scratch", name), remove)
        for figure in compare(stage.effort.rounds, own, Way("aws s3 cp", fetch_by_aws, remove)):
            yield attrs.evolve(figure, what=f"fetch: {figure.what}")


def _compare_times(rounds: int, own: Way, peer: Way) -> Iterator[Figure]:
    """Compare without CPU time: this process does not get that of the toolkit's programs in their sandbox."""
    return (figure for figure in compare(rounds, own, peer) if "CPU" not in figure.what)


@contextmanager
def _s3_server(directory: str) -> Iterator[Mapping[str, str]]:
    """Run an S3 server with a bucket; yield the variables with which clients find it."""
    (Path(directory, "objects") / "images").mkdir(parents=True)
    port, key, secret = free_port(), "AKIAOFTHEBENCHMARK", "secret-key-of-the-benchmark"

    def probe() -> None:
        with socket.create_connection(("127.0.0.1", port)):
            pass

    command = (program("versitygw"), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet")
    keys = {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
    with ExitStack() as stack:
        objects, log = str(Path(directory, "objects")), Path(directory, "s3.log")
        start(stack, (*command, "posix", objects), log, probe, environment=keys)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def _write_disk(path: Path, size: int) -> None:
    """Write a sparse disk, half of whose data is random."""
    chance = random.Random(0)  # noqa: S311 - equal disks in each run
    with path.open("wb") as file:
        file.truncate(size)
        for offset in range(0, size, 4 * _PIECE):
            file.seek(offset)
            file.write(chance.randbytes(_PIECE // 2) + b"a compressible text of 32 bytes." * (_PIECE // 64))
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
