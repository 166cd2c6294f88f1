"""``image-service verify``: takes an image apart into what its vendor published, and the rest."""

from __future__ import annotations

import argparse
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.cli.shared.input import parse_input_name
from image_service.cli.verification.examination import VendorSignature
from image_service.cli.verification.inputs import Inputs, find_statement
from image_service.cli.verification.verdict import Evidence
from image_service.common.command_line.parser import EXIT_FAILURE, exit_on_signals, printable
from image_service.common.command_line.progress_bar import ProgressBar
from image_service.core.errors import ConfigurationError, FormatError
from image_service.core.formats.openpgp import read_key_ring
from image_service.core.provenance.dsse import load_verifying_keys, open_bundle, read_unverified
from image_service.core.provenance.statement import Purpose
from image_service.core.provenance.statement_json import parse_statement
from image_service.server.catalog.lifecycle.signature import KeyRing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.cli.verification.verdict import AddedPart, ImageVerdict
    from image_service.common.command_line.parser import AddParser
    from image_service.core.provenance.statement import Statement

_EXAMPLES = """\
examples:
  image-service verify full.iso --key keys.pem
  image-service verify https://images.example.com/s/CODE.iso --key keys.pem --vendor-keyring fedora.gpg
  image-service verify customized.iso --base fedora-coreos-44.iso
"""
_NAMES = {
    Purpose.IGNITION: "Ignition",
    Purpose.KERNEL_ARGUMENTS: "kernel arguments",
    Purpose.RAMDISK: "ramdisk",
    Purpose.BOOT_RECORDS: "boot records",
    Purpose.DERIVED: "files made from the base",
}


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "verify",
        help="verify that an image is its vendor's, plus a customization",
        description="Verify that an image is what its vendor published plus a customization, and show what"
        " that is, or where a byte belongs to neither. It needs no service. Without a signed statement and"
        " --key, an ISO of CoreOS is taken apart by its format. The status is 0 if the statement, the base"
        " image, its digest or the vendor's signature proves what the image is, and nothing contradicts it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "image", type=parse_input_name, metavar="FILE|URL", help="the image; - is standard input"
    )
    parser.add_argument(
        "--statement",
        metavar="FILE|URL",
        help="its signed statement; by default FILE.intoto.json, or where image-service has that of a URL",
    )
    parser.add_argument(
        "--no-statement", action="store_true", help="look for no statement; take the ISO apart by its format"
    )
    parser.add_argument(
        "--key", metavar="FILE", type=Path, help="PEM file of the public keys that may have signed it"
    )
    parser.add_argument(
        "--vendor-keyring",
        metavar="FILE",
        type=Path,
        help="OpenPGP public keys of the vendor, one of which must have signed the base image",
    )
    parser.add_argument(
        "--vendor-signature",
        metavar="FILE|URL",
        help="the vendor's detached signature of the base image; by default that in the statement, or that"
        " with .sig behind the name of --base",
    )
    parser.add_argument("--base", metavar="FILE|URL", help="the base image, to compare each byte with")
    parser.add_argument(
        "--base-sha256", metavar="HEX", type=_parse_sha256, help="the digest that the vendor publishes"
    )
    parser.add_argument(
        "--ca-file", metavar="FILE", type=Path, help="PEM file of certificate authorities to trust too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, refuse=parser.error)


def _parse_sha256(text: str) -> str:
    if not re.fullmatch("[0-9A-Fa-f]{64}", text):
        raise argparse.ArgumentTypeError("must be 64 hexadecimal digits")
    return text.lower()


def run(options: argparse.Namespace) -> int:
    """Verify an image, and print the result."""
    exit_on_signals()
    if options.no_statement and options.statement:
        options.refuse("--statement and --no-statement: one at a time")
    if options.vendor_signature and not options.vendor_keyring:
        options.refuse("--vendor-signature needs --vendor-keyring")
    inputs = Inputs(options.ca_file)
    stated = _read_statement(options, inputs)
    vendor = _read_vendor_signature(options, inputs, stated)
    with ExitStack() as opened:
        file = opened.enter_context(inputs.open(options.image))
        base = opened.enter_context(inputs.open(options.base)) if options.base else None
        evidence = Evidence(
            path=file.path,
            file=file,
            statement=stated if options.key else None,  # else nobody vouches for it
            has_statement=stated is not None,
            vendor=vendor,
            base=base,
            base_sha256=options.base_sha256,
        )
        with ProgressBar(file.size) as progress:
            verdict = evidence.judge(progress.advance)
        text = _render_json(verdict, file.size) if options.json else "\n".join(_lines(verdict, file.path))
    print(text)  # noqa: T201
    return 0 if verdict.is_verified else EXIT_FAILURE


def _read_statement(options: argparse.Namespace, inputs: Inputs) -> Statement | None:
    """Return the statement of an image, which one of the keys has signed if any is given."""
    name = options.statement or (None if options.no_statement else find_statement(options.image))
    content = None if name is None else inputs.read_statement(name, is_optional=not options.statement)
    if content is None:
        return None
    if options.key is None:
        return parse_statement(read_unverified(content))
    return parse_statement(open_bundle(content, load_verifying_keys(options.key.read_bytes())))


def _read_vendor_signature(
    options: argparse.Namespace, inputs: Inputs, statement: Statement | None
) -> VendorSignature | None:
    if options.vendor_keyring is None:
        return None
    try:
        keys = KeyRing(read_key_ring(options.vendor_keyring.read_bytes()))
    except FormatError as error:
        raise FormatError(f"{options.vendor_keyring}: {error.detail}") from None
    if options.vendor_signature:
        return VendorSignature(keys, inputs.read(options.vendor_signature))
    if statement is not None and statement.base.signature is not None:
        return VendorSignature(keys, statement.base.signature)
    if options.base:
        return VendorSignature(keys, inputs.read(f"{options.base}.sig"))
    raise ConfigurationError("there is no signature of the vendor in a statement; give --vendor-signature")


def _lines(verdict: ImageVerdict, image: str) -> Iterator[str]:
    if verdict.is_verified:
        parts = ", ".join(map(_describe, verdict.parts)) or "nothing"
        yield printable(f"{verdict.name} {verdict.published}, plus: {parts}")
    else:
        yield printable(f"{image} is not verified")
        if verdict.parts:
            yield printable(f"found in it: {', '.join(map(_describe, verdict.parts))}")
    for fault in verdict.faults:
        yield printable(
            f"{fault.length} bytes at offset {fault.offset} ({fault.path}) are neither the base image's nor"
            " the customization's"
        )
    for text in verdict.contradictions:
        yield printable(text)
    for text in verdict.proofs if verdict.is_verified else ():
        yield printable(f"proof: {text}")
    if not (verdict.proofs or verdict.faults or verdict.contradictions):
        base = verdict.digests.base
        yield (
            f"nothing shows that its base image, with the SHA-256 {base}, is its vendor's: give --key,"
            " --base, --base-sha256 or --vendor-keyring"
        )
    for text in verdict.notes:
        yield printable(f"note: {text}")


def _describe(part: AddedPart) -> str:
    name = _NAMES[part.purpose]
    if part.purpose is Purpose.KERNEL_ARGUMENTS and part.detail:
        return f"{name} ({part.detail})"
    return f"{name} ({f'{part.detail}, ' if part.detail else ''}{part.length:,} bytes)"


def _render_json(verdict: ImageVerdict, size: int) -> str:
    return json.dumps(
        {
            "verified": verdict.is_verified,
            "base": verdict.name,
            "base_sha256": verdict.digests.base,
            "sha256": verdict.digests.image,
            "size": size,
            "added": [
                {"purpose": part.purpose.value, "length": part.length, "detail": part.detail}
                for part in verdict.parts
            ],
            "faults": [
                {"offset": fault.offset, "length": fault.length, "where": fault.path}
                for fault in verdict.faults
            ],
            "proofs": verdict.proofs,
            "contradictions": verdict.contradictions,
            "notes": verdict.notes,
        },
        indent=2,
    )
