from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.streams import stream_state
from image_service.server.streams.streams import RETRY_SECONDS, Streams
from image_service.settings.base_images import DownloadSettings
from image_service.settings.stream_sources import StreamSource
from tests.core.families.coreos.streams import SHA256, config_map, stream, text
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.catalog.origin import Origin, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.families.coreos.stream_metadata import Release
    from tests.server.catalog.lines import Lines

HOUR = 3600.0
TAG = {"ETag": '"1"', "Last-Modified": "Tue, 21 Jul 2026 14:07:12 GMT"}


@attrs.define(eq=False)
class Setup:
    """Makes streams over one directory, and stops them at the end."""

    reactor: EPollReactor
    pool: ThreadPool
    origin: Origin
    directory: Path
    clock: Clock = attrs.field(factory=Clock)
    changes: int = 0
    made: list[Streams] = attrs.field(factory=list)

    def make(self, *sources: StreamSource, fetches: bool = True) -> Streams:
        streams = Streams(
            self.clock,
            lambda work: deferToThreadPool(self.reactor, self.pool, work),
            OriginClient.from_settings(DownloadSettings()),
            sources or [self.source()],
            self.directory,
            refresh_seconds=HOUR,
            fetches=fetches,
            jitter=lambda low, high: (low + high) / 2,
        )
        self.made.append(streams)
        return streams

    async def started(self, *sources: StreamSource) -> Streams:
        streams = self.make(*sources)
        await streams.start(self.changed)
        await streams.wait_until_idle()
        return streams

    def source(self, name: str = "stable", **changes: Any) -> StreamSource:
        url = self.origin.url(f"/{name}.json")
        return attrs.evolve(StreamSource(name, url, ("x86_64",), 2), **changes)

    def serve(self, *documents: object, name: str = "stable", headers: dict[str, str] | None = None) -> None:
        self.origin.serve(f"/{name}.json", *(reply(document, headers) for document in documents))

    async def later(self, streams: Streams, seconds: float = HOUR) -> None:
        self.clock.advance(seconds)
        await streams.wait_until_idle()

    def changed(self) -> None:
        self.changes += 1


def reply(document: object, headers: dict[str, str] | None = None) -> Reply:
    return document if isinstance(document, Reply) else Reply(text(document), headers=headers or {})


@async_fixture
async def setup(reactor: EPollReactor, origin: Origin, tmp_path: Path) -> AsyncIterator[Setup]:
    pool = ThreadPool(0, 1, "streams")
    pool.start()
    made = Setup(reactor, pool, origin, tmp_path)
    yield made
    for streams in made.made:
        await streams.stop()
    assert made.clock.getDelayedCalls() == []
    pool.stop()


def versions(streams: Streams) -> list[str]:
    return [desired.release.version for desired in streams.desired]


def moved(streams: Streams, is_ready: Callable[[Release, str | None], bool]) -> Mapping[tuple[str, str], str]:
    streams.move_aliases(is_ready)
    return streams.aliases


def among(*ready: str) -> Callable[[Release, str | None], bool]:
    return lambda release, _: release.version in ready


@ensure_deferred
async def test_releases_of_a_stream_are_desired(setup: Setup) -> None:
    setup.serve(stream("44.1", "x86_64", "aarch64", origin=setup.origin.url("")))
    streams = await setup.started(setup.source(architectures=("aarch64", "x86_64")))
    aarch64, x86_64 = streams.desired
    assert (x86_64.stream, aarch64.release.architecture) == ("stable", "aarch64")
    entry = x86_64.entry
    assert (entry.version, entry.cpu_architecture, entry.openshift_versions) == (
        "44.1",
        "x86_64",
        ("stable",),
    )
    assert entry.url == setup.origin.url("/44.1/x86_64/fcos-44.1-live-iso.x86_64.iso")
    assert (entry.sha256, entry.signature_url) == (SHA256, f"{entry.url}.sig")
    assert setup.changes == 1


