"""``image-toolkit publish``: a disk image uploaded to a bucket or a registry."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.command_line.values import parse_bytes, parse_seconds
from image_service.common.objects.s3_client import MAX_EXPIRES_SECONDS, BucketLocation
from image_service.common.programs.dependencies import require
from image_service.common.registry.references import ImageReference, parse_registry_url
from image_service.core.errors import FormatError, InvalidArguments
from image_service.toolkit.commands.arguments import add_common_arguments, add_input_format, open_workspace
from image_service.toolkit.disks.digest import sha256_of
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.transfer.publish import (
    MOST_PART_BYTES,
    PART_BYTES,
    PublishOptions,
    UninspectedFile,
    publish_object,
    publish_parts,
)
from image_service.toolkit.transfer.registry import (
    ARTIFACT,
    FORMS,
    RegistryAccess,
    RegistryPublication,
    publish_artifact,
)
from image_service.toolkit.workspace.dependencies import DEPENDENCIES_OF_VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.report import CallReport
    from image_service.toolkit.transfer.publish import PublishableFile
    from image_service.toolkit.workspace.workspace import Workspace

_URL = re.compile("s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[ -~]*)?")


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "publish",
        help="upload a disk image to a bucket or a registry",
        description="Inspect a disk image, and upload it: in parts and with the manifest by which EC2's"
        " ImportVolume, or fetch, gets it; or as one object. AWS_* variables name endpoint, region and"
        " credentials. In a registry it is an artifact, or a container disk of KubeVirt.",
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="the image; only raw, VMDK and VHD can be in parts"
    )
    parser.add_argument(
        "location",
        metavar="s3://BUCKET/PREFIX|oci://HOST/REPOSITORY[:TAG]",
        type=_parse_target,
        help="where a new prefix for parts and manifest is made; with --single the object itself; or an image"
        " in a registry",
    )
    add_input_format(parser)
    add_publish_arguments(parser)
    parser.add_argument("--no-digest", action="store_false", dest="digest", help="compute no SHA-256 of FILE")
    parser.add_argument("--single", action="store_true", help="upload one object, without a manifest")
    parser.add_argument("--as-is", action="store_true", help="upload any file without inspection (--single)")
    _add_registry_arguments(parser)
    add_common_arguments(parser)
    parser.set_defaults(run=run)


def _add_registry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--form",
        choices=FORMS,
        default=ARTIFACT,
        help="in a registry: one file (default), or a container image with the disk in /disk, for KubeVirt",
    )
    parser.add_argument(
        "--architecture", default="x86_64", metavar="ARCH", help="of a container disk (default: x86_64)"
    )
    parser.add_argument("--name", metavar="NAME", help="of the file in a registry (default: that of FILE)")
    parser.add_argument(
        "--annotation",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the image in a registry; several times",
    )
    parser.add_argument(
        "--mount-from",
        default="",
        metavar="REPOSITORY",
        help="of the registry, which may have the same bytes",
    )
    parser.add_argument(
        "--authfile",
        type=Path,
        metavar="F",
        help="credentials of registries, as podman login --authfile writes them (default: REGISTRY_AUTH_FILE,"
        " and the files of podman and docker)",
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="F", help="authorities of a registry, beside those of the system"
    )
    parser.add_argument(
        "--insecure-registry",
        action="store_true",
        help="do not verify the registry's certificate, and allow plain HTTP; for trials only",
    )


def add_publish_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of uploads, for `publish_options`."""
    parser.add_argument(
        "--part-size",
        type=_parse_part_size,
        default=PART_BYTES,
        metavar="N",
        help="bytes of a part, at most 64M (default: 10M)",
    )
    parser.add_argument(
        "--expires",
        type=_parse_expires,
        default=MAX_EXPIRES_SECONDS,
        metavar="SECONDS",
        help="validity of the manifest's URLs, at most and by default 604800 (7 days)",
    )
    parser.add_argument(
        "--manifest-file",
        type=Path,
        metavar="F",
        help="write the manifest here too, readable for you alone: its URLs are credentials",
    )
    parser.add_argument(
        "--manifest-url-file",
        type=Path,
        metavar="F",
        help="write a URL here that reads the manifest, readable for you alone: it is a credential, and what"
        " EC2's ImportVolume needs",
    )
    parser.add_argument("--force", action="store_true", help="replace an object that exists (--single)")
    parser.add_argument(
        "--content-type",
        default=PublishOptions().content_type,
        metavar="TYPE",
        help="of the object (--single; default: application/octet-stream)",
    )
    parser.add_argument("--public", action="store_true", help="let everybody read the object (--single)")


