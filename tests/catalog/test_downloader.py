from __future__ import annotations

import json
import resource
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from image_service.catalog.download import partial_file
from image_service.catalog.download.downloader import Downloader
from image_service.catalog.download.http_get import HttpGet
from image_service.catalog.download.partial_file import state_path
from image_service.concurrency.interruption import Interrupted, Interruption
from image_service.errors import Unavailable
from image_service.settings.settings import Settings
from tests.catalog.origin import Answer, Asked, Origin, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BODY = bytes(range(256)) * 4096
OTHER = BODY[::-1]
HALF = len(BODY) // 2
LATE = "Sun, 06 Nov 1994 08:49:38 GMT"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    """Where the file is fetched to."""
    return tmp_path / ".rhcos-x.iso.part"


def downloader(**environ: str) -> Downloader:
    settings = Settings.from_environment({"DATA_DIR": "/tmp", **environ}, standalone=True)
    return Downloader(HttpGet.from_settings(settings.download))


def fetch(
    url: str, partial: Path, progress: Callable[[int, int | None], None] = lambda *_: None, **environ: str
) -> bytes:
    downloader(**environ).fetch(url, partial, Interruption(), progress)
    return partial.read_bytes()


def fetch_half(origin: Origin, partial: Path, file: Resource) -> str:
    """Fetch what has a cut in its middle; give the URL."""
    file.cuts.append(HALF)
    url = origin.serve("/a.iso", file)
    with pytest.raises(Unavailable, match=f"cannot fetch .*sent {HALF} of {len(BODY)} bytes"):
        fetch(url, partial)
    assert partial.read_bytes() == BODY[:HALF]
    return url


def conditions(asked: Asked) -> dict[str, str]:
    names = ("Range", "If-Match", "If-Unmodified-Since")
    return {name: value for name in names if (value := asked.headers[name]) is not None}


def instead(origin: Origin, answer: Answer) -> None:
    """Answer the next request so, and then as before."""
    origin.answers["/a.iso"].insert(0, answer)


# Going on.


@pytest.mark.parametrize(
    ("file", "precondition"),
    [
        (Resource(BODY), {"If-Match": '"1"'}),
        (Resource(BODY, etag=""), {"If-Unmodified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}),
        (Resource(BODY, etag='W/"1"'), {"If-Unmodified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}),
    ],
    ids=["strong tag", "date", "weak tag and date"],
)
def test_goes_on_after_a_break(
    origin: Origin, partial: Path, file: Resource, precondition: Mapping[str, str]
) -> None:
    url = fetch_half(origin, partial, file)
    assert fetch(url, partial) == BODY
    assert [conditions(asked) for asked in origin.asked] == [
        {},
        {"Range": f"bytes={HALF}-", **precondition},
    ]


def test_goes_on_after_a_reset(origin: Origin, partial: Path) -> None:
    reset = Answer(BODY[:HALF], promised=len(BODY), headers={"ETag": '"1"'}, reset=True)
    url = origin.serve("/a.iso", reset, Resource(BODY))
    with pytest.raises(Unavailable):
        fetch(url, partial)
    assert fetch(url, partial) == BODY


def test_goes_on_with_what_was_sent_without_length(origin: Origin, partial: Path) -> None:
    chunked = {"Transfer-Encoding": "chunked", "ETag": '"1"'}
    cut = Answer(b"3\r\n" + BODY[:3] + b"\r\n9\r\n" + BODY[3:6], promised=-1, headers=chunked)
    url = origin.serve("/a.iso", cut, Resource(BODY))
    with pytest.raises(Unavailable):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[1])["If-Match"] == '"1"'


def test_goes_on_after_many_breaks(origin: Origin, partial: Path) -> None:
    url = origin.serve("/a.iso", Resource(BODY, cuts=[10_000] * 9))
    for _ in range(9):
        with pytest.raises(Unavailable):
            fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[-1])["Range"] == "bytes=90000-"


@pytest.mark.parametrize(
    "file",
    [
        Resource(BODY, etag="", modified=""),
        Resource(BODY, etag='W/"1"', modified=""),
        Resource(BODY, etag="unquoted", modified="long ago"),
    ],
    ids=["none", "weak", "unsound"],
)
def test_begins_again_where_nothing_can_be_relied_on(origin: Origin, partial: Path, file: Resource) -> None:
    url = fetch_half(origin, partial, file)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[1]) == {}


@pytest.mark.parametrize("second", [True, False], ids=["of now", "of a second ago"])
def test_relies_on_no_date_of_now(origin: Origin, partial: Path, *, second: bool) -> None:
    date = {"Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT", "Date": LATE}
    if second:
        date["Last-Modified"] = LATE
    url = origin.serve("/a.iso", Answer(BODY[:9], promised=10, headers=date, own_date=True))
    for _ in range(2):
        with pytest.raises(Unavailable):
            fetch(url, partial)
    assert ("Range" in conditions(origin.asked[1])) is not second


def test_does_not_go_on_with_another_url(origin: Origin, partial: Path) -> None:
    fetch_half(origin, partial, Resource(BODY))
    assert fetch(origin.serve("/b.iso", Resource(OTHER)), partial) == OTHER
    assert conditions(origin.asked[1]) == {}


# What cannot be gone on with.


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=412),
        Answer(status=416, headers={"Content-Range": f"bytes */{HALF - 1}"}),
        Answer(status=416, headers={"Content-Range": f"bytes */{HALF}", "ETag": '"2"'}),
        Answer(status=416),
        Answer(status=304),
        Answer(OTHER[HALF:], status=206, headers={"ETag": '"1"'}),
        Answer(
            OTHER[HALF:],
            status=206,
            headers={"ETag": '"1"', "Content-Type": "multipart/byteranges; boundary=x"},
        ),
        *(
            Answer(OTHER[HALF:], status=206, headers={"Content-Range": described, "ETag": tag})
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
        Answer(
            OTHER[HALF:],
            status=206,
            headers={"Content-Range": f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}"},
        ),
    ],
)
def test_begins_again_when_the_answer_does_not_fit(origin: Origin, partial: Path, answer: Answer) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    instead(origin, answer)
    assert fetch(url, partial) == BODY
    assert "Range" in conditions(origin.asked[1])
    assert conditions(origin.asked[2]) == {}
    assert len(origin.asked) == 3