def of_version(setup: Setup, name: str, **changes: Any) -> StreamSource:
    """Return a stream of a ConfigMap of OpenShift 4.22."""
    url = setup.origin.url("/streams.json")
    return setup.source(name, url=url, openshift_version="4.22", **changes)


@ensure_deferred
async def test_openshift_version_means_the_default_stream_of_its_config_map(setup: Setup) -> None:
    streams = {"rhel-10": stream("10.2"), "rhel-9": stream("9.8")}
    setup.origin.serve("/streams.json", *[Reply(config_map(streams, "rhel-9"))] * 3)
    found = await setup.started(of_version(setup, "rhel-10"), of_version(setup, "rhel-9"))
    assert [each.entry.openshift_versions for each in found.desired] == [
        ("4.22", "rhel-9"),
        ("4.22", "rhel-10"),
    ]
    assert versions(found) == ["9.8", "10.2"]
    assert moved(found, among("10.2")) == {("rhel-10", "x86_64"): "10.2"}
    assert moved(found, among("9.8", "10.2")) == {
        ("rhel-9", "x86_64"): "9.8",
        ("rhel-10", "x86_64"): "10.2",
        ("4.22", "x86_64"): "9.8",
    }
    await found.stop()
    setup.origin.serve("/streams.json", *[Reply(status=503)] * 2)
    again = await setup.started(of_version(setup, "rhel-10"), of_version(setup, "rhel-9"))
    assert again.aliases["4.22", "x86_64"] == "9.8"


@ensure_deferred
async def test_openshift_version_never_means_another_stream_than_the_default_one(setup: Setup) -> None:
    streams = {"rhel-10": stream("10.2"), "rhel-9": stream("9.8")}
    setup.origin.serve("/streams.json", Reply(config_map(streams, "rhel-9")))
    found = await setup.started(of_version(setup, "4.22-10", config_map_stream="rhel-10"))
    assert [each.entry.openshift_versions for each in found.desired] == [("4.22-10",)]
    assert moved(found, among("10.2")) == {("4.22-10", "x86_64"): "10.2"}


@ensure_deferred
async def test_default_stream_that_changes_is_reported(setup: Setup) -> None:
    streams = {"rhel-10": stream("10.2"), "rhel-9": stream("9.8")}
    replies = [Reply(config_map(streams, name)) for name in ("rhel-9", "rhel-10")]
    setup.origin.serve("/streams.json", replies[0], replies[0], replies[1], replies[1])
    found = await setup.started(of_version(setup, "rhel-10"), of_version(setup, "rhel-9"))
    changes = setup.changes
    await setup.later(found)
    assert setup.changes > changes
    assert versions(found) == ["10.2", "9.8"]
    assert [each.entry.openshift_versions[0] for each in found.desired] == ["4.22", "4.22"]


@ensure_deferred
async def test_config_map_is_read_from_a_file(setup: Setup, lines: Lines) -> None:
    path = setup.directory / "boot images.yaml"
    source = setup.source("rhel-9", url=path.as_uri())
    found = await setup.started(source)
    assert "cannot be refreshed: cannot read " + str(path) in lines.text
    path.write_bytes(config_map({"rhel-9": stream("9.8")}, "rhel-9", as_yaml=True))
    await setup.later(found, RETRY_SECONDS)
    assert versions(found) == ["9.8"]
    await setup.later(found)
    assert setup.changes == 1
    path.write_bytes(config_map({"rhel-9": stream("9.9")}, as_yaml=True))
    await setup.later(found)
    assert (versions(found), setup.changes) == (["9.9"], 2)


@ensure_deferred
async def test_unchanged_document_is_not_transferred_again(setup: Setup) -> None:
    setup.serve(reply(stream("1"), TAG), Reply(status=304))
    streams = await setup.started()
    await setup.later(streams)
    first, second = setup.origin.requests
    assert "If-None-Match" not in first.headers
    assert second.headers["If-None-Match"] == TAG["ETag"]
    assert second.headers["If-Modified-Since"] == TAG["Last-Modified"]
    assert versions(streams) == ["1"]
    assert setup.changes == 1


