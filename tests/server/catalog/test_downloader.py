from __future__ import annotations

import json
import resource
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import Unavailable
from image_service.server.catalog.download import partial_file
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.download.partial_file import state_path
from image_service.settings.settings import Settings
from tests.server.catalog.origin import Origin, ReceivedRequest, Reply, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BODY = bytes(range(256)) * 4096
OTHER = BODY[::-1]
HALF = len(BODY) // 2
LATE = "Sun, 06 Nov 1994 08:49:38 GMT"


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    """The partial file."""
    return tmp_path / ".rhcos-x.iso.part"


def make_client(**environ: str) -> OriginClient:
    settings = Settings.from_environment({"DATA_DIR": "/tmp", **environ}, standalone=True)
    return OriginClient.from_settings(settings.download)


def fetch(
    url: str, partial: Path, progress: Callable[[int, int | None], None] = lambda *_: None, **environ: str
) -> bytes:
    download_file(make_client(**environ), url, partial, Interruption(), progress)
    return partial.read_bytes()


def fetch_half(origin: Origin, partial: Path, file: Resource) -> str:
    """Fetch a file whose first response is truncated; return the URL."""
    file.cuts.append(HALF)
    url = origin.serve("/a.iso", file)
    with pytest.raises(Unavailable, match=f"cannot fetch .*sent {HALF} of {len(BODY)} bytes"):
        fetch(url, partial)
    assert partial.read_bytes() == BODY[:HALF]
    return url


def conditions(request: ReceivedRequest) -> dict[str, str]:
    names = ("Range", "If-Match", "If-Unmodified-Since")
    return {name: value for name in names if (value := request.headers[name]) is not None}


def reply_next(origin: Origin, reply: Reply) -> None:
    """Send this reply to the next request only."""
    origin.replies["/a.iso"].insert(0, reply)


# Resuming.


@pytest.mark.parametrize(
    ("file", "precondition"),
    [
        (Resource(BODY), {"If-Match": '"1"'}),
        (Resource(BODY, etag=""), {"If-Unmodified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}),
        (Resource(BODY, etag='W/"1"'), {"If-Unmodified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}),
    ],
    ids=["strong tag", "date", "weak tag and date"],
)
def test_truncated_download_is_resumed(
    origin: Origin, partial: Path, file: Resource, precondition: Mapping[str, str]
) -> None:
    url = fetch_half(origin, partial, file)
    assert fetch(url, partial) == BODY
    assert [conditions(request) for request in origin.requests] == [
        {},
        {"Range": f"bytes={HALF}-", **precondition},
    ]


def test_reset_download_is_resumed(origin: Origin, partial: Path) -> None:
    reset = Reply(BODY[:HALF], promised=len(BODY), headers={"ETag": '"1"'}, reset=True)
    url = origin.serve("/a.iso", reset, Resource(BODY))
    with pytest.raises(Unavailable):
        fetch(url, partial)
    assert fetch(url, partial) == BODY


def test_truncated_chunked_download_is_resumed(origin: Origin, partial: Path) -> None:
    chunked = {"Transfer-Encoding": "chunked", "ETag": '"1"'}
    cut = Reply(b"3\r\n" + BODY[:3] + b"\r\n9\r\n" + BODY[3:6], promised=-1, headers=chunked)
    url = origin.serve("/a.iso", cut, Resource(BODY))
    with pytest.raises(Unavailable):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[1])["If-Match"] == '"1"'


def test_download_is_resumed_many_times(origin: Origin, partial: Path) -> None:
    url = origin.serve("/a.iso", Resource(BODY, cuts=[10_000] * 9))
    for _ in range(9):
        with pytest.raises(Unavailable):
            fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[-1])["Range"] == "bytes=90000-"


@pytest.mark.parametrize(
    "file",
    [
        Resource(BODY, etag="", modified=""),
        Resource(BODY, etag='W/"1"', modified=""),
        Resource(BODY, etag="unquoted", modified="long ago"),
    ],
    ids=["none", "weak", "malformed"],
)
def test_download_without_strong_validator_restarts(origin: Origin, partial: Path, file: Resource) -> None:
    url = fetch_half(origin, partial, file)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[1]) == {}


@pytest.mark.parametrize("second", [True, False], ids=["of now", "of a second ago"])
def test_date_of_the_same_second_is_no_strong_validator(
    origin: Origin, partial: Path, *, second: bool
) -> None:
    date = {"Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT", "Date": LATE}
    if second:
        date["Last-Modified"] = LATE
    url = origin.serve("/a.iso", Reply(BODY[:9], promised=10, headers=date, own_date=True))
    for _ in range(2):
        with pytest.raises(Unavailable):
            fetch(url, partial)
    assert ("Range" in conditions(origin.requests[1])) is not second


def test_part_of_another_url_is_discarded(origin: Origin, partial: Path) -> None:
    fetch_half(origin, partial, Resource(BODY))
    assert fetch(origin.serve("/b.iso", Resource(OTHER)), partial) == OTHER
    assert conditions(origin.requests[1]) == {}


# Downloads that cannot be resumed.


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=412),
        Reply(status=416, headers={"Content-Range": f"bytes */{HALF - 1}"}),
        Reply(status=416, headers={"Content-Range": f"bytes */{HALF}", "ETag": '"2"'}),
        Reply(status=416),
        Reply(status=304),
        Reply(OTHER[HALF:], status=206, headers={"ETag": '"1"'}),
        Reply(
            OTHER[HALF:],
            status=206,
            headers={"ETag": '"1"', "Content-Type": "multipart/byteranges; boundary=x"},
        ),
        *(
            Reply(OTHER[HALF:], status=206, headers={"Content-Range": described, "ETag": tag})
            for described, tag in [
                (f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}", '"2"'),
                (f"bytes {HALF}-{len(BODY) - 1}/{len(BODY) + 1}", '"1"'),
                (f"bytes {HALF}-{len(BODY) - 2}/{len(BODY)}", '"1"'),
                (f"bytes {HALF}-{len(BODY)}/{len(BODY)}", '"1"'),
                (f"bytes {HALF - 1}-{len(BODY) - 2}/{len(BODY)}", '"1"'),
                (f"bytes {HALF}-{len(BODY) - 1}/{HALF}", '"1"'),
                (f"pages {HALF}-{len(BODY) - 1}/{len(BODY)}", '"1"'),
            ]
        ),
        Reply(
            OTHER[HALF:],
            status=206,
            headers={"Content-Range": f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}"},
        ),
    ],
)
def test_unexpected_response_to_a_range_restarts(origin: Origin, partial: Path, reply: Reply) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    reply_next(origin, reply)
    assert fetch(url, partial) == BODY
    assert "Range" in conditions(origin.requests[1])
    assert conditions(origin.requests[2]) == {}
    assert len(origin.requests) == 3