@pytest.mark.parametrize("etag", ['"2"', ""])
def test_begins_again_when_the_file_has_changed(origin: Origin, partial: Path, etag: str) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    origin.answers["/a.iso"] = [Resource(OTHER, etag=etag, modified=LATE)]
    assert fetch(url, partial) == OTHER
    assert len(origin.asked) == 3


def test_takes_the_whole_from_who_knows_no_ranges(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    instead(origin, Answer(OTHER, headers={"ETag": '"1"'}))
    assert fetch(url, partial) == OTHER
    assert len(origin.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        Answer(BODY, status=206, headers={"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}),
        Answer(status=304),
        Answer(status=412),
        Answer(status=416, headers={"Content-Range": "bytes */0"}),
    ],
)
def test_refuses_an_answer_to_what_was_not_asked(origin: Origin, partial: Path, answer: Answer) -> None:
    with pytest.raises(Unavailable, match="the answers do not fit what was asked for"):
        fetch(origin.serve("/a.iso", answer), partial)
    assert len(origin.asked) == 2
    assert not partial.exists()


def test_takes_less_than_it_asked_for_and_asks_for_the_rest(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    fields = {"Content-Range": f"bytes {HALF}-{HALF + 9}/{len(BODY)}", "ETag": '"1"'}
    instead(origin, Answer(BODY[HALF : HALF + 10], status=206, headers=fields))
    with pytest.raises(Unavailable, match=f"sent up to {HALF + 10} of {len(BODY)} bytes"):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[-1])["Range"] == f"bytes={HALF + 10}-"


def test_takes_no_more_than_the_whole(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    fields = {"Content-Range": f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}", "ETag": '"1"'}
    instead(origin, Answer(BODY, status=206, headers=fields, promised=-1))
    with pytest.raises(Unavailable, match=f"sent more than the {len(BODY)} bytes that it promised"):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[-1]) == {}


def test_keeps_what_there_is_while_the_origin_is_away(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    instead(origin, Answer(status=503, headers={"Retry-After": "9"}))
    with pytest.raises(Unavailable) as refusal:
        fetch(url, partial)
    assert refusal.value.retry_after_seconds == 9
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[-1])["Range"] == f"bytes={HALF}-"


# A file that is complete, and a process that does not know it.


def test_asks_for_nothing_when_all_is_there(origin: Origin, partial: Path) -> None:
    url = origin.serve("/a.iso", Resource(BODY))
    for _ in range(2):
        assert fetch(url, partial) == BODY
    assert len(origin.asked) == 1


def test_takes_the_whole_for_the_whole_when_nothing_follows_it(origin: Origin, partial: Path) -> None:
    chunked = {"Transfer-Encoding": "chunked", "ETag": '"1"'}
    cut = Answer(b"100000\r\n" + BODY + b"\r\n", promised=-1, headers=chunked)
    url = origin.serve("/a.iso", cut, Resource(BODY))
    assert len(BODY) == 0x100000
    with pytest.raises(Unavailable):
        fetch(url, partial)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[1])["Range"] == f"bytes={len(BODY)}-"
    assert len(origin.asked) == 2


def test_trusts_nothing_that_was_not_known_to_be_on_the_disk(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    with partial.open("ab") as file:
        file.write(bytes(len(BODY)))  # as a crash of the machine may leave it
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[1])["Range"] == f"bytes={HALF}-"


def test_misses_what_was_known_to_be_on_the_disk(origin: Origin, partial: Path) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    with partial.open("r+b") as file:
        file.truncate(HALF - 1)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[1]) == {}


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
def test_begins_again_when_the_memory_is_damaged(
    origin: Origin, partial: Path, change: Mapping[str, object] | None
) -> None:
    url = fetch_half(origin, partial, Resource(BODY))
    memory = state_path(partial)
    damaged = "[" if change is None else json.dumps({**json.loads(memory.read_bytes()), **change})
    memory.write_text(damaged)
    assert fetch(url, partial) == BODY
    assert conditions(origin.asked[1]) == {}


