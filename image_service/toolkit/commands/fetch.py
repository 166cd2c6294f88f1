"""``image-toolkit fetch``: a disk image in parts, or a bundle, by its manifest."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from image_service.common.command_line.values import parse_bytes, parse_seconds
from image_service.common.http.origins import UrlOrigin, origin_of_url, parse_origin
from image_service.common.programs.dependencies import require
from image_service.common.transfer.bundle_manifest import is_bundle
from image_service.common.transfer.client import TransferTimes
from image_service.common.transfer.manifest import parse_import_manifest
from image_service.common.transfer.uploaded_parts import delete_parts
from image_service.core.errors import FormatError, Unprocessable
from image_service.core.formats.hosts import ascii_host
from image_service.toolkit.commands.arguments import add_common_arguments, open_workspace
from image_service.toolkit.transfer.fetch import FetchOptions, fetch_parts, is_url, read_manifest
from image_service.toolkit.workspace.dependencies import CRYPTOGRAPHY, DEPENDENCIES_OF_VERBS

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.report import CallReport
    from image_service.toolkit.transfer.fetch import FetchedImage, ManifestSource
    from image_service.toolkit.workspace.workspace import Workspace


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "fetch",
        help="fetch a disk image in parts, or a bundle",
        description="Fetch the disk image that a manifest describes: EC2's import manifest, whose parts are"
        " at URLs, or an image bundle, whose encrypted parts are beside the manifest. The image is inspected"
        " before it gets its name.",
    )
    parser.add_argument(
        "manifest", metavar="MANIFEST", type=_parse_manifest, help="a file, or an http or https URL"
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="the image; replaced if it exists")
    add_fetch_arguments(parser)
    add_key_arguments(parser)
    parser.add_argument(
        "--delete",
        action="store_true",
        help="afterwards delete the parts and the manifest at their URLs; what cannot be deleted is noted",
    )
    parser.add_argument(
        "--no-digest", action="store_false", dest="digest", help="compute no SHA-256 of the image"
    )
    add_common_arguments(parser)
    parser.set_defaults(run=run)


def add_key_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the keys of image bundles, for `fetch_options`."""
    parser.add_argument("--key", type=Path, metavar="F", help="RSA key, in PEM, that decrypts a bundle")
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="F",
        help="that of the user who signed a bundle, in PEM (default: those in the file of the key, or the key"
        " is the user's)",
    )
    parser.add_argument(
        "--bundle-url-file",
        type=Path,
        metavar="F",
        help="file with the URL of a bundle's manifest, if MANIFEST is a file, but its parts are beside that"
        " URL",
    )


def add_fetch_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of downloads, for `fetch_options`."""
    parser.add_argument(
        "--allow-host",
        type=_parse_origin,
        action="append",
        default=[],
        metavar="SCHEME://HOST[:PORT]",
        help="a server that URLs may name, the manifest's own too; repeatable (default: the server of the"
        " manifest's URL, if its address is public)",
    )
    parser.add_argument("--max-bytes", type=parse_bytes, metavar="N", help="limit of the image's bytes")
    parser.add_argument("--ca-file", type=Path, metavar="F", help="authorities to trust for HTTPS, in PEM")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="keep verified parts of an interrupted call here, and continue with them",
    )
    parser.add_argument(
        "--wait",
        type=parse_seconds,
        default=0,
        metavar="SECONDS",
        help="wait for a manifest and parts that are not there yet",
    )
    parser.add_argument(
        "--outage",
        type=parse_seconds,
        default=0,
        metavar="SECONDS",
        help="continue after an outage of a server of this length (default: five attempts, about 7 s)",
    )


def fetch_options(options: argparse.Namespace) -> FetchOptions:
    """Return the values of `add_fetch_arguments`, and of `add_key_arguments` if declared."""
    return FetchOptions(
        allowed=tuple(options.allow_host),
        max_bytes=options.max_bytes,
        ca_file=options.ca_file,
        resume=options.resume,
        wait_seconds=options.wait,
        digest=options.digest,
        key=getattr(options, "key", None),
        certificate=getattr(options, "certificate", None),
        bundle_url=_read_bundle_url(getattr(options, "bundle_url_file", None)),
        times=TransferTimes(outage_seconds=options.outage),
    )


def _read_bundle_url(path: Path | None) -> str | None:
    if path is None:
        return None
    url = path.read_text(encoding="ascii", errors="replace").strip()
    origin_of_url(url, f"the URL in {path.name}")
    return url


def _parse_manifest(text: str) -> str:
    try:
        if is_url(text) and (host := urlsplit(text).hostname):
            ascii_host(host)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None
    return text


def _parse_origin(text: str) -> UrlOrigin:
    try:
        return parse_origin(text)
    except FormatError as error:
        raise argparse.ArgumentTypeError(error.detail) from None


def run(options: argparse.Namespace, report: CallReport) -> int:
    """Fetch an image."""
    require(DEPENDENCIES_OF_VERBS["fetch"])
    wanted = fetch_options(options)
    with open_workspace(options) as workspace:
        source = read_manifest(options.manifest, wanted, workspace)
        report.input = source.describe()
        notes: list[str] = []
        if is_bundle(source.text):
            fetched = _fetch_bundle(source, options, wanted, workspace)
        else:
            manifest = parse_import_manifest(source.text)
            fetched = fetch_parts(manifest, source, options.out, wanted, workspace)
            if options.delete:
                notes = delete_parts(manifest, source.client)
    report.output = fetched.describe()
    report.fields["notes"] = notes
    report.text = "\n".join([f"{options.out}: {fetched.format}, {fetched.size} bytes", *notes])
    return 0


def _fetch_bundle(
    source: ManifestSource, options: argparse.Namespace, wanted: FetchOptions, workspace: Workspace
) -> FetchedImage:
    if options.delete or options.resume:
        raise Unprocessable("--delete and --resume are for import manifests, not for image bundles")
    require((CRYPTOGRAPHY,))
    # Imported here because cryptography is an extra.
    from image_service.toolkit.transfer.bundle import fetch_bundle  # noqa: PLC0415 - same

    return fetch_bundle(source, options.out, wanted, workspace)
