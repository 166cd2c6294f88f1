from __future__ import annotations

import base64
import gzip
import json
import lzma
import zlib
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.newc import Member, write_archive
from image_service.core.images.customization import Customization
from image_service.core.images.fingerprint import MAX_UNPACKED_BYTES, fingerprint
from tests.server.standalone.tokens import TokenSigner

if TYPE_CHECKING:
    from collections.abc import Callable

ID = "a6c0ff12-3456-4789-8abc-def012345678"
MODIFIED = datetime(2025, 5, 23, tzinfo=UTC)
SIGNER = TokenSigner()


def config_of(text: str) -> bytes:
    """Return a config with a text, as Go renders it."""
    return json.dumps({"ignition": {"version": "3.2.0"}, "text": text}, separators=(",", ":")).encode()


def of(text: str) -> bytes:
    return fingerprint(Customization(config_of(text), (), MODIFIED))


def data_url(content: bytes) -> str:
    return f"data:;base64,{base64.b64encode(content).decode()}"


# Tokens

WRAPPINGS = {
    "alone": "{}",
    "in a unit": '[Service]\nEnvironment="PULL_SECRET_TOKEN={}"\nExecStart=/usr/bin/true\n',
    "behind a line's end, which JSON writes as a letter": "TOKEN\n{}\n",
    "percent-encoded": "data:,Authorization%3A%20Bearer%20{}%0A",
    "behind what could be part of it": "x-{}",
    "two of them": "{0} and {0}",
    "in a URL": "https://images.test/byid?image_token={}&version=4.20",
    "in a query's end": "https://images.test/bytoken/{}/4.20/x86_64/full.iso",
}
HIDINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "base64": lambda text: data_url(text.encode()),
    "gzip": lambda text: data_url(gzip.compress(text.encode())),
    "with others beside it": lambda text: f"{data_url(b'A' * 100)} {data_url(text.encode())} {text}",
}


@pytest.mark.parametrize("hiding", HIDINGS)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_new_token_keeps_the_fingerprint(wrapping: str, hiding: str) -> None:
    texts = [HIDINGS[hiding](WRAPPINGS[wrapping].format(SIGNER.sign(ID))) for _ in range(2)]
    assert texts[0] != texts[1]
    assert of(texts[0]) == of(texts[1])


@pytest.mark.parametrize("hiding", HIDINGS)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_change_beside_a_token_changes_the_fingerprint(wrapping: str, hiding: str) -> None:
    token = SIGNER.sign(ID)
    hide, text = HIDINGS[hiding], WRAPPINGS[wrapping].format(token)
    assert of(hide(text)) != of(hide(text + " "))
    assert of(hide(text)) != of(hide("other " + text))
    assert of(hide(text)) != of(hide(text.replace(token, "")))


@given(st.text(), st.text(), st.text(min_size=1))
def test_only_tokens_are_masked(before: str, after: str, more: str) -> None:
    one, other = (f"{before} {SIGNER.sign(ID)} {after}" for _ in range(2))
    assert of(one) == of(other)
    assert of(one) != of(f"{one} {more}")
    assert of(one) != of(f"{more} {other}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4.20.1", "4.20.2"),
        ("registry.example.com", "registry.example.org"),
        ("eyJhbGciOiJFUzI1NiJ9", "eyJhbGciOiJFUzI1Nj9"),
        ("eyJhbGci.eyJzdWIi", "eyJhbGci.eyJzdWIj"),
        ("a.b.c", "a.b.d"),
        (data_url(b"one"), data_url(b"two")),
        (data_url(gzip.compress(b"one", mtime=0)), data_url(gzip.compress(b"two", mtime=0))),
        ("data:;base64,AAA", "data:;base64,AAB"),
        ("data:;base64,=", "data:;base64,=="),
    ],
)
def test_text_that_is_no_token_counts(one: str, other: str) -> None:
    assert of(one) != of(other)


def test_recompressed_file_keeps_the_fingerprint() -> None:
    content = f"token {SIGNER.sign(ID)}\n".encode() * 50
    assert of(data_url(gzip.compress(content, 1, mtime=1))) == of(
        data_url(gzip.compress(content, 9, mtime=2))
    )


def test_compressed_file_differs_from_the_plain_one() -> None:
    """The reader of a file learns from another member whether to decompress it."""
    assert of(data_url(b"content")) != of(data_url(gzip.compress(b"content")))


def test_data_after_the_first_gzip_member_counts() -> None:
    first = gzip.compress(b"first")
    texts = [first, first + gzip.compress(b"a"), first + gzip.compress(b"b"), first + b"garbage", first[:-1]]
    assert len({of(data_url(text)) for text in texts}) == len(texts)


def test_invalid_gzip_counts_by_its_bytes() -> None:
    assert of(data_url(b"\x1f\x8b one")) != of(data_url(b"\x1f\x8b two"))


# Limits


def test_gzip_beyond_the_limit_counts_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, make = [0], zlib.decompressobj

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._unpacker = make(wbits=wbits)

        def decompress(self, data: bytes, limit: int) -> bytes:
            result = self._unpacker.decompress(data, limit)
            unpacked[0] += len(result)
            return result

        def __getattr__(self, name: str) -> object:
            return getattr(self._unpacker, name)

    monkeypatch.setattr("zlib.decompressobj", Counting)
    half = MAX_UNPACKED_BYTES // 2 + 1
    bombs = [data_url(gzip.compress(bytes([letter]) * half)) for letter in b"abcdefgh"]
    all_of_them = of(" ".join(bombs))
    assert unpacked[0] <= MAX_UNPACKED_BYTES
    assert of(" ".join([*bombs[:-1], data_url(gzip.compress(b"i" * half))])) != all_of_them
    assert of(" ".join(bombs)) == all_of_them


