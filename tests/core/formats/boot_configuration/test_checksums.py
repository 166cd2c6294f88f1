"""Lists of checksums, kept true."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.formats.boot_configuration.checksums import LIST_NAME, update_checksums
from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    from pathlib import Path

OLD = "0" * 32
DIGESTS = {"md5": "1" * 32, "sha256": "2" * 64}


def update(content: str, changed: list[str], added: list[str], path: str = "md5sum.txt") -> str:
    digests = dict.fromkeys(changed, DIGESTS), dict.fromkeys(added, DIGESTS)
    return update_checksums(path, content.encode(), *digests).decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{OLD}  ./a\n{OLD}  ./b c\n", f"{'1' * 32}  ./a\n{OLD}  ./b c\n{'1' * 32}  ./d/e\n"),
        (f"{OLD} *a\r\n# b\r\n", f"{'1' * 32} *a\r\n# b\r\n{'1' * 32} *d/e\r\n"),
        (f"{OLD}  /b\n{OLD}  /a", f"{OLD}  /b\n{'1' * 32}  /a\n{'1' * 32}  /d/e\n"),
        (f"{'0' * 64}  a\n", f"{'2' * 64}  a\n{'2' * 64}  d/e\n"),
        (f"{OLD}  b\n", None),
        (f"{OLD}  ./d/e\n{OLD}  a\n", f"{'1' * 32}  ./d/e\n{'1' * 32}  a\n"),
        (f"{'0' * 40}  a\n{OLD}  b\n", f"{OLD}  b\n{'1' * 32}  d/e\n"),
        (f"{'0' * 40}  a\n", ""),
        (f"MD5 (a) = {OLD}\n{OLD} a\n{OLD}\n", None),
        ("", None),
    ],
)
def test_lines(before: str, after: str | None) -> None:
    assert update(before, ["a"], ["d/e"]) == (before if after is None else after)
    assert update(before, [], []) == before


def test_paths_are_relative_to_the_list() -> None:
    content = f"{OLD}  a\n{OLD}  ../b\n"
    assert update(content, ["x/a", "b"], ["x/c/d", "e"], "x/md5sum.txt") == (
        f"{'1' * 32}  a\n{'1' * 32}  ../b\n{'1' * 32}  c/d\n"
    )
    assert update(content, ["a"], ["c"], "x/md5sum.txt") == content


def test_names_of_lists() -> None:
    names = [
        "md5sum.txt",
        "sha256sum.txt",
        "SHA256SUMS",
        "MD5SUMS",
        "sha512sum.txt",
        "SHA1SUMS",
        "md5.txt",
        "sums",
    ]
    assert [name for name in names if LIST_NAME.fullmatch(name)] == names[:-2]


def test_sha256sum_agrees(tmp_path: Path) -> None:
    files = {"a": b"1", "b/c": b"2", "new": b"3"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    before = f"{sha256(b'old').hexdigest()}  ./a\n{digests['b/c']}  ./b/c\n".encode()
    changed, added = ({name: {"sha256": digests[name]}} for name in ("a", "new"))
    (tmp_path / "SHA256SUMS").write_bytes(update_checksums("SHA256SUMS", before, changed, added))
    shown = run_client("env", "-C", tmp_path, "sha256sum", "-c", "SHA256SUMS")
    assert shown == b"./a: OK\n./b/c: OK\n./new: OK\n"


@given(st.binary(max_size=300))
def test_any_bytes_without_a_change_are_the_same(content: bytes) -> None:
    assert update_checksums("md5sum.txt", content, {"absent": DIGESTS}, {"new": DIGESTS}) == content
