"""``image-toolkit customize``: an Ignition config, kernel arguments and keyfiles in a CoreOS disk."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.core.errors import InvalidArguments, KernelArgumentInvalid, KeyfileInvalid
from image_service.core.families.coreos.platforms import PLATFORM_NAME
from image_service.toolkit.commands.arguments import add_common_arguments, open_workspace
from image_service.toolkit.customization.customize import FORMATS, customize_disk, customize_in_place
from image_service.toolkit.customization.disk_customization import DiskCustomization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.disk_statement import DiskStatement
    from image_service.toolkit.commands.report import CallReport
    from image_service.toolkit.disks.opening import DiskImage


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "customize",
        help="put an Ignition config into a CoreOS disk",
        description="Put an Ignition config, kernel arguments and network keyfiles into the boot partition of"
        " a raw or qcow2 CoreOS disk that has not booted yet, as coreos-installer does, without root.",
    )
    parser.add_argument("disk", metavar="DISK", type=Path, help="a raw or qcow2 disk image")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "out", metavar="OUT", type=Path, nargs="?", help="the customized copy; replaced if it exists"
    )
    place.add_argument("--in-place", action="store_true", help="customize DISK itself")
    add_customization_arguments(parser)
    parser.add_argument(
        "--input-format",
        choices=[item.value for item in FORMATS],
        help="the format that DISK must have (default: as detected)",
    )
    parser.add_argument(
        "--no-digest", action="store_false", dest="digest", help="compute no SHA-256 of the images"
    )
    parser.add_argument("--statement", metavar="F", type=Path, help="write a signed statement of OUT")
    parser.add_argument(
        "--signing-key", metavar="F", type=Path, help="its private key in PEM: ECDSA P-256 or Ed25519"
    )
    add_common_arguments(parser)
    parser.set_defaults(run=run)


def add_customization_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `read_customization`."""
    parser.add_argument("--ignition", metavar="F", type=Path, help="the Ignition config")
    parser.add_argument(
        "--platform",
        metavar="NAME",
        type=_parse_platform,
        help="Ignition's platform, with its consoles: qemu, vmware, aws, azure, … (default: the image's)",
    )
    for option, text in (("append", "append"), ("delete", "delete")):
        parser.add_argument(
            f"--karg-{option}",
            metavar="ARG",
            action="append",
            default=[],
            help=f"{text} a kernel argument; repeatable",
        )
    parser.add_argument(
        "--karg-append-file",
        metavar="F",
        type=Path,
        help="append the kernel arguments of a file, a JSON array of strings, after those of --karg-append",
    )
    parser.add_argument(
        "--network-keyfile",
        metavar="F",
        type=Path,
        action="append",
        default=[],
        help="a NetworkManager keyfile for the first boot, NAME.nmconnection; repeatable",
    )


def read_customization(options: argparse.Namespace) -> DiskCustomization:
    """Return the customization in the arguments of `add_customization_arguments`.

    Raises:
        InvalidArguments: there is none.
        Unprocessable: the content of a file is invalid.
        OSError: a file cannot be read.
    """
    sources = {
        "--ignition": options.ignition,
        "--platform": options.platform,
        "--karg-append": options.karg_append,
        "--karg-append-file": options.karg_append_file,
        "--karg-delete": options.karg_delete,
        "--network-keyfile": options.network_keyfile,
    }
    if not any(sources.values()):
        raise InvalidArguments(f"nothing to customize: none of {', '.join(sources)} is given")
    return DiskCustomization(
        ignition=options.ignition.read_bytes() if options.ignition else None,
        platform=options.platform,
        append=(*options.karg_append, *_read_arguments(options.karg_append_file)),
        delete=tuple(options.karg_delete),
        keyfiles=_read_keyfiles(options.network_keyfile),
    )


def _parse_platform(text: str) -> str:
    if not PLATFORM_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is not the name of a platform, such as qemu or aws")
    return text


def _open_statement(options: argparse.Namespace) -> DiskStatement | None:
    """Return the statement to write; None: none is asked for.

    Raises:
        InvalidArguments: an argument that it needs is absent.
        ConfigurationError: the key does not sign here.
        OSError: the key cannot be read.
    """
    if bool(options.statement) != bool(options.signing_key):
        raise InvalidArguments("--statement requires --signing-key, and the other way round")
    if options.statement is None:
        return None
    if options.in_place or not options.digest:
        raise InvalidArguments(
            "--statement is of a copy with its SHA-256: not with --in-place or --no-digest"
        )
    if options.disk.exists() and not options.disk.is_file():
        raise InvalidArguments(
            f"--statement is of a copy of a file, and {options.disk} is not one: copy it into a file first"
        )
    # Imported here because it takes a while, and most calls write none.
    from image_service.toolkit.commands.disk_statement import DiskStatement  # noqa: PLC0415

    return DiskStatement.open(options.statement, options.signing_key)


def run(options: argparse.Namespace, report: CallReport) -> int:
    """Customize a disk."""
    customization = read_customization(options)
    statement = _open_statement(options)

    def describe_input(image: DiskImage) -> None:
        report.input = {"format": image.disk.format.value, "size": image.size}

    target = options.disk if options.in_place else options.out
    with open_workspace(options) as workspace:
        if options.in_place:
            done = customize_in_place(
                target, customization, workspace, options.input_format, on_open=describe_input
            )
        else:
            done = customize_disk(
                options.disk,
                target,
                customization,
                workspace,
                options.input_format,
                on_open=describe_input,
                digest=options.digest,
                compare=statement is not None,
            )
            report.input["sha256"] = done.input_sha256
    report.output = {
        "format": done.format.value,
        "size": target.stat().st_size,
        "sha256": done.patch.sha256() if options.in_place and options.digest else done.output_sha256,
        "changes": [[change.offset, len(change.after)] for change in done.patch.changes],
    }
    if statement is not None and done.file_patch is not None:
        config = customization.ignition or b""
        statement.write(options.disk, target, done, done.file_patch.changes, config)
    unfinished = ", as a killed call had begun" if done.was_unfinished else ""
    report.text = f"{target}: customized{unfinished}; {done.patch.size} bytes of the disk have changed"
    return 0


def _read_arguments(path: Path | None) -> list[str]:
    """Return the kernel arguments in a file; errors do not contain them, because they may be secrets."""
    if path is None:
        return []
    try:
        arguments = json.loads(path.read_bytes())
    except ValueError:
        arguments = None
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise KernelArgumentInvalid(f"{path} is not a JSON array of kernel arguments, which are strings")
    return arguments


def _read_keyfiles(paths: Sequence[Path]) -> dict[str, bytes]:
    keyfiles: dict[str, bytes] = {}
    for path in paths:
        if path.name in keyfiles:
            raise KeyfileInvalid(f"two keyfiles are called {path.name!a}")
        keyfiles[path.name] = path.read_bytes()
    return keyfiles
