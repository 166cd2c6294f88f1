from __future__ import annotations

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.core.errors import FormatError, KernelArgumentsTooLarge
from image_service.core.families.coreos.family import KARGS_JSON, LIVEISO
from image_service.core.families.coreos.kargs_areas import KargsArea, rewrite_kargs_json
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.formats.reading import read_layout

AREA = KargsArea(0, b"#", b"\n")
ZEROS = KargsArea(0, b"\0", b"\0")


def test_area_is_arguments_end_and_pad() -> None:
    assert AREA.render(" a=b ", 10) == b"a=b\n######"
    assert ZEROS.render("a=b", 10) == b"a=b" + bytes(7)


def test_arguments_as_long_as_their_area_are_refused() -> None:
    assert AREA.render("123456789", 10) == b"123456789\n"
    with pytest.raises(KernelArgumentsTooLarge, match=r"take 10 bytes, .* hold 9"):
        AREA.render("1234567890", 10)


def test_area_size_counts_bytes() -> None:
    with pytest.raises(KernelArgumentsTooLarge, match="take 6 bytes"):
        AREA.render("äöü", 6)


PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=400).map(str.strip)


@given(PRINTABLE, st.integers(1, 500), st.sampled_from([AREA, ZEROS]))
def test_rendered_area_is_parsed_back(arguments: str, size: int, area: KargsArea) -> None:
    if len(arguments) >= size:
        with pytest.raises(KernelArgumentsTooLarge):
            area.render(arguments, size)
    else:
        rendered = area.render(arguments, size)
        assert len(rendered) == size
        assert area.parse(rendered) == arguments


def test_arguments_end_at_the_end_character() -> None:
    assert KargsArea(0, b"#", b"\1").parse(b"a=b\1####") == "a=b"
    assert KargsArea(0, b"\0", b"\0").parse(b"a=b\0\0\0\0") == "a=b"


def test_coreos_karg_header_ends_at_the_first_zero_offset() -> None:
    whole = read_layout(build_live_iso()).kernel_arguments
    assert whole is not None
    iso = bytearray(build_live_iso({path: data for path, data in live_files().items() if path != KARGS_JSON}))
    places = [iso.index(b"coreos.liveiso="), iso.rindex(b"coreos.liveiso=")]
    header = struct.pack("<8sQQ6Q", b"coreKarg", whole.size, places[0], *places, 0, 7, 7, 7)
    iso[32672 : 32672 + len(header)] = header
    found = read_layout(bytes(iso)).kernel_arguments
    assert found is not None
    assert [area.offset for area in found.areas] == places
    assert found.default == whole.default


# kargs.json

AREAS = [
    {"path": "EFI/fedora/grub.cfg", "offset": 970, "pad": "#", "end": "\n"},
    {"path": "images/cdboot.img", "offset": 66688, "pad": "\0", "end": "\0"},
    {"path": "isolinux/isolinux.cfg", "offset": 1869, "pad": None},
]
BUILT = {"default": f"nosmt {LIVEISO}rhcos quiet", "files": AREAS, "size": 1139, "unknown": [1]}
REWRITTEN = r"""{
  "default": "nosmt \"ä\" quiet",
  "files": [
    {
      "path": "EFI/fedora/grub.cfg",
      "offset": 970,
      "pad": "#",
      "end": "\n"
    },
    {
      "path": "images/cdboot.img",
      "offset": 66688,
      "pad": "\u0000",
      "end": "\u0000"
    },
    {
      "path": "isolinux/isolinux.cfg",
      "offset": 1869
    }
  ],
  "size": 1139
}""".encode()


def test_kargs_json_is_rewritten_in_place() -> None:
    original = json.dumps(BUILT, indent=2, sort_keys=True).encode() + b"\n"
    made = rewrite_kargs_json(original, 'nosmt "ä" quiet')
    assert made == REWRITTEN + b" " * (len(original) - len(REWRITTEN))


def test_rewritten_kargs_json_must_fit_its_place() -> None:
    assert rewrite_kargs_json(REWRITTEN, 'nosmt "ä" quiet') == REWRITTEN
    with pytest.raises(FormatError, match=f"{len(REWRITTEN) + 1} bytes .* only {len(REWRITTEN)}"):
        rewrite_kargs_json(REWRITTEN, 'nosmt "ä" quiet!')


@pytest.mark.parametrize(
    "change",
    [
        {"size": None},
        {"size": "1139"},
        {"size": 1139.0},
        {"files": []},
        {"files": {}},
        {"files": [1]},
        {"files": [{"path": "x"}]},
        {"files": [{"offset": 1}]},
        {"files": [{"path": "x", "offset": 1, "pad": "##"}]},
        {"files": [{"path": "x", "offset": 1}] * 17},
    ],
)
def test_invalid_kargs_json_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FormatError, match=f"{KARGS_JSON}.* must be"):
        rewrite_kargs_json(json.dumps({**BUILT, **change}).encode(), "quiet")


@given(st.binary(max_size=200))
@example(b"[" * 20000)
@example(b"[]")
def test_rewriting_invalid_kargs_json_raises_format_error(original: bytes) -> None:
    with pytest.raises(FormatError):
        rewrite_kargs_json(original, "quiet")