@ensure_deferred
async def test_refresh_is_periodic_and_reports_a_new_release(setup: Setup) -> None:
    setup.serve(stream("1"), stream("1"), stream("2"))
    streams = await setup.started()
    await setup.later(streams, HOUR - 1)
    assert len(setup.origin.requests) == 1
    await setup.later(streams, 1)
    assert (versions(streams), setup.changes) == (["1"], 1)
    moved(streams, among("1"))
    await setup.later(streams)
    assert (versions(streams), setup.changes) == (["2", "1"], 2)


@ensure_deferred
async def test_restart_without_network_keeps_releases_and_aliases(setup: Setup) -> None:
    setup.serve(reply(stream("1"), TAG), reply(stream("2"), TAG), Reply(status=503))
    streams = await setup.started()
    assert moved(streams, among("1")) == {("stable", "x86_64"): "1"}
    await setup.later(streams)
    await streams.stop()
    setup.changes = 0
    again = await setup.started()
    assert setup.origin.requests[-1].headers["If-None-Match"] == TAG["ETag"]
    assert (versions(again), setup.changes) == (["2", "1"], 1)
    assert moved(again, among()) == {("stable", "x86_64"): "1"}


@ensure_deferred
async def test_alias_moves_when_a_release_is_ready_and_is_stored(setup: Setup, lines: Lines) -> None:
    setup.serve(stream("1"), stream("2"))
    streams = await setup.started()
    assert moved(streams, among()) == {}
    assert moved(streams, among("1")) == {("stable", "x86_64"): "1"}
    await setup.later(streams)
    assert moved(streams, among("1")) == {("stable", "x86_64"): "1"}
    assert moved(streams, among("1", "2")) == {("stable", "x86_64"): "2"}
    await streams.wait_until_idle()
    remembered = json.loads((setup.directory / "rhcos-stream-stable.json").read_text())
    assert remembered["aliases"] == {"x86_64": "2"}
    assert lines.text.count("stream stable for x86_64 is 2 now") == 1


@ensure_deferred
async def test_process_that_does_not_fetch_reads_the_stored_state(setup: Setup) -> None:
    setup.serve(stream("1"), stream("2"))
    fetching = await setup.started()
    reading = setup.make(fetches=False)
    await reading.start(setup.changed)
    await reading.wait_until_idle()
    assert (versions(reading), len(setup.origin.requests)) == (["1"], 1)
    assert moved(fetching, among("1")) == {("stable", "x86_64"): "1"}
    await setup.later(fetching)
    await fetching.stop()  # else it fetches again, while the other one reads
    remembered = (setup.directory / "rhcos-stream-stable.json").read_bytes()
    await setup.later(reading)
    assert (versions(reading), len(setup.origin.requests)) == (["2", "1"], 2)
    assert moved(reading, among("2")) == {("stable", "x86_64"): "2"}  # ready there, not elsewhere
    await reading.wait_until_idle()
    assert (setup.directory / "rhcos-stream-stable.json").read_bytes() == remembered
    (setup.directory / "rhcos-stream-stable.json").unlink()
    await setup.later(reading)
    assert versions(reading) == ["2", "1"]


@ensure_deferred
async def test_alias_that_moves_during_a_refresh_is_kept(setup: Setup) -> None:
    def reply_late(_: object) -> Reply:
        setup.origin.released.wait()
        return Reply(text(stream("2")))

    setup.serve(stream("1"))
    streams = await setup.started()
    setup.origin.serve("/stable.json", reply_late)
    await setup.later(streams)  # the last reply of a path is given once more, before a new one
    setup.clock.advance(HOUR)
    assert moved(streams, among("1")) == {("stable", "x86_64"): "1"}
    setup.origin.released.set()
    await streams.wait_until_idle()
    assert versions(streams) == ["2", "1"]
    assert moved(streams, among()) == {("stable", "x86_64"): "1"}


