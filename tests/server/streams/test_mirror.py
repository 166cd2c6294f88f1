from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import pytest
import yaml
from twisted.internet.defer import Deferred, execute

from image_service.common.concurrency.interruption import Interrupted
from image_service.common.files.local_file import LocalFile
from image_service.core.errors import ImageServiceError, NotFound, Unavailable, UnknownBaseImage
from image_service.core.extents import FileExtent, Literal
from image_service.core.families.coreos.stream_metadata import select_releases
from image_service.core.images.base_image import BaseImage
from image_service.core.images.reference import Kind, StreamConfigMapRef, StreamDocumentRef, StreamFileRef
from image_service.server.streams.mirror import Mirror
from image_service.server.streams.release_preparer import MirroredFile, MirroredRelease
from image_service.server.streams.stream import StreamRelease
from tests.core.families.coreos.streams import SHA256, stream
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.core.formats.reading import read_layout
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.images.reference import StreamRef
    from tests.conftest import LoggedFailures

T = TypeVar("T")

LAYOUT = read_layout(build_live_iso())
SIGNATURE = b"\x89 signature"
BASE_URL = "https://images.example/path"


def release(
    version: str, architecture: str = "x86_64", name: str = "stable", **members: Any
) -> StreamRelease:
    (found,) = select_releases(stream(version, architecture), [architecture])
    return StreamRelease(name, found, **members)


def opened(version: str, architecture: str = "x86_64", sha256: str = SHA256) -> BaseImage:
    return BaseImage(LocalFile(-1, 1000, f"{version}.iso"), LAYOUT, sha256, version, architecture)