@pytest.mark.parametrize("etag", ['"2"', ""])
def test_changed_file_restarts(origin: Origin, partial: Path, etag: str) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    origin.replies["/a.iso"] = [Resource(OTHER, etag=etag, modified=LATE)]
    assert fetch(url, partial) == OTHER
    assert len(origin.requests) == 3


def test_200_to_a_range_replaces_the_part(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    reply_next(origin, Reply(OTHER, headers={"ETag": '"1"'}))
    assert fetch(url, partial) == OTHER
    assert len(origin.requests) == 2


@pytest.mark.parametrize(
    "reply",
    [
        Reply(BODY, status=206, headers={"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}),
        Reply(status=304),
        Reply(status=412),
        Reply(status=416, headers={"Content-Range": "bytes */0"}),
    ],
)
def test_partial_response_without_a_range_is_refused(origin: Origin, partial: Path, reply: Reply) -> None:
    with pytest.raises(Unavailable, match="the origin's responses do not match the requested ranges"):
        fetch(origin.serve("/a.iso", reply), partial)
    assert len(origin.requests) == 2
    assert not partial.exists()


def test_shorter_range_than_requested_is_kept_and_resumed(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    fields = {"Content-Range": f"bytes {HALF}-{HALF + 9}/{len(BODY)}", "ETag": '"1"'}
    reply_next(origin, Reply(BODY[HALF : HALF + 10], status=206, headers=fields))
    with pytest.raises(Unavailable, match=f"sent up to {HALF + 10} of {len(BODY)} bytes"):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[-1])["Range"] == f"bytes={HALF + 10}-"


def test_more_bytes_than_promised_restart(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    fields = {"Content-Range": f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}", "ETag": '"1"'}
    reply_next(origin, Reply(BODY, status=206, headers=fields, promised=-1))
    with pytest.raises(Unavailable, match=f"sent more than the {len(BODY)} bytes that it promised"):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[-1]) == {}


def test_part_is_kept_while_the_origin_is_unavailable(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    reply_next(origin, Reply(status=503, headers={"Retry-After": "9"}))
    with pytest.raises(Unavailable) as refusal:
        fetch(url, partial)
    assert refusal.value.retry_after_seconds == 9
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[-1])["Range"] == f"bytes={HALF}-"


# Complete files, and states that do not fit the file.


def test_complete_file_needs_no_request(origin: Origin, partial: Path) -> None:
    url = origin.serve("/a.iso", Resource(BODY))
    for _ in range(2):
        assert fetch(url, partial) == BODY
    assert len(origin.requests) == 1


def test_416_at_the_end_completes_the_file(origin: Origin, partial: Path) -> None:
    chunked = {"Transfer-Encoding": "chunked", "ETag": '"1"'}
    cut = Reply(b"100000\r\n" + BODY + b"\r\n", promised=-1, headers=chunked)
    url = origin.serve("/a.iso", cut, Resource(BODY))
    assert len(BODY) == 0x100000
    with pytest.raises(Unavailable):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[1])["Range"] == f"bytes={len(BODY)}-"
    assert len(origin.requests) == 2


def test_unsynced_bytes_are_discarded(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    with partial.open("ab") as file:
        file.write(bytes(len(BODY)))  # as a crash of the machine may leave it
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[1])["Range"] == f"bytes={HALF}-"


def test_file_shorter_than_its_state_restarts(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    with partial.open("r+b") as file:
        file.truncate(HALF - 1)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[1]) == {}


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"length": -1},
        {"length": len(BODY) + 1},
        {"length": "9"},
        {"length": True},
        {"etag": 1},
        {"total": "9"},
        {"complete": "yes"},
        {"source": 1},
        {"more": 1},
    ],
)
def test_download_with_damaged_state_starts_over(
    origin: Origin, partial: Path, change: Mapping[str, object] | None
) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    state = state_path(partial)
    damaged = "[" if change is None else json.dumps({**json.loads(state.read_bytes()), **change})
    state.write_text(damaged)
    assert fetch(url, partial) == BODY
    assert conditions(origin.requests[1]) == {}


