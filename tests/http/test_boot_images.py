from __future__ import annotations

import json
import random
import threading
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.errors import (
    IgnitionTooLarge,
    KernelArgumentInvalid,
    KernelArgumentsTooLarge,
    NotFound,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.http import boot_images
from image_service.http.boot_images import PATIENCE_SECONDS, Kept
from image_service.http.composer import THREAD_BYTES
from image_service.images.reference import Credentials, CredentialScheme, ImageRef, Kind
from tests.coreos.iso_builder import KERNEL_ARGUMENTS
from tests.http.doubles import (
    DISCONNECTED,
    FULL,
    ID,
    MODIFIED,
    REF,
    TTL_SECONDS,
    VERSION,
    World,
    infra_env_of,
)
from tests.http.doubles import world as make_world
from tests.images.building import read
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.epollreactor import EPollReactor

    from image_service.assisted.answers import InfraEnv
    from image_service.images.boot_image import BootImage

OTHER_ID = ID.replace("a6c0", "b7d1")
OTHER_REF = attrs.evolve(REF, infra_env_id=OTHER_ID)
ASK_INFRA_ENV = ImageRef(ID, None, None, None)
CREDENTIALS = [
    None,
    Credentials(CredentialScheme.API_KEY, "one"),
    Credentials(CredentialScheme.API_KEY, "two"),
    Credentials(CredentialScheme.IMAGE_TOKEN, "one"),
    Credentials(CredentialScheme.AUTHORIZATION, "one"),
]


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        yield made


def outcome_of(asked: Deferred[Kept]) -> list[Kept | BaseException]:
    """Where an asker's image or exception will be."""
    found: list[Kept | BaseException] = []
    asked.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found


def ask(
    world: World, ref: ImageRef = REF, credentials: Credentials | None = None
) -> list[Kept | BaseException]:
    return outcome_of(world.images.get(ref, credentials))


def get(world: World, ref: ImageRef = REF, credentials: Credentials | None = None) -> Kept:
    (kept,) = ask(world, ref, credentials)
    assert isinstance(kept, Kept)
    return kept


def kind_of(kept: Kept) -> Kind | None:
    assert isinstance(kept.ref, ImageRef)
    return kept.ref.kind


def refused(world: World, ref: ImageRef = REF) -> BaseException:
    (error,) = ask(world, ref)
    assert isinstance(error, BaseException)
    return error


def bytes_of(kept: Kept) -> bytes:
    return read(kept.representation.image.extents.extents)


# What is known costs nothing.


def test_an_image_is_made_of_base_and_customization(world: World) -> None:
    world.assisted.told = infra_env_of(("quiet",))
    kept = get(world)
    image = kept.representation.image
    assert kind_of(kept) is FULL
    assert image.file_name == f"{ID}-discovery.iso"
    assert image.modified == MODIFIED
    assert f"{KERNEL_ARGUMENTS} quiet\n".encode() in bytes_of(kept)
    assert world.assisted.config in bytes_of(kept)
    assert sorted(world.assisted.asked) == ["ignition", "infra-env"]


def test_a_second_range_costs_no_call_and_no_composition(world: World) -> None:
    first = get(world)
    for _ in range(100):
        assert get(world) is first
    assert len(world.assisted.calls) == 2
    assert sum(world.catalog.asked.values()) == 1


def test_a_known_image_is_there_at_once_even_while_assisted_service_hangs(world: World) -> None:
    first = get(world)
    world.assisted.held = []
    assert world.images.get(REF, None).called
    assert get(world) is first


def test_two_hundred_askers_make_one_flight_and_may_leave_it(world: World) -> None:
    world.assisted.held = []
    waiting = [world.images.get(REF, None) for _ in range(200)]
    outcomes = [outcome_of(asked) for asked in waiting]
    for asked in waiting[::2]:
        asked.cancel()
    assert [type(outcome[0]) for outcome in outcomes[::2]] == [CancelledError] * 100
    world.assisted.let_go()
    made = {id(kept) for outcome in outcomes[1::2] for kept in outcome}
    assert made == {id(get(world))}
    assert len(world.assisted.calls) == 2
    assert world.assisted.cancelled == []
    assert sum(world.catalog.asked.values()) == 1


def test_when_all_have_left_the_retry_finds_what_they_started(world: World) -> None:
    world.assisted.held = []
    asked = world.images.get(REF, None)
    outcome_of(asked)
    asked.cancel()
    world.assisted.let_go()
    assert isinstance(get(world), Kept)
    assert len(world.assisted.calls) == 2


def test_who_waits_too_long_is_told_so_and_finds_the_image_later(world: World) -> None:
    world.assisted.held = []
    asked = ask(world)
    world.clock.advance(PATIENCE_SECONDS - 0.01)
    late = ask(world)
    assert asked == []
    world.clock.advance(0.01)
    (error,) = asked
    assert isinstance(error, UpstreamTimeout)
    assert error.retry_after_seconds == 1
    assert (late, world.assisted.cancelled) == ([], [])
    world.assisted.let_go()
    assert late == [get(world)]
    assert len(world.assisted.calls) == 2
    assert world.clock.getDelayedCalls() == []


def test_it_is_good_for_its_time_and_then_made_anew(world: World) -> None:
    first = get(world)
    world.clock.advance(TTL_SECONDS - 0.001)
    assert world.images.fresh((REF, None)) is first
    assert get(world) is first
    world.clock.advance(0.001)
    assert world.images.fresh((REF, None)) is None
    second = get(world)
    assert second is not first
    assert len(world.assisted.calls) == 4
    assert world.images.fresh((REF, None)) is second
    assert second.representation.image.etag == first.representation.image.etag
    assert bytes_of(second) == bytes_of(first)


def test_a_changed_customization_is_a_new_image_after_its_time(world: World) -> None:
    first = get(world)
    world.assisted.config = b'{"ignition": {"version": "3.3.0"}}'
    assert get(world) is first
    world.clock.advance(TTL_SECONDS)
    second = get(world)
    assert second.representation.image.etag != first.representation.image.etag
    assert b'"3.3.0"' in bytes_of(second)
    assert b'"3.2.0"' in bytes_of(first), "who is still downloading the first one gets all of it"


def test_its_time_begins_when_it_is_made(world: World) -> None:
    world.assisted.held = []
    ask(world)
    world.clock.advance(TTL_SECONDS)
    world.assisted.let_go()
    world.clock.advance(TTL_SECONDS - 1)
    get(world)
    assert len(world.assisted.calls) == 2


# Nobody gets what was made for other credentials.


def test_each_credential_is_asked_with_and_kept_apart(world: World) -> None:
    kept = [get(world, credentials=credentials) for credentials in CREDENTIALS]
    assert len({id(image) for image in kept}) == len(CREDENTIALS)
    assert [get(world, credentials=credentials) for credentials in CREDENTIALS] == kept
    asked = [call[3] for call in world.assisted.calls]
    assert asked == [credentials for credentials in CREDENTIALS for _ in range(2)]


def test_other_credentials_do_not_join_a_flight(world: World) -> None:
    world.assisted.held = []
    outcomes = [ask(world, credentials=credentials) for credentials in CREDENTIALS]
    assert len(world.assisted.calls) == 2 * len(CREDENTIALS)
    world.assisted.let_go()
    assert len({id(outcome[0]) for outcome in outcomes}) == len(CREDENTIALS)


def test_a_refusal_of_one_credential_does_not_touch_another_s_image(world: World) -> None:
    good = get(world, credentials=CREDENTIALS[1])
    world.assisted.failures["ignition"] = NotFound("no")
    assert isinstance(refused(world), NotFound)
    assert get(world, credentials=CREDENTIALS[1]) is good


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(REF, infra_env_id=OTHER_ID),
        attrs.evolve(REF, architecture="aarch64"),
        attrs.evolve(REF, kind=DISCONNECTED),
    ],
)
def test_other_references_are_other_images(world: World, other: ImageRef) -> None:
    assert get(world) is not get(world, other)
    assert len(world.assisted.calls) == 4
    assert {call[1] for call in world.assisted.calls} == {ID, other.infra_env_id}
    assert {call[2] for call in world.assisted.calls} == {None, FULL, other.kind}