@attrs.define(eq=False)
class Setup:
    """A mirror with streams and base images that the test sets."""

    desired: list[StreamRelease] = attrs.field(factory=list)
    aliases: dict[tuple[str, str], str] = attrs.field(factory=dict)
    bases: dict[tuple[str, str], BaseImage] = attrs.field(factory=dict)
    signature: bytes | None = SIGNATURE
    fault: Exception | None = None
    prepared: list[str] = attrs.field(factory=list)
    waiting: list[Callable[[], None]] | None = None
    mirror: Mirror = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        streams: Any = self
        self.mirror = Mirror(streams, self._find, self._in_thread, self._prepare, lambda: BASE_URL)

    def set_desired(self, *desired: StreamRelease) -> None:
        self.desired = [*desired]

    def set_ready(self, *versions: str, architecture: str = "x86_64") -> None:
        """Make these base images ready, and no others."""
        self.bases = {(version, architecture): opened(version, architecture) for version in versions}
        self.mirror.update()

    def document(self, name: str = "stable") -> dict[str, str]:
        """Release by architecture, as a document lists it."""
        text = body(self.mirror.document(name))
        architectures = json.loads(text)["architectures"]
        return {name: streams["artifacts"]["metal"]["release"] for name, streams in architectures.items()}

    def _find(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        assert kind is Kind.FULL_ISO
        if (version, architecture) in self.bases:
            return self.bases[version, architecture]
        raise UnknownBaseImage("none")

    def _in_thread(self, work: Callable[[], T], /) -> Deferred[T]:
        if self.waiting is None:
            return execute(work)
        result: Deferred[T] = Deferred()
        self.waiting.append(lambda: result.callback(work()))
        return result

    def _prepare(self, desired: StreamRelease, base: BaseImage) -> MirroredRelease:
        self.prepared.append(desired.release.version)
        if self.fault:
            raise self.fault
        is_pending = self.signature is None
        iso = MirroredFile(desired.release.iso.name, base.sha256, 0, 1000, self.signature, is_pending)
        kernel = MirroredFile("kernel", "1" * 64, 100, 50)
        return MirroredRelease(desired, base, iso, {"kernel": kernel})


def body(image: object) -> bytes:
    (extent,) = image.extents.extents  # type: ignore[attr-defined] # a BootImage
    assert isinstance(extent, Literal)
    return bytes(extent.data)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_document_lists_the_releases_that_are_ready(setup: Setup) -> None:
    setup.set_desired(release("2"), release("1"), release("2", "aarch64"))
    setup.set_ready("1", "2")
    image = setup.mirror.document("stable")
    metal = json.loads(body(image))["architectures"]["x86_64"]["artifacts"]["metal"]
    location = f"{BASE_URL}/streams/stable/2/x86_64/fcos-2-live-iso.x86_64.iso"
    expected = {"location": location, "signature": f"{location}.sig", "sha256": SHA256}
    assert metal["formats"]["iso"]["disk"] == expected
    pxe = metal["formats"]["pxe"]
    assert [pxe[name]["location"].startswith(BASE_URL) for name in ("kernel", "rootfs")] == [True, False]
    assert setup.document() == {"x86_64": "2"}
    assert (image.content_type, image.is_public, image.is_iso) == ("application/json", True, False)


def test_document_lists_the_newest_release_that_is_ready(setup: Setup) -> None:
    setup.set_desired(release("3"), release("2"), release("1"))
    setup.set_ready("1")
    assert setup.document() == {"x86_64": "1"}
    etag = setup.mirror.document("stable").etag
    assert setup.mirror.document("stable").etag == etag
    setup.set_ready("1", "2")
    assert setup.document() == {"x86_64": "2"}
    assert setup.mirror.document("stable").etag != etag


def test_restart_lists_no_older_release_than_before(setup: Setup) -> None:
    setup.set_desired(release("2"), release("1"))
    setup.aliases = {("stable", "x86_64"): "2"}
    setup.set_ready("1")
    with pytest.raises(Unavailable) as refusal:
        setup.mirror.document("stable")
    assert refusal.value.retry_after_seconds == 10
    setup.set_ready("1", "2")
    assert setup.document() == {"x86_64": "2"}


def test_document_of_a_release_requires_all_architectures(setup: Setup) -> None:
    setup.set_desired(release("2"), release("1"), release("1", "aarch64"))
    setup.set_ready("1", "2")
    with pytest.raises(Unavailable, match="1 for aarch64 of the stream stable"):
        setup.document("stable-1")
    assert setup.document("stable-2") == {"x86_64": "2"}
    setup.bases["1", "aarch64"] = opened("1", "aarch64")
    setup.mirror.update()
    assert setup.document("stable-1") == {"x86_64": "1", "aarch64": "1"}


@pytest.mark.parametrize("name", ["next", "stable-3", "stable-", "stable-2.json", ""])
def test_unknown_stream_or_release_is_not_found(setup: Setup, name: str) -> None:
    setup.set_desired(release("2"))
    setup.set_ready("2")
    with pytest.raises(NotFound, match="there is no such stream; there are stable"):
        setup.mirror.document(name)
    with pytest.raises(NotFound):
        setup.mirror.config_map(name)


def test_names_with_dashes_are_distinguished(setup: Setup) -> None:
    setup.set_desired(release("9.8-0", name="rhel-9.8"), release("1", name="rhel"))
    setup.set_ready("9.8-0", "1")
    assert setup.document("rhel-9.8") == setup.document("rhel-9.8-9.8-0") == {"x86_64": "9.8-0"}
    assert setup.document("rhel-1") == {"x86_64": "1"}


def test_config_map_holds_the_document(setup: Setup) -> None:
    setup.set_desired(release("2"))
    setup.set_ready("2")
    image = setup.mirror.config_map("stable")
    config_map = yaml.safe_load(body(image))
    assert json.loads(config_map["data"]["stream"]) == json.loads(body(setup.mirror.document("stable")))
    assert (image.content_type, image.file_name) == ("application/yaml", "configmap.yaml")


def streams_of(setup: Setup, path: str | None) -> tuple[str, str, dict[str, str]]:
    """Return the version of a ConfigMap, the name of its default stream, and the releases by stream."""
    data = yaml.safe_load(body(setup.mirror.config_map(path)))["data"]
    releases = {
        key: document["architectures"]["x86_64"]["artifacts"]["metal"]["release"]
        for key, document in json.loads(data["streams"]).items()
    }
    return data["releaseVersion"], json.loads(data["stream"])["stream"], releases


def test_config_map_has_the_streams_of_an_openshift_version_or_all(setup: Setup) -> None:
    setup.set_desired(
        release("9.8", name="4.22-9", openshift_version="4.22", key="rhel-9"),
        release("9.6", name="4.22-9", openshift_version="4.22", key="rhel-9"),
        release("9.9", name="5.0-9", openshift_version="5.0", key="rhel-9"),
        release("10.2", name="4.22-10", openshift_version="4.22", key="rhel-10"),
    )
    setup.set_ready("9.8", "9.6", "10.2")
    assert streams_of(setup, "4.22") == ("4.22", "4.22-9", {"rhel-9": "9.8", "rhel-10": "10.2"})
    assert streams_of(setup, "4.22-10") == ("10.2", "4.22-10", {"4.22-10": "10.2"})
    for unready in (None, "5.0"):
        with pytest.raises(Unavailable, match=r"no release of the stream 5\.0-9"):
            setup.mirror.config_map(unready)
    setup.set_ready("9.8", "9.9", "10.2")
    everything = {"4.22-9": "9.8", "5.0-9": "9.9", "4.22-10": "10.2"}
    assert streams_of(setup, None) == ("9.8", "4.22-9", everything)
    with pytest.raises(NotFound, match=r"there are 4\.22-9, 5\.0-9, 4\.22-10"):
        setup.mirror.config_map("4.21")


def test_config_map_of_no_stream_is_not_found(setup: Setup) -> None:
    with pytest.raises(NotFound, match="there are none"):
        setup.mirror.config_map(None)


def test_document_is_rendered_again_when_the_stream_says_more(setup: Setup) -> None:
    desired = release("2")
    setup.set_desired(desired)
    setup.set_ready("2")
    image = setup.mirror.document("stable")
    assert setup.mirror.document("stable") is image
    images: dict[str, object] = {"images": {"aws": {"regions": {}}}}
    more = attrs.evolve(desired.release, original={**desired.release.original, **images})
    setup.set_desired(attrs.evolve(desired, release=more))
    architectures = json.loads(body(setup.mirror.document("stable")))["architectures"]
    assert architectures["x86_64"]["images"] == images["images"]
    assert setup.prepared == ["2"]


def test_iso_and_parts_are_ranges_of_the_base_image(setup: Setup) -> None:
    setup.set_desired(release("2"))
    setup.set_ready("2")
    base = setup.bases["2", "x86_64"]
    get = partial(setup.mirror.file, "stable", "2", "x86_64")
    iso, kernel = get("fcos-2-live-iso.x86_64.iso"), get("kernel")
    assert iso.extents.extents == (FileExtent(base.file, 0, 1000),)
    assert (iso.is_iso, iso.file_name, iso.modified) == (True, "fcos-2-live-iso.x86_64.iso", LAYOUT.created)
    assert kernel.extents.extents == (FileExtent(base.file, 100, 50),)
    assert (kernel.is_iso, kernel.is_public) == (False, True)
    assert iso.etag != kernel.etag


def test_signature_is_the_original_or_not_found(setup: Setup) -> None:
    setup.set_desired(release("2"))
    setup.set_ready("2")
    get = partial(setup.mirror.file, "stable", "2", "x86_64")
    assert body(get("fcos-2-live-iso.x86_64.iso.sig")) == SIGNATURE
    with pytest.raises(NotFound, match="no signature of kernel"):
        get("kernel.sig")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("next", "2", "x86_64", "kernel"), NotFound),
        (("stable", "3", "x86_64", "kernel"), NotFound),
        (("stable", "2", "s390x", "kernel"), NotFound),
        (("stable", "2", "x86_64", "rootfs"), NotFound),
        (("stable", "1", "x86_64", "kernel"), Unavailable),
    ],
)
def test_unknown_file_is_not_found_and_release_not_ready_unavailable(
    setup: Setup, arguments: tuple[str, str, str, str], error: type[ImageServiceError]
) -> None:
    setup.set_desired(release("2"), release("1"))
    setup.set_ready("2")
    with pytest.raises(error):
        setup.mirror.file(*arguments)


