from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import Unprocessable
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.images.config_medium import MEDIA, write_config_medium
from tests.acceptance.clients import run_client
from tests.core.formats.filesystems.file_systems import noise
from tests.core.formats.iso_edit.isos import extract, faults_by_isovfy
from tests.core.formats.reading import reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CREATED = datetime(2026, 2, 28, 23, 59, 58, tzinfo=UTC)
FILES = {
    "cidata": {"user-data": b"#cloud-config\n", "network-config": b"version: 2\n"},
    "config-2": {"openstack/latest/user_data": noise(200_000)},
    "metal-iso": {"config.yaml": b"version: v1alpha1\n"},
    "ignition": {"ignition/config.ign": b'{"ignition": {"version": "3.4.0"}}'},
    "combustion": {
        "combustion/script": b"#!/bin/sh\n",
        "combustion/key.pub": b"",
        "ignition/config.ign": b"{}",
    },
    "OEMDRV": {"ks.cfg": b"text\n"},
}


def check(files: Mapping[str, bytes], image: bytes, directory: Path) -> None:
    """Compare the files with those that foreign readers find by Rock Ridge and by Joliet names."""
    assert extract(image, directory) == files
    assert extract(image, directory, "-read_fs", "norock") == files
    assert faults_by_isovfy(image, directory) == 0


@pytest.mark.parametrize("label", MEDIA)
def test_media_have_their_label_and_files(tmp_path: Path, label: str) -> None:
    files = MEDIA[label].complete(FILES[label])
    image = write_config_medium(label, files, CREATED)

    check(files, image, tmp_path)
    file = tmp_path / "medium.iso"
    file.write_bytes(image)
    found = run_client("blkid", "-p", "-o", "export", file).decode()
    assert f"LABEL={label}\n" in found
    assert "TYPE=iso9660\n" in found
    assert "UUID=2026-02-28-23-59-58-00\n" in found
    listed = run_client("isoinfo", "-J", "-f", "-i", file).decode().splitlines()
    assert {f"/{path}" for path in files} <= {name.removesuffix(";1") for name in listed}
    listed = run_client("isoinfo", "-R", "-l", "-i", file).decode().splitlines()
    assert all(re.search(r"Feb 28 2026", line) for line in listed if line.startswith(("-", "d")))
    assert len(image) <= 400_000 + sum(map(len, files.values()))
    assert read_iso9660(reader(image), len(image)).created == CREATED


def test_every_family_is_tested() -> None:
    assert set(FILES) == set(MEDIA)


def test_same_files_give_the_same_bytes_in_any_order_and_zone() -> None:
    files = {f"{name}/file": name.encode() for name in "cab"}
    image = write_config_medium("cidata", files, CREATED)

    assert write_config_medium("cidata", dict(sorted(files.items())), CREATED) == image
    assert write_config_medium("cidata", files, CREATED.astimezone(timezone(timedelta(hours=9)))) == image
    assert write_config_medium("cidata", files, CREATED + timedelta(seconds=1)) != image


def test_identity_is_made_where_it_is_absent() -> None:
    one = MEDIA["cidata"].complete({"user-data": b"1"})
    other = MEDIA["cidata"].complete({"user-data": b"2"})

    assert re.fullmatch(rb"instance-id: [0-9a-f-]{36}\n", one["meta-data"])
    assert one["meta-data"] != other["meta-data"]
    assert one == MEDIA["cidata"].complete({"user-data": b"1"})
    assert MEDIA["cidata"].complete({"user-data": b"", "meta-data": b"x"})["meta-data"] == b"x"
    config = MEDIA["config-2"].complete({"openstack/latest/user_data": b""})
    assert len(json.loads(config["openstack/latest/meta_data.json"])["uuid"]) == 36


@pytest.mark.parametrize(
    ("label", "files", "message"),
    [
        (
            "cidata",
            {"user_data"},
            "'user_data' would not be read from a medium cidata: it has user-data, meta",
        ),
        ("cidata", {"meta-data"}, "a medium cidata needs a file user-data"),
        ("combustion", {"combustion/key"}, "needs a file combustion/script or ignition/config.ign"),
        ("combustion", {"script"}, "'script' would not be read"),
        ("OEMDRV", {"KS.CFG"}, "'KS.CFG' would not be read from a medium OEMDRV: it has ks.cfg"),
    ],
)
def test_files_that_are_not_read_are_refused(label: str, files: set[str], message: str) -> None:
    with pytest.raises(Unprocessable, match=message):
        MEDIA[label].complete(dict.fromkeys(files, b""))


@pytest.mark.parametrize(
    "label", ["", "x" * 17, "a b", "a/b", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", "a\n"]
)
def test_labels_that_cannot_be_stored_are_refused(label: str) -> None:
    with pytest.raises(Unprocessable, match="must have 1 to 16 characters of A-Z, a-z, 0-9, '_', '-' and"):
        write_config_medium(label, {}, CREATED)


@pytest.mark.parametrize(
    "paths",
    [
        ["../x"],
        ["/x"],
        ["a//b"],
        [""],
        ["a\0b"],
        ["a*b"],
        ["x" * 104],
        ["a", "a/b"],
        ["ks.cfg", "KS.CFG"],
        ["a/b", "A/c"],
        ["/".join("a" * 40)],
    ],
)
def test_paths_that_cannot_be_stored_are_refused(paths: list[str]) -> None:
    with pytest.raises(Unprocessable):
        write_config_medium("cidata", dict.fromkeys(paths, b""), CREATED)


def test_medium_without_files_is_an_iso(tmp_path: Path) -> None:
    check({}, write_config_medium("cidata", {}, CREATED), tmp_path)


LETTERS = "abcXYZ019 ._-+~=,!#%\N{LATIN SMALL LETTER A WITH DIAERESIS}\N{CJK UNIFIED IDEOGRAPH-4E00}"
NAMES = st.text(LETTERS, min_size=1, max_size=40).filter(lambda name: name.strip(". ") == name)
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)
CONTENTS = st.builds(noise, st.one_of(st.integers(0, 5000), st.integers(0, 300_000)))


@pytest.mark.slow
def test_any_files_come_out_again(tmp_path: Path) -> None:
    @given(st.dictionaries(PATHS, CONTENTS, max_size=30))
    def write(files: dict[str, bytes]) -> None:
        try:
            image = write_config_medium("config-2", files, CREATED)
        except Unprocessable as error:
            assert "differ in case only" in error.detail or "not a directory" in error.detail  # noqa: PT017
            return
        check(files, image, tmp_path)
        assert write_config_medium("config-2", dict(reversed(files.items())), CREATED) == image

    write()