def publish_options(options: argparse.Namespace) -> PublishOptions:
    """Return the values of `add_publish_arguments`."""
    return PublishOptions(
        options.part_size,
        options.expires,
        options.manifest_file,
        options.manifest_url_file,
        options.force,
        options.content_type,
        options.public,
    )


def parse_location(text: str) -> BucketLocation:
    """Return the bucket and key of ``s3://BUCKET/KEY``."""
    if not _URL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text} is not s3://BUCKET/KEY: a bucket has 3 to 63 lower-case letters, digits, dots, hyphens"
        )
    return BucketLocation.of(text)


def _parse_target(text: str) -> BucketLocation | ImageReference:
    if not text.startswith("oci://"):
        return parse_location(text)
    try:
        file = parse_registry_url(text)
    except FormatError as error:
        raise argparse.ArgumentTypeError(error.detail) from None
    if file.path:
        raise argparse.ArgumentTypeError("must have no # and path: the name of FILE is that of the file")
    return file.reference


def _parse_part_size(text: str) -> int:
    count = parse_bytes(text)
    if count > MOST_PART_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is more than 64M")
    return count


def _parse_expires(text: str) -> int:
    seconds = int(parse_seconds(text))
    if not 0 < seconds <= MAX_EXPIRES_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MAX_EXPIRES_SECONDS} seconds")
    return seconds


def run(options: argparse.Namespace, report: CallReport) -> int:
    """Publish an image."""
    require(DEPENDENCIES_OF_VERBS["publish"])
    if isinstance(options.location, ImageReference):
        return _run_registry(options, report)
    if options.as_is and (not options.single or options.input_format):
        raise InvalidArguments("--as-is needs --single, and excludes --input-format")
    with open_workspace(options) as workspace:
        if options.as_is:
            with _open_uninspected(options.file) as file:
                report.input = _describe(file, None, options, workspace)
                published = publish_object(file, options.location, publish_options(options), workspace)
        else:
            publish = publish_object if options.single else publish_parts
            with open_image(options.file, options.input_format, pace=workspace.pace) as image:
                report.input = _describe(image, image.content, options, workspace)
                published = publish(image, options.location, publish_options(options), workspace)
    report.output = {**report.input, **attrs.asdict(published)}
    report.text = f"{published.location}\n{published.url}"
    return 0


def _run_registry(options: argparse.Namespace, report: CallReport) -> int:
    """Publish an image in a registry."""
    if options.as_is and options.input_format:
        raise InvalidArguments("--as-is excludes --input-format")
    pairs = [annotation.partition("=") for annotation in options.annotation]
    if not all(name and mark for name, mark, _ in pairs):
        raise InvalidArguments("--annotation must be NAME=VALUE")
    annotations = {name: value for name, _, value in pairs}
    access = RegistryAccess(options.authfile, options.ca_file, options.insecure_registry)
    with open_workspace(options) as workspace, ExitStack() as opened:
        content = None
        if options.as_is:
            file: PublishableFile = opened.enter_context(_open_uninspected(options.file))
        else:
            image = opened.enter_context(open_image(options.file, options.input_format, pace=workspace.pace))
            file, content = image, image.content
        report.input = _describe(file, content, options, workspace)
        publication = RegistryPublication(
            options.form,
            options.name or options.file.name,
            content,
            options.architecture,
            annotations,
            options.mount_from,
        )
        published = publish_artifact(file, options.location, publication, access, workspace)
    report.output = {**report.input, **attrs.asdict(published)}
    report.text = published.location
    return 0


def _describe(
    file: PublishableFile, content: str | None, options: argparse.Namespace, workspace: Workspace
) -> dict[str, Any]:
    digest = {"sha256": sha256_of(file.descriptor, workspace.pace)} if options.digest else {}
    return {"format": content, "size": file.size, **digest}


@contextmanager
def _open_uninspected(path: Path) -> Iterator[UninspectedFile]:
    with path.open("rb") as file:
        yield UninspectedFile(file.fileno(), os.fstat(file.fileno()).st_size)