def test_release_is_prepared_once_for_each_open_base_image(setup: Setup) -> None:
    setup.set_desired(release("2"), release("1"))
    setup.set_ready("2")
    setup.mirror.update()
    assert setup.prepared == ["2"]
    setup.set_ready("2")  # opened again, as after another download
    assert setup.prepared == ["2", "2"]


def test_pending_signature_is_fetched_by_the_next_update(setup: Setup) -> None:
    setup.set_desired(release("2"))
    setup.signature = None
    setup.set_ready("2")
    assert setup.document() == {"x86_64": "2"}
    setup.signature = SIGNATURE
    setup.mirror.update()
    assert body(setup.mirror.file("stable", "2", "x86_64", "fcos-2-live-iso.x86_64.iso.sig")) == SIGNATURE
    setup.mirror.update()
    assert setup.prepared == ["2", "2"]


def test_iso_with_another_digest_than_the_stream_lists_is_not_mirrored(setup: Setup) -> None:
    setup.set_desired(release("2"))
    setup.bases = {("2", "x86_64"): opened("2", sha256="f" * 64)}
    setup.mirror.update()
    assert setup.prepared == []
    with pytest.raises(Unavailable):
        setup.mirror.document("stable")


def test_release_whose_iso_is_gone_is_unavailable(setup: Setup) -> None:
    setup.set_desired(release("2"))
    setup.set_ready("2")
    setup.bases = {}
    with pytest.raises(Unavailable):
        setup.mirror.document("stable")
    with pytest.raises(Unavailable):
        setup.mirror.file("stable", "2", "x86_64", "kernel")


