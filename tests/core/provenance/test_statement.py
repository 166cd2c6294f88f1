"""Statements of composed images, and images that are taken apart by them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError, Unprocessable
from image_service.core.extents import ExtentMap, FileExtent, Literal, Overlay, Zeros, apply_overlays
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.reading import Span
from image_service.core.images.base_image import BaseImage
from image_service.core.images.base_layout import read_base_layout
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.core.images.live import compose_live
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import BootArtifact
from image_service.core.provenance.statement import (
    EXCERPT_BYTES,
    MAX_BENEATH,
    Purpose,
    StatedBase,
    StatedPart,
    Statement,
    state_image,
)
from image_service.core.provenance.statement_json import PREDICATE, parse_statement, render_statement
from image_service.core.provenance.undo import Undone, undo
from tests.core.families.live.test_families import BOOT, make
from tests.core.formats.filesystems.iso_builder import IGNITION_LENGTH, build_live_iso
from tests.core.images.building import CONFIG, base_file, base_image, bytes_of

if TYPE_CHECKING:
    from image_service.core.extents import Extent
    from image_service.core.images.boot_image import BootImage

ISO = build_live_iso()
BLOCK = 64 << 10
BLOCKS = tuple(sha256(ISO[at : at + BLOCK]).hexdigest() for at in range(0, len(ISO), BLOCK))
BASE = StatedBase(
    sha256(ISO).hexdigest(), len(ISO), "9.6", "x86_64", "https://mirror.example/live.iso", BLOCK, BLOCKS
)
TIME = datetime(2026, 3, 4, 5, 6, 7, 999, tzinfo=UTC)
ARGUMENTS = (KernelArgument(Operation.APPEND, "ip=dhcp"),)
LONG = (KernelArgument(Operation.APPEND, "a" * 1200),)
FilePiece = tuple[int, int]
RAMDISK = b"\x1f\x8b ramdisk"
CONFIGS = {
    "small": CONFIG,
    "large": random.Random(5).randbytes(IGNITION_LENGTH + 1),  # noqa: S311 - it does not compress
}


def state(image: BootImage, base: BaseImage, config: bytes = CONFIG, stated: StatedBase = BASE) -> Statement:
    digest = sha256(bytes_of(image)).hexdigest()
    return state_image(image, base, stated, digest=digest, config=config, time=TIME, layout=3)


@cache
def stated(config: str, arguments: tuple[KernelArgument, ...]) -> tuple[bytes, Statement]:
    """Return an image and its statement."""
    with base_image(ISO) as base:
        customization = Customization(CONFIGS[config], arguments, TIME, RAMDISK)
        image = compose(full_canvas(base), customization, "x.iso")
        return bytes_of(image), state(image, base, CONFIGS[config])


VARIANTS = st.builds(stated, st.sampled_from(sorted(CONFIGS)), st.sampled_from([(), ARGUMENTS, LONG]))


def take_apart(content: bytes, statement: Statement) -> Undone:
    return undo(lambda offset, length: content[offset : offset + length], len(content), statement)


def pristine(content: bytes, undone: Undone) -> bytes:
    return b"".join(
        content[each.offset : each.offset + each.length]
        if isinstance(each, Span)
        else each.data
        if isinstance(each, Literal)
        else bytes(each.length)
        for each in undone.extents
    )


@given(VARIANTS)
def test_an_image_without_its_overlays_is_the_base(variant: tuple[bytes, Statement]) -> None:
    content, statement = variant
    undone = take_apart(content, statement)
    assert undone.faults == ()
    assert pristine(content, undone) == ISO


@given(VARIANTS, st.booleans(), st.data())
def test_a_flipped_bit_is_found_and_located(
    variant: tuple[bytes, Statement],
    has_blocks: bool,  # noqa: FBT001 - drawn
    data: st.DataObject,
) -> None:
    content, statement = variant
    if not has_blocks:
        statement = attrs.evolve(statement, base=attrs.evolve(BASE, block_length=None, blocks=()))
    parts: list[StatedPart] = [*statement.overlays, *statement.tail]
    part = data.draw(st.sampled_from([None, *parts]))  # most bytes are the base's: the others get their share
    bounds = (0, len(content) - 1) if part is None else (part.offset, part.offset + part.length - 1)
    at = data.draw(st.integers(*bounds))
    changed = bytearray(content)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    (fault,) = take_apart(bytes(changed), statement).faults
    assert fault.offset <= at < fault.offset + fault.length
    own = next((each for each in parts if each.offset <= at < each.offset + each.length), None)
    if own is not None:
        assert fault == Span(own.purpose.value, own.offset, own.length)
    else:
        assert fault.path == "base image"
        assert fault.length <= (BLOCK if has_blocks else len(ISO))


@given(VARIANTS, st.integers(1, 1 << 19))
def test_a_cut_or_grown_image_is_found(variant: tuple[bytes, Statement], count: int) -> None:
    content, statement = variant
    size = len(content) - min(count, len(content))
    assert take_apart(content[:size], statement).faults == (Span("absent", size, len(content) - size),)
    grown = take_apart(content + bytes(count), statement).faults
    assert grown == (Span("behind the end", len(content), count),)


@given(VARIANTS)
def test_a_statement_survives_its_json(variant: tuple[bytes, Statement]) -> None:
    rendered = render_statement(variant[1])
    assert parse_statement(rendered) == variant[1]
    assert render_statement(parse_statement(rendered)) == rendered


def test_purposes_in_place() -> None:
    _, statement = stated("small", ARGUMENTS)
    with base_image(ISO) as base:
        kargs = base.coreos.kernel_arguments
        assert kargs is not None
        area = base.coreos.ignition
        inside = [each for each in statement.overlays if each.purpose is Purpose.IGNITION]
        assert sum(each.length for each in inside) == area.length
        assert {each.beneath for each in inside} == {Zeros(each.length) for each in inside}
        others = [each.offset for each in statement.overlays if each.purpose is Purpose.KERNEL_ARGUMENTS]
        assert others == [each.offset for each in kargs.areas]
    assert statement.tail == ()
    assert len(statement.overlays) == len(inside) + len(others)


def test_purposes_behind_the_end() -> None:
    _, statement = stated("large", LONG)
    assert {each.purpose for each in statement.overlays} == {Purpose.BOOT_RECORDS}
    purposes = [each.purpose for each in statement.tail]
    assert {Purpose.IGNITION, Purpose.KERNEL_ARGUMENTS, Purpose.BOOT_RECORDS} == set(purposes)
    config = next(each for each in statement.tail if each.purpose is Purpose.IGNITION)
    assert config.length > len(CONFIGS["large"])


def test_an_iso_of_another_family_is_stated_and_taken_apart() -> None:
    files = {**BOOT, ".disk/info": b"Ubuntu-Server 24.04 LTS", "casper/vmlinuz": b"k", "casper/initrd": b"i"}
    iso = make("LABEL", files)
    config = b"#cloud-config\nautoinstall:\n  version: 1\n"
    with base_file(iso) as file:
        family, layout = read_base_layout(file)
        base = BaseImage(file, layout, sha256(iso).hexdigest(), "1", "x86_64", family=family)
        image = compose_live(base, Customization(config, (), None), "x.iso")
        statement = state(image, base, config, StatedBase(base.sha256, len(iso), "1", "x86_64"))
        content = bytes_of(image)
    undone = take_apart(content, statement)
    assert (pristine(content, undone), undone.faults) == (iso, ())
    configs = [each for each in statement.tail if each.purpose is Purpose.IGNITION]
    assert any(config in content[each.offset : each.offset + each.length] for each in configs)


def test_bytes_of_another_file_are_stated_as_derived() -> None:
    with base_image(ISO) as base, base_file(ISO + b"more") as other:
        image = compose(full_canvas(base), Customization(CONFIG, (), TIME), "x.iso")
        extents = (*image.extents.extents, FileExtent(other, 0, 2048))
        derived = attrs.evolve(image, extents=ExtentMap(extents))
        content, statement = bytes_of(derived), state(derived, base)
    assert (statement.overlays, statement.tail) == ((), ())
    assert statement.excerpt[-1].purpose is Purpose.DERIVED
    assert [each.source is not None for each in statement.excerpt] == [
        each.purpose is Purpose.BASE for each in statement.excerpt
    ]
    assert take_apart(content, statement) == Undone((), ())


def test_members_are_those_of_in_toto() -> None:
    content, statement = stated("small", ARGUMENTS)
    rendered = render_statement(statement)
    members = json.loads(rendered)
    predicate = members["predicate"]
    assert members["_type"] == "https://in-toto.io/Statement/v1"
    assert members["subject"] == [{"name": "x.iso", "digest": {"sha256": sha256(content).hexdigest()}}]
    assert members["predicateType"] == PREDICATE
    assert predicate["time"] == "2026-03-04T05:06:07Z"
    assert predicate["layout"] == 3
    assert predicate["ignition"] == {"digest": {"sha256": sha256(CONFIG).hexdigest()}}
    assert predicate["base"]["digest"] == {"sha256": sha256(ISO).hexdigest()}
    assert CONFIG not in rendered
    assert b"passwd" not in rendered


@pytest.mark.parametrize(
    "origin",
    [
        "https://user:secret@mirror.example:8443/live.iso?token=secret#secret",
        "https://secret@mirror.example:8443/live.iso",
    ],
)
def test_an_origin_has_no_secret(origin: str) -> None:
    assert attrs.evolve(BASE, origin=origin).origin == "https://mirror.example:8443/live.iso"


PIECES: list[FilePiece] = [
    (2048, len(ISO) - 2048),
    (0, 2048),
    (0, len(ISO)),
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3), st.data())
def test_parts_of_a_base_are_stated_as_an_excerpt(pieces: list[FilePiece], data: st.DataObject) -> None:
    """A minimal ISO is made of parts."""
    with base_image(ISO) as base:
        image = compose(full_canvas(base), Customization(CONFIG, (), TIME), "x.iso")
        extents: list[Extent] = [Literal(b"own"), *(FileExtent(base.file, *piece) for piece in pieces)]
        excerpt = attrs.evolve(image, extents=ExtentMap(tuple(extents)), areas=())
        content, statement = bytes_of(excerpt), state(excerpt, base)
    assert parse_statement(render_statement(statement)) == statement
    assert (
        b"".join(
            content[each.offset : each.offset + each.length]
            if each.source is None
            else ISO[each.source : each.source + each.length]
            for each in statement.excerpt
        )
        == content
    )
    assert statement.excerpt[0].purpose is Purpose.BOOT_RECORDS
    assert take_apart(content, statement) == Undone((), ())
    at = data.draw(st.integers(0, len(content) - 1))
    changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    (fault,) = take_apart(changed, statement).faults
    assert fault.offset <= at < fault.offset + fault.length <= fault.offset + EXCERPT_BYTES


def test_an_excerpt_with_a_gap_is_refused() -> None:
    with base_image(ISO) as base:
        statement = state(compose_artifact(base, BootArtifact.ROOTFS), base, b"")
    members = json.loads(render_statement(statement))
    assert members["predicate"]["excerpt"][0]["source"]
    members["predicate"]["excerpt"][0]["offset"] = 5
    with pytest.raises(FormatError, match="its excerpt at offset 5"):
        parse_statement(json.dumps(members).encode())


def test_a_copy_of_the_base_behind_it_is_stated_and_checked() -> None:
    with base_image(ISO) as base:
        image = compose(full_canvas(base), Customization(CONFIG, (), TIME), "x.iso")
        extents = (*image.extents.extents, Zeros(10), FileExtent(base.file, 32768, 2048))
        moved = attrs.evolve(image, extents=ExtentMap(extents))
        content, statement = bytes_of(moved), state(moved, base)
    assert [each.source for each in statement.tail] == [None, 32768]
    assert parse_statement(render_statement(statement)) == statement
    assert take_apart(content, statement).faults == ()
    at = len(ISO) + 10 + 100
    changed = content[:at] + b"?" + content[at + 1 :]
    fault = Span("boot-records", len(ISO) + 10, 2048)
    assert take_apart(changed, statement).faults == (fault,)


def test_a_statement_of_another_base_is_found() -> None:
    content, statement = stated("small", ARGUMENTS)
    other = attrs.evolve(statement, base=attrs.evolve(BASE, sha256="0" * 64))
    assert take_apart(content, other).faults == (Span("base image", 0, len(ISO)),)
    no_blocks = attrs.evolve(other.base, block_length=None, blocks=())
    (fault,) = take_apart(content, attrs.evolve(other, base=no_blocks)).faults
    assert (fault.path, fault.offset) == ("base image", 0)


def test_too_many_bytes_beneath_are_refused() -> None:
    iso = ISO + b"x" * (MAX_BENEATH + 1)
    with base_image(iso) as base:
        image = compose(full_canvas(base), Customization(CONFIG, (), TIME), "x.iso")
        longer = StatedBase(sha256(iso).hexdigest(), len(iso), "9.6", "x86_64")
        for count, is_refused in ((MAX_BENEATH, False), (MAX_BENEATH + 1, True)):
            below = ExtentMap((FileExtent(base.file, 0, len(iso)),))
            extents = apply_overlays(below, [Overlay(len(ISO), Zeros(count))])
            over = attrs.evolve(image, extents=extents)
            if is_refused:
                with pytest.raises(Unprocessable, match=f"{count} bytes at offset {len(ISO)}"):
                    state(over, base, stated=longer)
            else:
                statement = state(over, base, stated=longer)
                assert parse_statement(render_statement(statement)) == statement


def change(path: str, value: object) -> bytes:
    members = json.loads(render_statement(stated("large", LONG)[1]))
    *parents, last = path.split(".")
    node = members
    for name in parents:
        node = node[int(name) if name.isdigit() else name]
    node[int(last) if last.isdigit() else last] = value
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("predicateType", "https://slsa.dev/provenance/v1", "not an in-toto statement"),
        ("subject", [], "absent or malformed"),
        ("predicate.time", "now", "absent or malformed"),
        ("predicate.layout", True, "absent or malformed"),
        ("predicate.base.digest.sha256", "0", "absent or malformed"),
        ("predicate.base.length", 1 << 63, "absent or malformed"),
        ("predicate.base.blocks.sha256", [], "has 0 blocks"),
        ("predicate.overlays.0.purpose", "other", "absent or malformed"),
        ("predicate.overlays.0.beneath", {"deflate": "AAAA"}, "absent or malformed"),
        ("predicate.overlays.0.length", 1 << 40, "absent or malformed"),
        ("predicate.overlays.1.offset", 0, "its overlay at offset 0"),
        ("predicate.tail.0.offset", 5, "its tail at offset 5"),
        ("predicate.tail.0.source", len(ISO), "its tail at offset"),
        ("predicate.length", 5, "of 5 bytes"),
    ],
)
def test_a_malformed_statement_is_refused(path: str, value: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_statement(change(path, value))


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_other_json_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="absent or malformed"):
        parse_statement(data)
