"""The verdict on an image: what it is, what was added to it, and what shows that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.cli.verification.examination import compare, compare_excerpt, find_faults, take_digests
from image_service.core.errors import BaseImageError
from image_service.core.images.canvas import spliced_minimal_canvas
from image_service.core.images.compose import CONFIG_NAME, compose
from image_service.core.images.customization import Customization
from image_service.core.provenance.statement import Purpose
from image_service.core.provenance.undo import find_pristine, find_pristine_by_format
from image_service.tools.iso.description import Description, with_checked_minimal
from image_service.tools.iso.iso_file import IsoFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from image_service.cli.verification.examination import Comparable, TakenDigests, VendorSignature
    from image_service.core.base_file import BaseFile
    from image_service.core.extents import ExtentMap
    from image_service.core.formats.reading import Span
    from image_service.core.provenance.statement import Statement
    from image_service.core.provenance.undo import PristineExtent
    from image_service.tools.iso.description import DescribedArguments

_PRODUCTS = {
    "fedora-coreos-": "Fedora CoreOS ",
    "rhcos-": "RHEL CoreOS ",
    "scos-": "CentOS Stream CoreOS ",
}


@attrs.frozen
class AddedPart:
    """Bytes that were added to a base image; a config is not in `detail`, which may be shown."""

    purpose: Purpose
    length: int
    detail: str = ""


@attrs.define
class ImageVerdict:
    """The result, as it is found.

    Args:
        name: of the base image.
        proofs: why the image is what it is said to be; empty: nothing shows it.
        contradictions: of a proof that was asked for.
        notes: what was not checked.
        parts: what was added to the base image.
        faults: the bytes that belong neither to the base image nor to what was added.
    """

    name: str
    digests: TakenDigests
    published: str = ""
    proofs: list[str] = attrs.field(factory=list)
    contradictions: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    parts: tuple[AddedPart, ...] = ()
    faults: tuple[Span, ...] = ()

    @property
    def is_verified(self) -> bool:
        """True if something shows what the image is, and nothing contradicts it."""
        return bool(self.proofs) and not self.faults and not self.contradictions


@attrs.frozen(kw_only=True)
class Evidence:
    """What an image is compared with.

    Args:
        path: of the image, for messages.
        statement: whose signature was verified; None: the image is taken apart by its format.
        has_statement: there is one, verified or not.
        vendor: None: the vendor's signature is not checked.
        base: the base image; None: there is only its digest, if that is known.
        base_sha256: that the vendor publishes, lower-case hex.
    """

    path: str
    file: BaseFile
    statement: Statement | None
    has_statement: bool
    vendor: VendorSignature | None
    base: BaseFile | None
    base_sha256: str | None

    def judge(self, advance: Callable[[int], object]) -> ImageVerdict:
        """Return the verdict; reads all of the image.

        Args:
            advance: is called with the length of each block of the image.

        Raises:
            BaseImageError: without a statement, the image cannot be taken apart.
            Unavailable: gpgv is not installed.
        """
        iso, statement = self._read_iso(), self.statement
        if statement is not None:
            extents = tuple(find_pristine(statement))
        elif iso is not None and iso.base.family is None:
            extents = tuple(find_pristine_by_format(iso.base))
        else:
            raise BaseImageError(
                f"{self.path} is not an ISO of CoreOS: without a statement and --key, nothing shows where it"
                " was customized"
            )
        digests = take_digests(self.file, extents, self.vendor if extents else None, advance=advance)
        verdict = ImageVerdict(_name(iso, statement), digests)
        self._weigh_statement(verdict)
        self._weigh_vendor(verdict)
        self._weigh_digest(verdict)
        if self.base is not None:
            self._weigh_base(verdict, self.base, iso, extents)
        verdict.parts = tuple(_find_parts(iso, statement))
        return verdict

    def _read_iso(self) -> IsoFile | None:
        try:
            return IsoFile.read(self.file, self.path)
        except BaseImageError:
            if self.statement is None:
                raise
            return None

    def _weigh_statement(self, verdict: ImageVerdict) -> None:
        if self.statement is None:
            reason = "its statement counts with --key only" if self.has_statement else "there is no statement"
            verdict.notes.append(f"{reason}: the image was taken apart by its format")
            return
        verdict.faults = find_faults(self.file, self.statement, verdict.digests)
        verdict.proofs.append("its statement is signed by one of the keys")
        verdict.published = f"with the SHA-256 {self.statement.base.sha256}"
        if self.statement.excerpt and self.base is None:
            verdict.notes.append(
                "it does not contain its whole base image, and was checked against its own statement only:"
                " give --base"
            )

    def _weigh_vendor(self, verdict: ImageVerdict) -> None:
        if self.vendor is None:
            return
        if verdict.digests.base is None:
            verdict.contradictions.append(
                "the vendor's signature cannot be checked: the image does not contain its whole base image"
            )
        elif verdict.digests.vendor_fault is not None:
            verdict.contradictions.append(f"its base image: {verdict.digests.vendor_fault}")
        else:
            verdict.proofs.append("its base image has a valid OpenPGP signature of its vendor")
            verdict.published = "as published"

    def _weigh_base(
        self, verdict: ImageVerdict, base: BaseFile, iso: IsoFile | None, extents: Sequence[PristineExtent]
    ) -> None:
        name = base.path
        if self.statement is not None and not extents:
            digest = base.sha256()
            if digest != self.statement.base.sha256:
                verdict.contradictions.append(
                    f"{base.path} is not its base image: its SHA-256 is {digest}; it must be"
                    f" {self.statement.base.sha256}"
                )
                return
            unlike = tuple(compare_excerpt(self.statement, base))
        else:
            published: Comparable = base
            if self.statement is None and iso is not None and iso.base.iso.files.rootfs is None:
                published, name = _make_minimal(base), f"the minimal ISO of {base.path}"
            unlike = tuple(compare(self.file, extents, published))
        verdict.faults = _merge(verdict.faults, unlike)
        if not unlike:
            verdict.proofs.append(f"its base image is {name}, byte for byte")
            verdict.published = verdict.published or f"as in {name}"

    def _weigh_digest(self, verdict: ImageVerdict) -> None:
        if self.base_sha256 is None:
            return
        found = verdict.digests.base
        if found is None and self.statement is not None:  # an excerpt: it is the signer's word
            found = self.statement.base.sha256
        if found == self.base_sha256:
            verdict.proofs.append("its base image has the SHA-256 that was given")
            verdict.published = "as published"
        else:
            verdict.contradictions.append(
                f"the SHA-256 of its base image is {found or 'not known'}; it must be {self.base_sha256}"
            )


def _make_minimal(base: BaseFile) -> ExtentMap:
    """Return the minimal ISO that coreos-installer extracts from a full one, without a customization.

    Raises:
        BaseImageError: the full one has no recipe of it.
    """
    canvas = spliced_minimal_canvas(with_checked_minimal(IsoFile.read(base, base.path).base), rootfs_url="")
    return compose(canvas, Customization(b"", (), modified=None), "").extents


def _merge(*faults: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(sorted({span for spans in faults for span in spans}, key=lambda span: span.offset))


def _name(iso: IsoFile | None, statement: Statement | None) -> str:
    volume = iso.base.iso.volume_id if iso else ""
    for prefix, product in _PRODUCTS.items():
        if volume.startswith(prefix):
            return f"{product}{volume.removeprefix(prefix)}"
    if statement is not None:
        return f"{volume or 'the base image'} {statement.base.version}"
    return volume or "the base image"


def _find_parts(iso: IsoFile | None, statement: Statement | None) -> Iterator[AddedPart]:
    """Yield what was added, as the ISO shows it; else as it is stated."""
    shown: list[AddedPart] = []
    if iso is not None and iso.base.family is None:
        description = iso.inspect()
        if isinstance(description, Description):
            shown += _describe_ignition(description)
            if description.kernel_arguments is not None:
                shown += _describe_arguments(description.kernel_arguments)
    yield from shown
    if statement is None:
        return
    lengths: dict[Purpose, int] = {}
    for part in (*statement.overlays, *statement.tail, *statement.excerpt):
        if part.purpose is not Purpose.BASE:
            lengths[part.purpose] = lengths.get(part.purpose, 0) + part.length
    described = {Purpose.IGNITION, Purpose.KERNEL_ARGUMENTS, *(part.purpose for part in shown)}
    for purpose, length in lengths.items():
        if not shown or purpose not in described:
            yield AddedPart(purpose, length)


def _describe_ignition(description: Description) -> Iterator[AddedPart]:
    area = description.ignition_area
    if area.unreadable:
        yield AddedPart(Purpose.IGNITION, area.length, area.unreadable)
        return
    for member in area.members:
        is_config = member.name == CONFIG_NAME
        yield AddedPart(
            Purpose.IGNITION if is_config else Purpose.RAMDISK, member.size, "" if is_config else member.name
        )


def _describe_arguments(arguments: DescribedArguments) -> Iterator[AddedPart]:
    default, current = arguments.default.split(), arguments.current.split()
    words = [f"-{word}" for word in default if word not in current]
    words += [f"+{word}" for word in current if word not in default]
    if words:
        yield AddedPart(Purpose.KERNEL_ARGUMENTS, len(arguments.current), " ".join(words))