@ensure_deferred
async def test_failed_release_is_forgotten_and_the_name_keeps_what_it_stands_for(setup: Setup) -> None:
    setup.serve(stream("1"), stream("2"), stream("3"))
    streams = await setup.started(setup.source(keep=1))
    moved(streams, among("1"))
    await setup.later(streams)
    assert versions(streams) == ["2", "1"]
    await setup.later(streams)
    assert versions(streams) == ["3", "1"]
    assert moved(streams, among("1")) == {("stable", "x86_64"): "1"}
    assert moved(streams, among("1", "3")) == {("stable", "x86_64"): "3"}
    assert versions(streams) == ["3"]


@ensure_deferred
async def test_refresh_without_news_writes_nothing(setup: Setup) -> None:
    setup.serve(reply(stream("1"), {"ETag": '"1"'}), Reply(status=304), reply(stream("1"), {"ETag": '"2"'}))
    streams = await setup.started()
    path = setup.directory / "rhcos-stream-stable.json"
    inode = path.stat().st_ino
    await setup.later(streams)
    assert path.stat().st_ino == inode
    await setup.later(streams)
    assert json.loads(path.read_text())["etag"] == '"2"'
    assert setup.changes == 1


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Reply(status=500), "answered with status 500"),
        (Reply(status=206, body=text(stream("3"))), "the status is 206, not 200"),
        (Reply(status=304), "the status is 304, not 200"),
        (Reply(b"no JSON"), "$: must be JSON"),
        (Reply(text(stream("3")), promised=100_000), "of 100000 bytes"),
        (Reply(text(stream("3", "s390x"))), "$.architectures: has no metal ISO for x86_64"),
        (
            Reply(text({**stream(), "architectures": {"x86_64": 1}})),
            "$.architectures.x86_64: must be an object",
        ),
    ],
)
@ensure_deferred
async def test_failed_refresh_changes_nothing_and_is_logged_once(
    setup: Setup, lines: Lines, broken: Reply, says: str
) -> None:
    setup.serve(stream("1"), broken, broken, broken, stream("2"))
    streams = await setup.started()
    moved(streams, among("1"))
    await streams.wait_until_idle()
    before = (setup.directory / "rhcos-stream-stable.json").read_bytes()
    await setup.later(streams)
    for retries in range(2):
        await setup.later(streams, RETRY_SECONDS * 2**retries)
    assert len(setup.origin.requests) == 4
    assert (streams.failures, streams.ages_seconds) == ({"stable": 3}, {"stable": HOUR + 3 * RETRY_SECONDS})
    assert (versions(streams), setup.changes) == (["1"], 1)
    assert (setup.directory / "rhcos-stream-stable.json").read_bytes() == before
    assert lines.text.count("stream stable cannot be refreshed: ") == 1
    assert says in lines.text
    await setup.later(streams, RETRY_SECONDS * 4)
    assert versions(streams) == ["2", "1"]
    assert (streams.failures, streams.ages_seconds) == ({"stable": 0}, {"stable": 0})
    assert "stream stable is available again" in lines.text


@ensure_deferred
async def test_retry_delay_doubles_up_to_the_refresh_interval(setup: Setup) -> None:
    setup.serve(Reply(status=500))
    streams = await setup.started()
    delays = []
    for _ in range(10):
        (call,) = setup.clock.getDelayedCalls()
        delays.append(call.getTime() - setup.clock.seconds())
        await setup.later(streams, delays[-1])
    assert delays == [0.75 * seconds for seconds in (30, 60, 120, 240, 480, 960, 1920, HOUR, HOUR, HOUR)]