def test_state_is_synced_before_progress_is_reported(
    origin: Origin, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_file, "SYNC_BYTES", 1)
    synced = []

    def progress(done: int, total: int | None) -> None:
        assert total == len(BODY)
        synced.append((json.loads(state_path(partial).read_bytes())["length"], done))

    fetch(origin.serve("/a.iso", Resource(BODY)), partial, progress)
    assert synced[0] == (0, 0)
    assert synced[-1] == (len(BODY), len(BODY))
    assert all(length == done for length, done in synced)


def test_url_is_in_no_error_and_no_state(origin: Origin, partial: Path) -> None:
    fetch_half(origin, partial, Resource(BODY))
    with pytest.raises(Unavailable) as refusal:
        fetch(origin.serve("/b.iso", Reply(BODY[:1], promised=2)) + "?signature=top-secret", partial)
    assert "top-secret" not in str(refusal.value)
    assert "top-secret" not in state_path(partial).read_text()


# Early ends.


def test_full_disk_raises_oserror_and_is_resumed(origin: Origin, partial: Path) -> None:
    url, limits = origin.serve("/a.iso", Resource(BODY)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            fetch(url, partial)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fetch(url, partial) == BODY


def test_download_stopped_by_its_progress_callback_is_resumed(origin: Origin, partial: Path) -> None:
    def progress(done: int, total: int | None) -> None:
        assert total == len(BODY)
        if done:
            raise Unavailable("no room")

    url = origin.serve("/a.iso", Resource(BODY))
    with pytest.raises(Unavailable, match="no room"):
        fetch(url, partial, progress)
    assert fetch(url, partial) == BODY
    assert "Range" in conditions(origin.requests[1])


def test_interrupted_download_is_resumed(origin: Origin, partial: Path) -> None:
    interruption = Interruption()
    url = origin.serve("/a.iso", Resource(BODY))
    with pytest.raises(Interrupted):
        download_file(
            make_client(),
            url,
            partial,
            interruption,
            lambda done, _: interruption.interrupt() if done else None,
        )
    assert fetch(url, partial) == BODY
    assert "Range" in conditions(origin.requests[1])


# Property: whatever the origin does, the file is one of its versions, or none.

VERSIONS = [bytes([number]) * size for number, size in enumerate((40_000, 40_000, 30_000, 1))]
BEHAVIORS = st.lists(
    st.tuples(
        st.sampled_from(["valid", "no ranges", "stale 206", "lies about length", "error", "chunked"]),
        st.integers(0, len(VERSIONS) - 1),
        st.one_of(st.none(), st.integers(0, 40_000)),
    ),
    max_size=8,
)


@attrs.define
class Hostile:
    """An origin that answers each request differently, and in the end correctly."""

    plan: list[tuple[str, int, int | None]]

    def __call__(self, request: ReceivedRequest) -> Reply:
        behavior, version, cut = self.plan.pop(0) if self.plan else ("valid", 0, None)
        file = Resource(VERSIONS[version], etag=f'"{version}"', cuts=[] if cut is None else [cut])
        whole = {"ETag": file.etag}
        if behavior == "error":
            return Reply(status=500)
        if behavior == "lies about length":
            return Reply(file.body, headers=whole, promised=len(file.body) + 1)
        if behavior == "chunked":
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(file.body), file.body)
            fields = {"Transfer-Encoding": "chunked", **whole}
            return Reply(chunk[:cut], headers=fields, promised=-1)
        if behavior == "no ranges":
            del request.headers["Range"]
        if behavior in {"stale 206", "no ranges"}:
            del request.headers["If-Match"]
        return file(request)


@given(BEHAVIORS)
def test_hostile_origin_never_mixes_versions(origin: Origin, plan: list[tuple[str, int, int | None]]) -> None:
    path = f"/{next(PATHS)}.iso"
    url = origin.serve(path, Hostile(list(plan)))
    before = len(origin.requests)
    with TemporaryDirectory() as directory:
        for _ in range(len(plan) + 1):
            partial = Path(directory) / ".rhcos-x.iso.part"
            try:
                assert fetch(url, partial) in VERSIONS
                break
            except Unavailable:
                continue
        else:
            pytest.fail("the download never completed, though the origin became valid")
    assert len(origin.requests) - before <= 2 * len(plan) + 2


PATHS = count()
