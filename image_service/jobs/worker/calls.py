"""The calls of the toolkit for each type of job. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from image_service.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

IGNITION, KERNEL_ARGUMENTS = "ignition", "kernel-arguments"
"""Inputs of a customization, beside the disk."""
MANIFEST, MANIFEST_URL = "manifest", "manifest-url"
"""Inputs of an import."""

_FILE_NAME = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_OUTAGE_SECONDS = 120  # of an object store, which an import survives
JOB_FAILED = 10
"""The id of osbuild-composer's worker API for a job that failed for a reason of its worker."""
_BAD_ARGUMENTS, _TRANSFER_FAILED, _REFUSED, _WRONG_WORKER = 8, 11, 4, 17  # further ids
_ERROR_IDS = {2: _BAD_ARGUMENTS, 3: _WRONG_WORKER, 4: _TRANSFER_FAILED, 6: _REFUSED}


@attrs.frozen
class JobInput:
    """An input of a job.

    Args:
        name: of the input at the server.
        size: bytes; None: not known.
        sha256: of its content, in hexadecimal; None: not known.
    """

    name: str
    size: int | None
    sha256: str | None


@attrs.frozen
class ToolkitCall:
    """A call of the toolkit.

    Args:
        words: verb and arguments.
        output: the file that it makes; None: it makes none.
        region: of S3; None: as configured.
    """

    words: tuple[str, ...]
    output: Path | None = None
    region: str | None = None


@attrs.frozen
class JobFiles:
    """The paths of a job's files.

    Args:
        inputs: by name.
        directory: of the output, which has no other file.
        bundle_key: file of the RSA key that decrypts image bundles; None: there is none.
    """

    inputs: Mapping[str, Path]
    directory: Path
    bundle_key: Path | None = None

    def output(self, arguments: Mapping[str, Any]) -> Path:
        """Return the path of the file that a job makes; InvalidRequest if it has no name of a file."""
        return self.directory / _check_name(arguments["output"])


def parse_inputs(arguments: Mapping[str, Any]) -> tuple[JobInput, ...]:
    """Return the inputs of a job; InvalidRequest if one has no name of a file."""
    return tuple(
        JobInput(_check_name(name), each.get("size"), each.get("sha256"))
        for name, each in arguments.get("inputs", {}).items()
    )


def error_id(status: int) -> int:
    """Return the id of a job error for an exit status of the toolkit."""
    return _ERROR_IDS.get(status, JOB_FAILED)


def _customize(arguments: Mapping[str, Any], files: JobFiles) -> ToolkitCall:
    options = []
    if platform := arguments.get("platform"):
        options.append(f"--platform={platform}")
    for name, option in {IGNITION: "--ignition", KERNEL_ARGUMENTS: "--karg-append-file"}.items():
        if path := files.inputs.get(name):
            options.append(f"{option}={path}")
    if not options:  # a copy
        return _convert({**arguments, "format": arguments["input_format"]}, files)
    disk, output = files.inputs[arguments["input"]], files.output(arguments)
    input_format = f"--input-format={arguments['input_format']}"
    return ToolkitCall(("customize", str(disk), str(output), input_format, *options), output)


def _convert(arguments: Mapping[str, Any], files: JobFiles) -> ToolkitCall:
    disk, output = files.inputs[arguments["input"]], files.output(arguments)
    options = [f"--input-format={arguments['input_format']}", f"--format={arguments['format']}"]
    options += [f"--{name}={arguments[name]}" for name in ("size", "subformat") if arguments.get(name)]
    if arguments.get("wrap_partition"):
        options.append("--wrap-partition")
    return ToolkitCall(("convert", str(disk), str(output), *options), output)


def _import(arguments: Mapping[str, Any], files: JobFiles) -> ToolkitCall:
    output = files.output(arguments)
    options = [f"--allow-host={origin}" for origin in arguments["object_stores"]]
    options += [f"--format={arguments['format']}", f"--outage={_OUTAGE_SECONDS}"]
    if url := files.inputs.get(MANIFEST_URL):
        options.append(f"--bundle-url-file={url}")
    if files.bundle_key:
        options.append(f"--key={files.bundle_key}")
    return ToolkitCall(("run", "fetch/convert", str(files.inputs[MANIFEST]), str(output), *options), output)


def _upload(arguments: Mapping[str, Any], files: JobFiles) -> ToolkitCall:
    if "reference" in arguments:
        return _push(arguments, files)
    options = ["--single", "--as-is", "--force", f"--content-type={arguments['content_type']}"]
    if arguments.get("public"):
        options.append("--public")
    source, location = files.inputs[arguments["input"]], f"s3://{arguments['bucket']}/{arguments['key']}"
    return ToolkitCall(("publish", str(source), location, *options), region=arguments.get("region"))


def _push(arguments: Mapping[str, Any], files: JobFiles) -> ToolkitCall:
    options = [f"--{name}={arguments[name]}" for name in ("form", "architecture", "name")]
    is_disk = arguments["format"] in {"raw", "qcow2"}
    options.append(f"--input-format={arguments['format']}" if is_disk else "--as-is")
    return ToolkitCall(("publish", str(files.inputs[arguments["input"]]), arguments["reference"], *options))


def _check_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise InvalidRequest(f"{name!a} is not the name of a file: it must be {_FILE_NAME.pattern}")
    return name


_LEAST_WRITTEN_BYTES = 256 * 1024**2
"""A small compressed disk may be much larger without compression."""


@attrs.frozen
class JobKind:
    """The properties of a type of job.

    Args:
        call: makes the call of arguments and files. InvalidRequest, KeyError: the arguments are invalid.
        growth: the maximum of written bytes, as a multiple of the size of what it reads: its inputs, and
            the argument ``fetched_bytes`` of an import, which the toolkit fetches. An import writes no more
            than the argument ``volume_bytes``.
    """

    call: Callable[[Mapping[str, Any], JobFiles], ToolkitCall]
    growth: int

    def needed_bytes(self, arguments: Mapping[str, Any], inputs: tuple[JobInput, ...]) -> int | None:
        """Return the maximum scratch space of a job and its inputs; None: their sizes are not known."""
        sizes = [each.size for each in inputs if each.size is not None]
        if len(sizes) < len(inputs):
            return None
        read = sum(sizes) + int(arguments.get("fetched_bytes", 0))
        written = self.growth * read
        if self.growth:
            written = max(_LEAST_WRITTEN_BYTES, min(written, arguments.get("volume_bytes", written)))
        return read + written


_UNPACKED = 4  # the size of an uncompressed disk, as a multiple of the compressed size
KINDS = {
    "customize": JobKind(_customize, _UNPACKED),
    "convert": JobKind(_convert, _UNPACKED),
    "import": JobKind(_import, _UNPACKED),
    "upload": JobKind(_upload, 0),
}
"""By type of job."""
