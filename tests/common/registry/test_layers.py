from __future__ import annotations

import gzip
import tarfile
from typing import TYPE_CHECKING

import attrs
import pytest
from backports import zstd

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.reloaded import Reloaded
from image_service.common.http.watch import RequestLimits
from image_service.common.registry import layers
from image_service.common.registry.client import RegistryClient
from image_service.common.registry.connections import RegistryCall, RegistryOptions
from image_service.common.registry.credentials import CredentialStore
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.layers import read_files
from image_service.common.registry.mirrors import RegistryRules
from image_service.common.registry.references import parse_registry_url
from image_service.core.errors import FormatError
from tests.registry_origin import GZIP_LAYER, RegistryOrigin, layer_of, tar_of
from tests.server.catalog.origin import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Files = dict[str, bytes]
    Members = Mapping[str, bytes | tarfile.TarInfo]

TAR_LAYER = "application/vnd.oci.image.layer.v1.tar"
ISO = bytes(range(256)) * 5000


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo()
    member.type, member.linkname = kind, target
    return member


def of_type(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo()
    member.type = kind
    return member


DIRECTORY = of_type(tarfile.DIRTYPE)


@pytest.fixture(scope="module")
def shared() -> Iterator[RegistryOrigin]:
    """A registry for all tests: a server costs more than what they do with it."""
    with running() as origin:
        yield RegistryOrigin(origin)


@attrs.frozen
class Image:
    """An image, the lowest layer first."""

    registry: RegistryOrigin

    def read(
        self, packed: Sequence[tuple[bytes, str]], *names: str
    ) -> tuple[dict[str, str], dict[str, bytes]]:
        self.registry.manifest(packed)
        self.registry.origin.requests.clear()
        options = RegistryOptions(
            Reloaded([], CredentialStore),
            Reloaded([], RegistryRules),
            insecure=frozenset({self.registry.host}),
            make_current=Reloaded,
        )
        client, call = RegistryClient(options), RegistryCall(RequestLimits(), Interruption())
        image = client.resolve(parse_registry_url(self.registry.url()).reference, "x86_64", call)
        written: dict[str, bytearray] = {}

        def write(name: str, size: int) -> Callable[[bytes], object]:
            assert size >= 0
            content = written[name] = bytearray()
            return content.extend

        found = read_files(client, image, list(names), write, call)
        return found, {path: bytes(content) for path, content in written.items()}

    @property
    def blobs_read(self) -> int:
        return sum("/blobs/" in request.target for request in self.registry.origin.requests)


@pytest.fixture
def image(shared: RegistryOrigin) -> Image:
    """An image."""
    shared.spoil = lambda _, reply: reply
    return Image(shared)


@pytest.mark.parametrize(
    "pack",
    [
        lambda tar: (tar, TAR_LAYER),
        lambda tar: (gzip.compress(tar), GZIP_LAYER),
        lambda tar: (gzip.compress(tar[:512]) + gzip.compress(tar[512:]), GZIP_LAYER),  # of several members
        lambda tar: (zstd.compress(tar), f"{TAR_LAYER}+zstd"),
        lambda tar: (gzip.compress(tar), f"{TAR_LAYER}+zstd"),  # its media type is wrong
        lambda tar: (tar, "application/vnd.docker.image.rootfs.diff.tar.gzip"),
    ],
)
def test_file_is_read_however_the_layer_is_packed(
    image: Image, pack: Callable[[bytes], tuple[bytes, str]]
) -> None:
    tar = tar_of({"etc/a": b"x", "coreos/coreos-x86_64.iso": ISO, "coreos/z": b""})
    found, written = image.read([pack(tar)], "coreos/coreos-x86_64.iso")
    assert found == {"coreos/coreos-x86_64.iso": "coreos/coreos-x86_64.iso"}
    assert written == {"coreos/coreos-x86_64.iso": ISO}


@pytest.mark.parametrize("name", ["./a/b", "/a/b", "a//b", "a/./b", "a/c/../b"])
def test_names_are_normalized(image: Image, name: str) -> None:
    assert image.read([layer_of({name: b"1"})], "a/b")[1] == {"a/b": b"1"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([{"a/b": b"low"}, {"a/b": b"high"}], b"high"),
        ([{"a/b": b"low"}, {"other": b""}], b"low"),
        ([{"a/b": b"low"}, {"a/.wh.b": b""}], None),
        ([{"a/b": b"low"}, {".wh.a": b""}], None),
        ([{"a/b": b"low"}, {"a/.wh..wh..opq": b""}], None),
        ([{"a/b": b"low"}, {".wh..wh..opq": b""}], None),
        ([{"a/b": b"low"}, {"a/.wh.c": b"", "a/.wh.bb": b"", ".wh.aa": b""}], b"low"),
        ([{"a/b": b"low"}, {"a/.wh..wh..opq": b"", "a/b": b"high"}], b"high"),
        ([{"a/b": b"low"}, {"a/b": b"high", "a/.wh..wh..opq": b""}], b"high"),
        ([{"a/b": b"1"}, {"a/.wh.b": b""}, {"a/b": b"3"}], b"3"),
        ([{"a/b": b"1"}, {".wh.a": b""}, {"other": b"3"}], None),
        ([{"other": b""}], None),
        ([{}], None),
        ([{"a/b": DIRECTORY}, {"a/b": b"file"}], b"file"),
    ],
)
def test_layers_and_whiteouts(image: Image, files: Sequence[Members], expected: bytes | None) -> None:
    found, written = image.read([layer_of(each) for each in files], "a/b")
    assert written == ({} if expected is None else {"a/b": expected})
    assert bool(found) is (expected is not None)


