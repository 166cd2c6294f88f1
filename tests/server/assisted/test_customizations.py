from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred

from image_service.core.errors import Forbidden, NotFound, UpstreamError, UpstreamTimeout
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.customization import Customization
from image_service.core.images.reference import Credentials, CredentialScheme, Kind
from image_service.server.assisted.customizations import fetch_customization
from tests.server.snapshots.doubles import CONFIG, ID, MODIFIED, FakeAssistedService, infra_env_of

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = Credentials(CredentialScheme.API_KEY, "K")
RAMDISK = b"\x1f\x8bramdisk"
APPENDED = (KernelArgument(Operation.APPEND, "quiet"),)
# The resources that each kind of image needs, and the ISO type that its Ignition config is fetched for.
RESOURCES: Mapping[Kind, tuple[set[str], Kind | None]] = {
    Kind.FULL_ISO: ({"ignition", "infra-env"}, Kind.FULL_ISO),
    Kind.DISCONNECTED_ISO: ({"ignition", "infra-env"}, Kind.DISCONNECTED_ISO),
    Kind.MINIMAL_ISO: ({"ignition", "infra-env", "ramdisk"}, Kind.MINIMAL_ISO),
    Kind.PXE_INITRD: ({"ignition", "ramdisk"}, None),
}


@pytest.fixture
def assisted() -> FakeAssistedService:
    return FakeAssistedService(reported=infra_env_of(["quiet"]), initrd=RAMDISK)


def fetch(assisted: FakeAssistedService, kind: Kind) -> Deferred[Customization]:
    return Deferred.fromCoroutine(fetch_customization(assisted, ID, kind, KEY))


def outcome(fetching: Deferred[Customization]) -> list[Customization | BaseException]:
    """Return a list that gets the customization or the exception."""
    found: list[Customization | BaseException] = []
    fetching.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found


@pytest.mark.parametrize("kind", RESOURCES)
def test_each_kind_has_its_own_requests(assisted: FakeAssistedService, kind: Kind) -> None:
    """As in the contract's table of calls."""
    resources, iso = RESOURCES[kind]
    (made,) = outcome(fetch(assisted, kind))
    assert set(assisted.asked) == resources
    assert len(assisted.calls) == len(resources)
    assert {call[1:] for call in assisted.calls} <= {(ID, iso, KEY), (ID, None, KEY)}
    assert [call[2] for call in assisted.calls if call[0] == "ignition"] == [iso]
    arguments = APPENDED if "infra-env" in resources else ()
    ramdisk = RAMDISK if "ramdisk" in resources else None
    assert made == Customization(CONFIG, arguments, MODIFIED, ramdisk)


@pytest.mark.parametrize("kind", [Kind.MINIMAL_ISO, Kind.PXE_INITRD])
def test_customization_without_a_ramdisk(assisted: FakeAssistedService, kind: Kind) -> None:
    assisted.initrd = None
    (made,) = outcome(fetch(assisted, kind))
    assert isinstance(made, Customization)
    assert made.ramdisk is None


def test_absent_date_is_none(assisted: FakeAssistedService) -> None:
    assisted.modified = None
    (made,) = outcome(fetch(assisted, Kind.FULL_ISO))
    assert isinstance(made, Customization)
    assert made.modified is None


@pytest.mark.parametrize("kind", RESOURCES)
def test_requests_are_sent_concurrently(assisted: FakeAssistedService, kind: Kind) -> None:
    assisted.held = []
    made = outcome(fetch(assisted, kind))
    assert set(assisted.asked) == RESOURCES[kind][0]
    assert made == []
    assisted.release()
    assert isinstance(made[0], Customization)


@pytest.mark.parametrize("failing", ["ignition", "infra-env", "ramdisk"])
@pytest.mark.parametrize(
    "error", [UpstreamError("no"), UpstreamTimeout("late"), NotFound("gone"), Forbidden("no"), OSError("odd")]
)
def test_failed_request_cancels_the_others(
    assisted: FakeAssistedService, failing: str, error: Exception
) -> None:
    assisted.held = []
    made = outcome(fetch(assisted, Kind.MINIMAL_ISO))
    gates = dict(zip(assisted.asked, assisted.held, strict=True))
    gates[failing].errback(error)
    assert made == [error]
    assert {*assisted.cancelled, failing} == RESOURCES[Kind.MINIMAL_ISO][0]
    assert len(assisted.cancelled) == 2


@pytest.mark.parametrize("failing", ["ignition", "infra-env", "ramdisk"])
def test_request_that_fails_immediately_is_reported(assisted: FakeAssistedService, failing: str) -> None:
    error = assisted.failures[failing] = UpstreamError("no")
    assert outcome(fetch(assisted, Kind.MINIMAL_ISO)) == [error]


def test_first_of_several_failures_is_reported(assisted: FakeAssistedService) -> None:
    first, second = Forbidden("first"), NotFound("second")
    assisted.failures = {"ramdisk": second, "infra-env": first}
    assert outcome(fetch(assisted, Kind.MINIMAL_ISO)) == [first]


def test_cancellation_cancels_all_requests(assisted: FakeAssistedService) -> None:
    assisted.held = []
    fetching = fetch(assisted, Kind.MINIMAL_ISO)
    made = outcome(fetching)
    fetching.cancel()
    assert [type(error) for error in made] == [CancelledError]
    assert sorted(assisted.cancelled) == ["ignition", "infra-env", "ramdisk"]


def test_customization_repr_has_no_secret(assisted: FakeAssistedService) -> None:
    assisted.config = b'{"ignition": {"version": "3.2.0"}, "pull": "s3cr3t"}'
    assisted.initrd = b"s3cr3t"
    assisted.reported = attrs.evolve(
        assisted.reported, kernel_arguments=(KernelArgument(Operation.APPEND, "s3cr3t"),)
    )
    (made,) = outcome(fetch(assisted, Kind.MINIMAL_ISO))
    assert "s3cr3t" not in repr(made)