def test_remembers_as_it_goes(origin: Origin, partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_file, "_SYNC_BYTES", 1)
    remembered = []

    def progress(done: int, total: int | None) -> None:
        assert total == len(BODY)
        remembered.append((json.loads(state_path(partial).read_bytes())["length"], done))

    fetch(origin.serve("/a.iso", Resource(BODY)), partial, progress)
    assert remembered[0] == (0, 0)
    assert remembered[-1] == (len(BODY), len(BODY))
    assert all(length == done for length, done in remembered)


def test_tells_nothing_of_the_url(origin: Origin, partial: Path) -> None:
    fetch_half(origin, partial, Resource(BODY))
    with pytest.raises(Unavailable) as refusal:
        fetch(origin.serve("/b.iso", Answer(BODY[:1], promised=2)) + "?signature=top-secret", partial)
    assert "top-secret" not in str(refusal.value)
    assert "top-secret" not in state_path(partial).read_text()


# The end, early.


def test_leaves_a_full_disk_to_the_caller(origin: Origin, partial: Path) -> None:
    url, limits = origin.serve("/a.iso", Resource(BODY)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            fetch(url, partial)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fetch(url, partial) == BODY


def test_ends_by_what_progress_raises_and_goes_on_later(origin: Origin, partial: Path) -> None:
    def progress(done: int, total: int | None) -> None:
        assert total == len(BODY)
        if done:
            raise Unavailable("no room")

    url = origin.serve("/a.iso", Resource(BODY))
    with pytest.raises(Unavailable, match="no room"):
        fetch(url, partial, progress)
    assert fetch(url, partial) == BODY
    assert "Range" in conditions(origin.asked[1])


def test_is_interrupted_and_goes_on_later(origin: Origin, partial: Path) -> None:
    interruption = Interruption()
    url = origin.serve("/a.iso", Resource(BODY))
    with pytest.raises(Interrupted):
        downloader().fetch(
            url, partial, interruption, lambda done, _: interruption.interrupt() if done else None
        )
    assert fetch(url, partial) == BODY
    assert "Range" in conditions(origin.asked[1])


# Whatever an origin does: the file is one of those that it had, or there is none.

VERSIONS = [bytes([number]) * size for number, size in enumerate((40_000, 40_000, 30_000, 1))]
BEHAVIOURS = st.lists(
    st.tuples(
        st.sampled_from(["sound", "no ranges", "stale 206", "lies about length", "error", "chunked"]),
        st.integers(0, len(VERSIONS) - 1),
        st.one_of(st.none(), st.integers(0, 40_000)),
    ),
    max_size=8,
)


@attrs.define
class Hostile:
    """An origin that does something else with each request, and in the end is sound."""

    plan: list[tuple[str, int, int | None]]

    def __call__(self, asked: Asked) -> Answer:
        behaviour, version, cut = self.plan.pop(0) if self.plan else ("sound", 0, None)
        file = Resource(VERSIONS[version], etag=f'"{version}"', cuts=[] if cut is None else [cut])
        whole = {"ETag": file.etag}
        if behaviour == "error":
            return Answer(status=500)
        if behaviour == "lies about length":
            return Answer(file.body, headers=whole, promised=len(file.body) + 1)
        if behaviour == "chunked":
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(file.body), file.body)
            fields = {"Transfer-Encoding": "chunked", **whole}
            return Answer(chunk[:cut], headers=fields, promised=-1)
        if behaviour == "no ranges":
            del asked.headers["Range"]
        if behaviour in {"stale 206", "no ranges"}:
            del asked.headers["If-Match"]
        return file(asked)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BEHAVIOURS)
def test_a_file_is_one_of_those_that_the_origin_had(
    origin: Origin, plan: list[tuple[str, int, int | None]]
) -> None:
    path = f"/{next(PATHS)}.iso"
    url = origin.serve(path, Hostile(list(plan)))
    before = len(origin.asked)
    with TemporaryDirectory() as directory:
        for _ in range(len(plan) + 1):
            partial = Path(directory) / ".rhcos-x.iso.part"
            try:
                assert fetch(url, partial) in VERSIONS
                break
            except Unavailable:
                continue
        else:
            pytest.fail("it did not end, though the origin became sound")
    assert len(origin.asked) - before <= 2 * len(plan) + 2


PATHS = count()