@ensure_deferred
async def test_document_above_the_size_limit_is_refused(setup: Setup, lines: Lines, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream_state, "MAX_DOCUMENT_BYTES", 1000)
    setup.serve(Reply(b" " * 1001))
    streams = await setup.started()
    assert streams.desired == ()
    assert "the response has more than 1000 bytes" in lines.text


@ensure_deferred
async def test_failing_stream_does_not_delay_others(setup: Setup) -> None:
    setup.serve(Reply(status=404), name="next")
    setup.serve(stream("1"))
    streams = await setup.started(setup.source("next"), setup.source())
    assert versions(streams) == ["1"]


@ensure_deferred
async def test_architecture_that_a_stream_lacks_is_logged(setup: Setup, lines: Lines) -> None:
    setup.serve(stream("1"))
    streams = await setup.started(setup.source(architectures=("x86_64", "s390x")))
    assert versions(streams) == ["1"]
    assert "stream stable offers no ISO for s390x" in lines.text


@ensure_deferred
async def test_state_that_cannot_be_stored_is_logged(setup: Setup, lines: Lines) -> None:
    setup.serve(stream("1"))
    (setup.directory / "rhcos-stream-stable.json").mkdir()
    streams = await setup.started()
    assert versions(streams) == ["1"]
    assert "the state of stream stable cannot be stored: " in lines.text


@ensure_deferred
async def test_stop_interrupts_a_hanging_refresh(setup: Setup) -> None:
    setup.serve(Reply(b"{", promised=2, hold=True))
    streams = setup.make()
    await streams.start(setup.changed)
    held: Deferred[bool] = deferToThreadPool(
        setup.reactor, setup.reactor.getThreadPool(), setup.origin.holding.wait
    )
    await held
    await DeferredList([Deferred.fromCoroutine(streams.stop())])
    assert streams.desired == ()


@ensure_deferred
async def test_streams_are_added_and_removed(setup: Setup) -> None:
    for name, version in (("stable", "1"), ("next", "2")):
        setup.serve(stream(version), name=name)
    streams = await setup.started()
    streams.replace_sources([setup.source("next"), setup.source()])
    await streams.wait_until_idle()
    assert versions(streams) == ["2", "1"]
    assert setup.changes == 2
    streams.replace_sources([setup.source("next")])
    assert versions(streams) == ["2"]
    asked = len(setup.origin.requests)
    await setup.later(streams)
    assert [request.target for request in setup.origin.requests[asked:]] == ["/next.json"]


@ensure_deferred
async def test_added_stream_has_the_releases_that_it_had_before(setup: Setup) -> None:
    setup.serve(stream("1"))
    await setup.started()
    setup.origin.serve("/stable.json", Reply(status=500))
    streams = await setup.started(setup.source("next"))
    streams.replace_sources([setup.source()])
    await streams.wait_until_idle()
    assert versions(streams) == ["1"]


@ensure_deferred
async def test_stream_from_another_url_keeps_what_its_name_stands_for_until_a_successor_is_ready(
    setup: Setup,
) -> None:
    setup.serve(stream("1"))
    setup.serve(stream("2"), name="elsewhere")
    streams = await setup.started()
    assert moved(streams, among("1")) == {("stable", "x86_64"): "1"}
    streams.replace_sources([setup.source(url=setup.origin.url("/elsewhere.json"), keep=1)])
    assert versions(streams) == ["1"]
    await streams.wait_until_idle()
    assert versions(streams) == ["2", "1"]
    assert moved(streams, among("1", "2")) == {("stable", "x86_64"): "2"}
    assert versions(streams) == ["2"]


@ensure_deferred
async def test_refresh_of_a_stream_that_is_removed_meanwhile_has_no_effect(setup: Setup) -> None:
    setup.serve(stream("1"), stream("2"))
    streams = await setup.started()
    setup.clock.advance(HOUR)
    streams.replace_sources([])
    await streams.wait_until_idle()
    assert (versions(streams), setup.changes) == ([], 1)
