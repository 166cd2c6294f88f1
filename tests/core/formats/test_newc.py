from __future__ import annotations

import json
import subprocess
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.newc import Member, locate_members, read_archive, write_archive
from image_service.core.formats.reading import Span
from tests.acceptance.clients import needs_client
from tests.core.formats.reading import FIXTURES, MeteredReader, reader

CONFIG = b'{"ignition":{"version":"3.3.0"}}\n'
DIRECTORY_MODE = 0o040755


def written(*members: Member) -> list[Member]:
    archive = write_archive(members)
    found, end = read_archive(archive)
    assert end == len(archive)
    return found


def test_archive_of_one_member_has_documented_bytes() -> None:
    member = (
        "070701"  # magic
        "00000000"  # inode
        "00008180"  # mode: a regular file, 0600
        "00000000"  # uid
        "00000000"  # gid
        "00000001"  # links
        "00000000"  # modified
        "00000005"  # length
        "00000000000000000000000000000000"  # devices
        "0000000b"  # length of the name
        "00000000"  # checksum
        "config.ign\0\0\0\0"
        "abcde\0\0\0"
    )
    trailer = (
        "07070100000000000000000000000000000000000000010000000000000000"
        "000000000000000000000000000000000000000b00000000TRAILER!!!\0\0\0\0"
    )
    assert write_archive([Member("config.ign", b"abcde")]) == (member + trailer).encode()


@pytest.mark.skipif(not FIXTURES.exists(), reason=f"{FIXTURES} is not there")
def test_archives_equal_those_of_coreos_installer() -> None:
    golden = json.loads((FIXTURES / "golden.json").read_text())
    inputs = {name: text.encode() for name, text in golden["inputs"].items()}
    config = Member("config.ign", inputs.pop("ignition"))
    keyfiles = [Member(f"etc/coreos-firstboot-network/{name}", data) for name, data in inputs.items()]
    hashes = golden["cpio_sha256"]
    assert sha256(write_archive([config])).hexdigest() == hashes["config.ign only"]
    assert sha256(write_archive([*keyfiles, config])).hexdigest() == hashes["config.ign + 2 keyfiles"]


def test_archive_has_golden_bytes() -> None:
    members = [Member("config.ign", CONFIG), Member("usr/bin/tool", b"\x7fELF", 0o100755)]
    assert (
        sha256(write_archive(members)).hexdigest()
        == "7e134e75b355ff4b8cbfc76f6123f5f1b0cbb8f122c25e13e515bdcb47d368f0"
    )


def test_directories_precede_their_members() -> None:
    found = written(Member("a/b/c", b"1"), Member("a/b/d", b"2"), Member("a.b", b"3"))
    assert [(member.name, member.mode) for member in found] == [
        ("a.b", 0o100600),
        ("a", DIRECTORY_MODE),
        ("a/b", DIRECTORY_MODE),
        ("a/b/c", 0o100600),
        ("a/b/d", 0o100600),
    ]


def test_explicit_directory_keeps_its_mode() -> None:
    found = written(Member("etc/key", b""), Member("etc", b"", 0o040700))
    assert [(member.name, member.mode) for member in found] == [("etc", 0o040700), ("etc/key", 0o100600)]


def test_order_of_members_does_not_matter() -> None:
    members = [Member("b/a", b"1"), Member("a", b"2"), Member("ä", b"3")]
    assert write_archive(members) == write_archive(reversed(members))


@pytest.mark.parametrize("name", ["", "/a", "a/", "./a", "a//b", "../a", "a/..", "a\0b", "TRAILER!!!"])
def test_names_other_than_plain_relative_paths_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="plain relative path"):
        write_archive([Member(name, b"")])


def test_duplicate_name_is_refused() -> None:
    with pytest.raises(ValueError, match="two members are called 'a'"):
        write_archive([Member("a", b"1"), Member("a", b"2")])


def test_file_as_a_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' is both a file and a directory"):
        write_archive([Member("a", b"1"), Member("a/b", b"2")])


def test_empty_archive_is_a_trailer() -> None:
    assert written() == []


def test_repr_does_not_show_content() -> None:
    assert "secret" not in repr(Member("config.ign", b"secret"))