# Failures.


@pytest.mark.parametrize("question", ["ignition", "infra-env"])
@pytest.mark.parametrize(
    "error", [UpstreamError("no"), UpstreamTimeout("late"), NotFound("gone"), OSError("odd")]
)
def test_a_failure_is_told_to_all_who_wait_and_not_kept(
    world: World, question: str, error: Exception
) -> None:
    world.assisted.failures[question] = error
    assert refused(world) is error
    assert refused(world) is error
    world.assisted.failures.clear()
    assert isinstance(get(world), Kept)


@pytest.mark.parametrize(("question", "other"), [("ignition", "infra-env"), ("infra-env", "ignition")])
def test_when_one_question_fails_the_other_is_taken_back(world: World, question: str, other: str) -> None:
    world.assisted.held = []
    outcomes = [ask(world) for _ in range(3)]
    gates = dict(zip(world.assisted.asked, world.assisted.held, strict=True))
    error = UpstreamError("no")
    gates[question].errback(error)
    assert outcomes == [[error]] * 3
    assert world.assisted.cancelled == [other]


def test_when_both_fail_the_first_failure_is_told(world: World) -> None:
    first, second = UpstreamError("first"), UpstreamError("second")
    world.assisted.failures = {"ignition": first, "infra-env": second}
    assert refused(world) is first