def test_layers_below_the_file_are_not_read(image: Image) -> None:
    image.read([layer_of({"a/b": b"1", "x": b"2"}), layer_of({"a/b": b"3"}), layer_of({"c": b""})], "a/b")
    assert image.blobs_read == 2


@pytest.mark.parametrize(
    "files",
    [
        [{"disk/disk.img": ISO}],
        [{"disk": DIRECTORY, "disk/disk.img": ISO}, {"etc/x": b""}],
        [{"disk/old": b"1"}, {"disk/.wh.old": b"", "disk/disk.img": ISO}],
        [{"disk/disk.img": ISO, "disk/old": b""}, {"disk/.wh.old": b""}],
        [{"disk/disk.img": ISO, "disk/sub/other": b""}],
    ],
)
def test_only_file_of_a_directory(image: Image, files: Sequence[Members]) -> None:
    found, written = image.read([layer_of(each) for each in files], "disk/*")
    assert found == {"disk/*": "disk/disk.img"}
    assert written["disk/*"] == ISO


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([{"disk/a": b"1", "disk/b": b"2"}], "is several files: 'disk/a', 'disk/b'"),
        ([{"a/b": DIRECTORY}], "'a/b' is not a file"),
        ([{"a/b": of_type(tarfile.FIFOTYPE)}], "'a/b' is not a file"),
        ([{"a/b": of_type(tarfile.CHRTYPE)}], "'a/b' is not a file"),
        ([{"a/b": link("b")}], "more than 8 links"),
        ([{"a/b": link("c"), "a/c": link("b")}], "more than 8 links"),
    ],
)
def test_what_is_refused(image: Image, files: Sequence[Members], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        image.read([layer_of(each) for each in files], "disk/*" if "disk" in str(files) else "a/b")


@pytest.mark.parametrize(
    "files",
    [
        [{"a/b": link("c"), "a/c": ISO}],
        [{"a/b": link("/x/y"), "x/y": ISO}],
        [{"a/b": link("../x/y"), "x/y": ISO}],
        [{"a/b": link("../../../x/y"), "x/y": ISO}],  # the root has no parent
        [{"x/y": ISO}, {"a/b": link("../x/y")}],
        [{"x/b": ISO}, {"a": link("x")}],
        [{"x/b": ISO}, {"a": link("/z")}, {"z": link("x")}],
        [{"x/y": ISO, "a/b": link("x/y", tarfile.LNKTYPE)}],
    ],
)
def test_links_are_followed_in_the_image(image: Image, files: Sequence[Members]) -> None:
    _, written = image.read([layer_of(each) for each in files], "a/b")
    assert written["a/b"] == ISO


def test_several_files_are_read_in_one_pass(image: Image) -> None:
    found, written = image.read(
        [layer_of({"c/stream.json": b"{}", "c/iso": ISO}), layer_of({"x": b""})],
        "c/iso",
        "c/stream.json",
        "c/none",
    )
    assert found.keys() == {"c/iso", "c/stream.json"}
    assert written == {"c/iso": ISO, "c/stream.json": b"{}"}
    assert image.blobs_read == 2


def test_file_that_a_layer_has_twice_is_the_last_one(image: Image) -> None:
    first, second = tar_of({"a": b"first"}), tar_of({"a": b"second"})
    end = first.index(b"\0" * 1024, 1024)  # the end of an archive
    layer = first[:1024] + second if end else b""
    assert image.read([(layer, TAR_LAYER)], "a")[1] == {"a": b"second"}


# Damage.


def test_layer_with_another_digest_is_refused(image: Image) -> None:
    layer, other = (tar_of({"a": content, "b": b"2"}) for content in (b"1", b"9"))
    image.registry.spoil = lambda _, reply: attrs.evolve(reply, body=other)
    with pytest.raises(RegistryFailed, match=r"the digest of layer sha256:\w+ is sha256:"):
        image.read([(layer, TAR_LAYER)], "a")


@pytest.mark.parametrize(
    "layer",
    [
        b"",
        b"no tar" * 1000,
        gzip.compress(b"no tar" * 1000),
        gzip.compress(tar_of({"a": ISO}))[:-500],
        b"\x1f\x8b" + b"x" * 100,
        zstd.compress(tar_of({"a": ISO}))[:-50],
        b"\x28\xb5\x2f\xfd" + b"x" * 100,
        tar_of({"b": ISO})[:-20_000],
    ],
)
def test_damaged_layer_is_refused(image: Image, layer: bytes) -> None:
    with pytest.raises(FormatError, match=r"layer sha256:\w+ is not a tar"):
        image.read([(layer, TAR_LAYER)], "a")


def test_headers_that_would_fill_the_memory_are_refused(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_MAX_HEADER_BYTES", 1024 * 1024)
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 2**32
    layer = gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + bytes(8 * 1024 * 1024))
    with pytest.raises(FormatError, match="too large"):
        image.read([(layer, GZIP_LAYER)], "a")


def test_body_that_is_cut_within_a_layer_is_continued(image: Image) -> None:
    image.registry.spoil = lambda _, reply: attrs.evolve(
        reply, body=reply.body[:300_000], promised=len(reply.body)
    )
    assert image.read([(tar_of({"a": ISO}), TAR_LAYER)], "a")[1] == {"a": ISO}
    assert image.blobs_read == 5