@pytest.mark.parametrize("length", range(252))
def test_truncated_archive_is_refused(length: int) -> None:
    archive = write_archive([Member("config.ign", b"abcd")])
    with pytest.raises(FormatError):
        read_archive(archive[:length])


def test_damage_is_refused_with_its_offset() -> None:
    archive = write_archive([Member("config.ign", b"abcd")])
    with pytest.raises(FormatError, match="offset 0 "):
        read_archive(b"070707" + archive[6:])
    with pytest.raises(FormatError, match="offset 128 "):
        read_archive(archive[:130] + b"x" + archive[131:])
    with pytest.raises(FormatError, match="ends within the cpio member at offset 0"):
        read_archive(archive[:54] + b"ffffffff" + archive[62:])
    with pytest.raises(FormatError, match="ends within the cpio member at offset 0"):
        read_archive(archive[:94] + b"FFFFFFFF" + archive[102:])


def is_tree(files: dict[str, bytes]) -> bool:
    """Return True if no file is the parent of another."""
    return not any(other.startswith(f"{name}/") for name in files for other in files)


PARTS = st.text(st.sampled_from("ab.ä-\U0001f600"), min_size=1, max_size=3).filter(
    lambda part: part.strip(".")
)
FILES = st.dictionaries(
    st.lists(PARTS, min_size=1, max_size=4).map("/".join), st.binary(max_size=40), max_size=8
).filter(is_tree)


@given(FILES)
def test_any_files_are_read_back(files: dict[str, bytes]) -> None:
    found = written(*(Member(name, data) for name, data in files.items()))
    regular = [(member.name, member.data) for member in found if member.mode == 0o100600]
    assert regular == sorted(files.items(), key=lambda item: item[0].encode())
    known = {""}
    for member in found:
        assert member.name not in known
        assert member.name.rpartition("/")[0] in known
        if member.mode == DIRECTORY_MODE:
            known.add(member.name)
    assert len(found) == len(files) + len(known) - 1


@settings(max_examples=20)
@given(FILES)
def test_cpio_lists_the_written_members(files: dict[str, bytes]) -> None:
    archive = write_archive(Member(name, data) for name, data in files.items())
    command = [needs_client("cpio"), "--list", "--quiet"]
    listed = subprocess.run(command, input=archive, capture_output=True, check=True).stdout
    assert listed.decode().splitlines() == [member.name for member in read_archive(archive)[0]]


@given(files=FILES, before=st.binary(max_size=50))
def test_located_members_match_read_members(files: dict[str, bytes], before: bytes) -> None:
    archive = write_archive(Member(name, data) for name, data in files.items())
    image = before + archive + b"behind"
    located = list(locate_members(reader(image), Span("archive", len(before), len(archive))))
    contents = [(file.path, image[file.offset : file.offset + file.length]) for file in located]
    assert contents == [(member.name, member.data) for member in read_archive(archive)[0]]


def test_locating_members_reads_headers_only() -> None:
    archive = write_archive([Member("large", bytes(1_000_000)), Member("next", b"x")])
    located = locate_members(MeteredReader(archive, 1000), Span("archive", 0, len(archive)))
    assert [(file.path, file.length) for file in located] == [("large", 1_000_000), ("next", 1)]


@pytest.mark.parametrize("length", [0, 1, 109, 110, 114, 120, 124])
def test_locating_members_of_a_truncated_archive_is_refused(length: int) -> None:
    archive = write_archive([Member("name", b"content")])
    assert length < len(archive)
    with pytest.raises(FormatError):
        list(locate_members(reader(archive[:length]), Span("archive", 0, length)))
    with pytest.raises(FormatError):
        list(locate_members(reader(archive), Span("archive", 0, length)))


def test_oversized_names_and_members_are_refused() -> None:
    archive = write_archive([Member("n" * 5000, b"")])
    with pytest.raises(FormatError, match="a name of 5001 bytes"):
        list(locate_members(MeteredReader(archive, 1000), Span("archive", 0, len(archive))))
    many = write_archive([Member(f"{number:03}", b"") for number in range(100)])
    assert len(list(locate_members(reader(many), Span("archive", 0, len(many))))) == 64