def test_a_base_that_is_not_there_is_told_before_anything_is_asked(world: World) -> None:
    assert isinstance(refused(world, attrs.evolve(REF, version="9.99")), NotFound)
    assert world.assisted.calls == []


@pytest.mark.parametrize(
    ("argument", "error"), [("a;b", KernelArgumentInvalid), ("x" * 5000, KernelArgumentsTooLarge)]
)
def test_what_cannot_be_composed_is_told_for_its_time_and_then_tried_again(
    world: World, argument: str, error: type[Exception]
) -> None:
    world.assisted.told = infra_env_of((argument,))
    assert isinstance(refused(world), error)
    world.assisted.told = infra_env_of()
    world.clock.advance(TTL_SECONDS - 0.001)
    assert isinstance(refused(world), error)
    assert len(world.assisted.calls) == 2
    assert isinstance(get(world, OTHER_REF), Kept)
    world.clock.advance(0.001)
    assert isinstance(get(world), Kept)


# What the request leaves to the infra-env.


def test_an_infra_env_names_its_own_image(world: World) -> None:
    world.assisted.told = infra_env_of(("quiet",), VERSION, DISCONNECTED, "x86_64")
    kept = get(world, ASK_INFRA_ENV)
    assert kind_of(kept) is DISCONNECTED
    assert kept.representation.image.file_name == "agent-ove.x86_64.iso"
    assert world.assisted.calls[:2] == [("infra-env", ID, None, None), ("ignition", ID, DISCONNECTED, None)]
    assert list(world.catalog.asked) == [(VERSION, "x86_64", DISCONNECTED)]
    assert b" quiet\n" in bytes_of(kept)


@pytest.mark.parametrize(
    ("ref", "told", "expected"),
    [
        (ASK_INFRA_ENV, infra_env_of((), VERSION), (VERSION, "x86_64", FULL)),
        (ASK_INFRA_ENV, infra_env_of((), VERSION, FULL, "aarch64"), (VERSION, "aarch64", FULL)),
        (ImageRef(ID, VERSION, None, None), infra_env_of((), "4.19"), (VERSION, "x86_64", FULL)),
        (
            ImageRef(ID, None, "aarch64", None),
            infra_env_of((), VERSION, None, "x86_64"),
            (VERSION, "aarch64", FULL),
        ),
        (ImageRef(ID, None, None, FULL), infra_env_of((), VERSION, DISCONNECTED), (VERSION, "x86_64", FULL)),
        (ImageRef(ID, VERSION, "aarch64", None), infra_env_of((), None, FULL), (VERSION, "aarch64", FULL)),
        (ImageRef(ID, VERSION, None, FULL), infra_env_of(), (VERSION, "x86_64", FULL)),
    ],
)
def test_the_request_comes_before_the_infra_env_and_that_before_defaults(
    world: World, ref: ImageRef, told: InfraEnv, expected: tuple[str, str, Kind]
) -> None:
    world.assisted.told = told
    assert kind_of(get(world, ref)) is expected[2]
    assert list(world.catalog.asked) == [expected]


def test_without_any_version_there_is_no_image(world: World) -> None:
    error = refused(world, ASK_INFRA_ENV)
    assert isinstance(error, NotFound)
    assert "version" in str(error)
    assert world.assisted.asked == ["infra-env"]