@pytest.mark.parametrize("letters", ["eyJ", ".eyJ", ".eyJa", "eyJ.eyJ.", "A", ";base64,", ";base64,H4sI"])
def test_adversarial_text_takes_linear_time(letters: str) -> None:
    """A search from every letter would take half an hour: longer than the limit of a test."""
    long = letters * (1024 * 1024 // len(letters))
    assert of(long) != of(long + "x" + long)


# Other parts

ARGUMENT = KernelArgument(Operation.APPEND, "rd.neednet=1")
MEMBERS = [Member("etc/a", b"a"), Member("etc/b", b"b" * 5000), Member("usr/bin/x", b"x", 0o100755)]
ARCHIVE = write_archive(MEMBERS)
CUSTOMIZATION = Customization(config_of(""), (ARGUMENT,), MODIFIED, gzip.compress(ARCHIVE))


def test_each_part_changes_the_fingerprint() -> None:
    others = [
        CUSTOMIZATION,
        attrs.evolve(CUSTOMIZATION, ignition=config_of("x")),
        attrs.evolve(CUSTOMIZATION, ignition=b""),
        attrs.evolve(CUSTOMIZATION, modified=None),
        attrs.evolve(CUSTOMIZATION, modified=MODIFIED + timedelta(seconds=1)),
        attrs.evolve(CUSTOMIZATION, kernel_arguments=()),
        attrs.evolve(CUSTOMIZATION, kernel_arguments=(ARGUMENT, ARGUMENT)),
        attrs.evolve(CUSTOMIZATION, kernel_arguments=(KernelArgument(Operation.DELETE, "rd.neednet=1"),)),
        attrs.evolve(CUSTOMIZATION, kernel_arguments=(KernelArgument(Operation.APPEND, "rd.neednet=2"),)),
        attrs.evolve(CUSTOMIZATION, ramdisk=None),
        attrs.evolve(CUSTOMIZATION, ramdisk=gzip.compress(write_archive([]))),
    ]
    prints = [fingerprint(other) for other in others]
    assert all(len(one) == 32 for one in prints)
    assert all(one != other for one, other in combinations(prints, 2))
    assert fingerprint(attrs.evolve(CUSTOMIZATION)) == prints[0]


def test_arguments_are_delimited() -> None:
    def of_arguments(*values: str) -> bytes:
        arguments = tuple(KernelArgument(Operation.APPEND, value) for value in values)
        return fingerprint(attrs.evolve(CUSTOMIZATION, kernel_arguments=arguments))

    assert of_arguments("a b", "c") != of_arguments("a", "b c")
    assert of_arguments("a", "b") != of_arguments("b", "a")
    assert of_arguments("aappend b") != of_arguments("a", "b")
    assert of_arguments("Ä", "€") == of_arguments("Ä", "€")


# Ramdisks


def xz(content: bytes) -> bytes:
    return lzma.compress(content, check=lzma.CHECK_CRC32)


def of_ramdisk(ramdisk: bytes) -> bytes:
    return fingerprint(attrs.evolve(CUSTOMIZATION, ramdisk=ramdisk))


@pytest.mark.parametrize(
    "ramdisk",
    [
        ARCHIVE,
        gzip.compress(ARCHIVE, 1, mtime=1),
        gzip.compress(ARCHIVE, 9, mtime=2),
        xz(ARCHIVE),
        gzip.compress(ARCHIVE) + bytes(64),
        gzip.compress(write_archive(MEMBERS[:2])) + bytes(4) + xz(write_archive(MEMBERS[2:])),
    ],
)
def test_recompressed_ramdisk_keeps_the_fingerprint(ramdisk: bytes) -> None:
    if ramdisk.endswith(xz(write_archive(MEMBERS[2:]))):
        assert of_ramdisk(ramdisk) == of_ramdisk(write_archive(MEMBERS[:2]) + write_archive(MEMBERS[2:]))
    else:
        assert of_ramdisk(ramdisk) == of_ramdisk(gzip.compress(ARCHIVE))


@pytest.mark.parametrize(
    "members",
    [
        [*MEMBERS, Member("etc/c", b"")],
        MEMBERS[:2],
        [Member("etc/a", b"A"), *MEMBERS[1:]],
        [Member("etc/A", b"a"), *MEMBERS[1:]],
        [Member("etc/a", b"a", 0o100644), *MEMBERS[1:]],
    ],
)
def test_each_member_of_a_ramdisk_counts(members: list[Member]) -> None:
    assert of_ramdisk(gzip.compress(write_archive(members))) != of_ramdisk(gzip.compress(ARCHIVE))


@pytest.mark.parametrize(
    "ramdisk", [b"\x28\xb5\x2f\xfd zstd", gzip.compress(ARCHIVE, mtime=0)[:-9], b"070701garbage"]
)
def test_unreadable_ramdisk_counts_by_its_bytes(ramdisk: bytes) -> None:
    assert of_ramdisk(ramdisk) == of_ramdisk(ramdisk)
    assert of_ramdisk(ramdisk) != of_ramdisk(ramdisk + b"x")
    assert of_ramdisk(ramdisk) != of_ramdisk(gzip.compress(ARCHIVE))