@ensure_deferred
async def test_release_that_is_not_desired_any_more_is_dropped_while_being_prepared(setup: Setup) -> None:
    setup.waiting = []
    setup.set_desired(release("2"), release("1"))
    setup.set_ready("1", "2")
    setup.mirror.update()
    assert len(setup.waiting) == 2
    setup.set_desired(release("2"))
    for go_on in setup.waiting:
        go_on()
    await setup.mirror.wait_until_idle()
    setup.set_desired(release("2"), release("1"))
    assert setup.document("stable-2") == {"x86_64": "2"}
    with pytest.raises(Unavailable):
        setup.document("stable-1")
    setup.set_desired(release("1"))
    setup.waiting = None
    setup.mirror.update()
    setup.set_desired(release("2"), release("1"))
    with pytest.raises(Unavailable):
        setup.document("stable-2")


@pytest.mark.parametrize("fault", [Unavailable("changed"), OSError(5, "broken"), Interrupted()])
def test_failed_preparation_is_retried_by_the_next_update(setup: Setup, fault: Exception) -> None:
    setup.set_desired(release("2"), release("1"))
    setup.fault = fault
    setup.set_ready("2", "1")
    setup.fault = None
    setup.mirror.update()
    assert setup.prepared == ["2", "1", "2", "1"]
    assert setup.document() == {"x86_64": "2"}


def test_unexpected_error_is_logged(setup: Setup, logged_failures: LoggedFailures) -> None:
    setup.set_desired(release("2"))
    setup.fault = KeyError("ours")
    setup.set_ready("2")
    assert len(logged_failures.flush(KeyError)) == 1


@pytest.mark.parametrize(
    ("ref", "file_name"),
    [
        (StreamDocumentRef("stable"), "stable.json"),
        (StreamDocumentRef("stable-2"), "stable-2.json"),
        (StreamConfigMapRef("stable"), "configmap.yaml"),
        (StreamFileRef("stable", "2", "x86_64", "kernel"), "kernel"),
    ],
)
def test_each_reference_finds_its_file(setup: Setup, ref: StreamRef, file_name: str) -> None:
    setup.set_desired(release("2"))
    setup.set_ready("2")
    assert setup.mirror.find_boot_image(ref).file_name == file_name