def test_an_infra_env_s_image_may_not_be_there(world: World) -> None:
    world.assisted.told = infra_env_of((), "9.99", FULL)
    assert isinstance(refused(world, ASK_INFRA_ENV), NotFound)
    assert world.assisted.asked == ["infra-env"]


def test_what_is_left_to_the_infra_env_is_kept_too(world: World) -> None:
    world.assisted.told = infra_env_of((), VERSION)
    first = get(world, ASK_INFRA_ENV)
    assert get(world, ASK_INFRA_ENV) is first
    assert world.assisted.asked == ["infra-env", "ignition", "infra-env"]
    assert first.representation.image.etag == get(world).representation.image.etag


# Threads.


def config_of(length: int) -> bytes:
    text = random.Random(7).randbytes(length).hex()  # noqa: S311 - text that packs to half of its length
    empty = json.dumps({"ignition": {"version": "3.2.0"}, "text": ""}).encode()
    return empty.replace(b'""', b'"%b"' % text[: length - len(empty)].encode())


def test_a_large_config_is_composed_in_a_thread(world: World) -> None:
    world.assisted.config = config_of(THREAD_BYTES + 1)
    outcomes = [ask(world) for _ in range(3)]
    assert outcomes == [[], [], []]
    assert len(world.threads.waiting) == 1
    world.threads.work()
    assert outcomes == [[get(world)]] * 3
    assert world.threads.waiting == []


def test_a_config_up_to_that_size_is_composed_at_once(world: World) -> None:
    world.assisted.config = config_of(THREAD_BYTES)
    assert len(world.assisted.config) == THREAD_BYTES
    get(world)
    assert THREAD_BYTES <= 2**20


def test_what_fails_in_a_thread_is_told(world: World) -> None:
    good, world.assisted.config = world.assisted.config, config_of(2**20)
    outcome = ask(world)
    world.threads.work()
    assert isinstance(outcome[0], IgnitionTooLarge)
    world.assisted.config = good
    world.clock.advance(TTL_SECONDS)
    assert isinstance(get(world), Kept)


@ensure_deferred
async def test_the_reactor_s_thread_does_not_compose_it(world: World, reactor: EPollReactor) -> None:
    threads: list[threading.Thread] = []
    pool = ThreadPool(0, 1, "compose")
    pool.start()

    def in_thread(work: object) -> Deferred[BootImage]:
        assert callable(work)
        return deferToThreadPool(reactor, pool, partial(watched, work))

    def watched(work: object) -> BootImage:
        assert callable(work)
        threads.append(threading.current_thread())
        made: BootImage = work()
        return made

    world.assisted.config = config_of(450_000)
    images = world.make_images(in_thread)
    try:
        kept = await images.get(REF, None)
    finally:
        pool.stop()
    assert kept.representation.image.size == world.catalog.images[VERSION, "x86_64", FULL].file.size
    assert threads
    assert threads[0] is not threading.current_thread()


# Bounds.


def test_the_least_recently_used_gives_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_images, "HELD_BYTES", 3 * get(world, OTHER_REF).held_bytes)
    world.assisted.calls.clear()
    refs = [attrs.evolve(REF, infra_env_id=ID.replace("a6c0", f"000{number}")) for number in range(4)]
    kept = [get(world, ref) for ref in refs[:3]]
    assert get(world, refs[0]) is kept[0]
    get(world, refs[3])
    assert get(world, refs[0]) is kept[0]
    assert get(world, refs[2]) is kept[2]
    assert get(world, refs[1]) is not kept[1]
    assert len(world.assisted.calls) == 2 * 5


def test_what_was_made_anew_is_the_last_to_give_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_images, "HELD_BYTES", 2 * get(world, OTHER_REF).held_bytes)
    world.assisted.calls.clear()
    first, second, third = (attrs.evolve(REF, infra_env_id=ID.replace("a6c0", f"000{n}")) for n in range(3))
    get(world, first)
    get(world, second)
    world.clock.advance(TTL_SECONDS)
    anew = get(world, first)
    get(world, third)
    assert get(world, first) is anew


def test_what_is_kept_shows_no_secret(world: World) -> None:
    world.assisted.config = b'{"ignition": {"version": "3.2.0"}, "pull": "s3cr3t"}'
    kept = get(world, credentials=Credentials(CredentialScheme.API_KEY, "s3cr3t"))
    assert "s3cr3t" not in repr(kept)
