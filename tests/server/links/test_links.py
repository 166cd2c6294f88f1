"""Short links over doubles: their targets, their ends, and clients that guess codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from image_service.common.concurrency.coordination import SIZE_BYTES, SharedMemoryCoordination
from image_service.core.errors import (
    Gone,
    InvalidParameter,
    NotFound,
    TooManyWrongCodes,
    Unauthorized,
    Unavailable,
    UpstreamError,
)
from image_service.core.images.reference import CredentialScheme, ImageRef, Kind, Reader
from image_service.server.links.links import (
    KEPT_SECONDS,
    READ_AGAIN_SECONDS,
    UNREADABLE_SECONDS,
    WRONG_CODE_SECONDS,
    WRONG_CODES,
    LinkRequest,
    MadeLink,
    OpenedLink,
)
from image_service.server.snapshots.versions import ImageRequest
from tests.server.links.linking import MemoryLinks, links_of
from tests.server.snapshots.doubles import BASE_URL, ID, REF, infra_env_of
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import say
from tests.server.snapshots.outcomes import Outcome, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.server.links.links import Links
    from tests.server.snapshots.doubles import World

TOKEN = "eyJhbGciOiJFUzI1NiJ9.claims.signature"
URL = f"{BASE_URL}/byid/{ID}/4.20/x86_64/full.iso?image_token={TOKEN}"
CLIENT, OTHER = "192.0.2.1", "192.0.2.2"


@attrs.define(eq=False)
class Linking:
    """The links of a process, and the stored rows."""

    world: World
    stored: MemoryLinks
    links: Links

    def make(self, url: str = URL, *, expires_in: int = 3600, pinned: bool = False) -> MadeLink:
        """Make a link."""
        return outcome(self.links.make(LinkRequest(url, expires_in, "rack 7", pinned), CLIENT))

    def open(self, made: MadeLink | str, client: str = CLIENT) -> OpenedLink:
        """Open a link."""
        code = made if isinstance(made, str) else code_of(made)
        return outcome(self.links.open(code, client))


@pytest.fixture
def linking() -> Iterator[Linking]:
    with make_world() as world:
        say(world)
        stored = MemoryLinks()
        yield Linking(world, stored, links_of(world, stored))


def code_of(made: MadeLink) -> str:
    return made.url.rpartition("/")[2].partition(".")[0]


@pytest.mark.parametrize(
    ("path", "suffix", "kind"),
    [
        (f"/byid/{ID}/4.20/x86_64/full.iso", ".iso", Kind.FULL_ISO),
        (f"/images/{ID}?type=disconnected-iso&version=4.20", ".iso", Kind.DISCONNECTED_ISO),
        (f"/images/{ID}/pxe-initrd?version=4.20", ".img", Kind.PXE_INITRD),
        (f"/images/{ID}/ipxe?version=4.20", ".ipxe", Kind.PXE_INITRD),
    ],
)
def test_link_has_the_suffix_of_its_file(linking: Linking, path: str, suffix: str, kind: Kind) -> None:
    made = linking.make(f"{BASE_URL}{path}")
    assert made.url.startswith(f"{BASE_URL}/s/")
    assert made.url.endswith(suffix)
    assert len(made.url) == len(BASE_URL) + len("/s/") + 16 + len(suffix)
    assert linking.open(made).target.ref == ImageRef(ID, "4.20", "x86_64", kind)


def test_link_has_the_credentials_of_its_url(linking: Linking) -> None:
    target = linking.open(linking.make()).target
    assert target.credentials is not None
    assert (target.credentials.scheme, target.credentials.secret) == (CredentialScheme.IMAGE_TOKEN, TOKEN)
    assert target.pin is None


def test_reference_of_a_link_is_complete(linking: Linking) -> None:
    linking.world.assisted.reported = infra_env_of(version="4.20")
    made = linking.make(f"{BASE_URL}/clusters/{ID}/downloads/image")
    assert linking.open(made).target.ref == REF


def test_pinned_link_names_the_present_version(linking: Linking) -> None:
    pin = linking.open(linking.make(pinned=True)).target.pin
    assert pin is not None
    say(linking.world, "changed")
    linking.world.clock.advance(3600)
    later = linking.open(linking.make(pinned=True)).target.pin
    assert later is not None
    assert later.generation > pin.generation


def test_store_has_neither_code_nor_credentials(linking: Linking) -> None:
    made = linking.make()
    (row,) = linking.stored.rows.values()
    for value in attrs.astuple(row):
        content = value if isinstance(value, bytes) else repr(value).encode()
        for secret in (code_of(made), TOKEN, ID, "rack 7"):
            assert secret.encode() not in content
    assert code_of(made) not in repr(made)


def test_links_are_listed_without_their_secret(linking: Linking) -> None:
    linking.make(expires_in=100)
    first = linking.make(expires_in=50)
    listed = outcome(linking.links.list_usable())
    assert {link.id for link in listed} >= {first.id}
    assert code_of(first) not in repr(listed)
    assert {(link.label, link.infra_env, link.kind, link.version) for link in listed} == {
        ("rack 7", ID, "full-iso", "4.20")
    }
    linking.world.clock.advance(60)
    assert [link.expires_at for link in outcome(linking.links.list_usable())] == ["1970-01-01T00:01:40Z"]


def spoil(linking: Linking, made: MadeLink, **changes: Any) -> None:
    """Change the row of a link, as a writer of the database can."""
    digest, row = next((key, row) for key, row in linking.stored.rows.items() if row.id == made.id)
    linking.stored.rows[digest] = attrs.evolve(row, **changes)


@pytest.mark.parametrize("description", [b"", b"damaged" * 20])
def test_link_that_cannot_be_read_hides_no_other_and_is_revoked(
    linking: Linking, messages: list[str], description: bytes
) -> None:
    other, damaged = linking.make(), linking.make(expires_in=50)
    spoil(linking, damaged, description=description)
    for _ in range(2):
        listed = {link.id: link for link in outcome(linking.links.list_usable())}
        assert listed.keys() == {other.id, damaged.id}
        assert [listed[each.id].readable for each in (other, damaged)] == [True, False]
        assert listed[damaged.id].expires_at == "1970-01-01T00:00:50Z"
    assert [line for line in messages if damaged.id in line] == [
        f"short link {damaged.id} cannot be read with the present secret: revoke it"
    ]
    outcome(linking.links.revoke(damaged.id))
    assert [link.id for link in outcome(linking.links.list_usable())] == [other.id]


@pytest.mark.parametrize("column", ["sealed", "description", "id"])
def test_links_whose_columns_were_swapped_are_not_each_other(linking: Linking, column: str) -> None:
    links = [linking.make(), linking.make(f"{BASE_URL}/images/{ID}/pxe-initrd?version=4.20")]
    (first, one), (second, other) = linking.stored.rows.items()
    linking.stored.rows[first] = attrs.evolve(one, **{column: getattr(other, column)})
    linking.stored.rows[second] = attrs.evolve(other, **{column: getattr(one, column)})
    for made, kind in zip(links, [Kind.FULL_ISO, Kind.PXE_INITRD], strict=True):
        if column == "sealed":
            with pytest.raises(Gone):
                linking.open(made)
        else:
            assert linking.open(made).target.ref.kind is kind
    listed = outcome(linking.links.list_usable())
    assert {link.id for link in listed} == {made.id for made in links}
    assert {link.readable for link in listed} == {column == "sealed"}


def test_writer_of_the_database_ends_a_link_and_does_not_prolong_it(linking: Linking) -> None:
    prolonged, ended = linking.make(expires_in=10), linking.make(expires_in=10)
    spoil(linking, prolonged, expires_at=1e6)
    spoil(linking, ended, expires_at=5.0)
    linking.world.clock.advance(6)
    assert linking.open(prolonged).expires_at == pytest.approx(linking.world.clock.seconds() + 4)
    with pytest.raises(Gone):
        linking.open(ended)
    linking.links = links_of(linking.world, linking.stored)
    linking.world.clock.advance(5)
    with pytest.raises(Gone):
        linking.open(prolonged)


@pytest.mark.parametrize("is_cached", [False, True])
def test_expired_link_is_gone(linking: Linking, *, is_cached: bool) -> None:
    made = linking.make(expires_in=10)
    opened = linking.open(made)
    linking.world.clock.advance(9.9)
    assert linking.links.is_current(opened)
    if not is_cached:
        linking.links = links_of(linking.world, linking.stored)
    linking.world.clock.advance(0.1)
    assert not linking.links.is_current(opened)
    with pytest.raises(Gone):
        linking.open(made)


def test_step_of_the_wall_clock_does_not_prolong_an_opened_link(linking: Linking) -> None:
    opened = linking.open(linking.make(expires_in=10))
    linking.world.wall_offset = -3600
    linking.world.clock.advance(10)
    assert not linking.links.is_current(opened)


def test_revoked_link_is_gone_at_once(linking: Linking) -> None:
    made = linking.make()
    opened = linking.open(made)
    outcome(linking.links.revoke(made.id))
    assert not linking.links.is_current(opened)
    with pytest.raises(Gone):
        linking.open(made)
    with pytest.raises(NotFound):
        outcome(linking.links.revoke(made.id))
    assert outcome(linking.links.list_usable()) == []


def test_other_processes_notice_a_revocation(tmp_path: Path, linking: Linking) -> None:
    memory = memoryview(bytearray(SIZE_BYTES))
    here, there = (
        links_of(
            linking.world,
            linking.stored,
            SharedMemoryCoordination(memory, tmp_path / "locks", linking.world.clock),
        )
        for _ in range(2)
    )
    linking.links = here
    made = linking.make()
    opened = outcome(there.open(code_of(made), CLIENT))
    assert there.is_current(opened)
    outcome(here.revoke(made.id))
    assert not there.is_current(opened)
    assert isinstance(Outcome(there.open(code_of(made), CLIENT)).error, Gone)


def test_code_altered_by_one_character_is_unknown(linking: Linking) -> None:
    code = code_of(linking.make())
    for index, character in enumerate(code):
        altered = code[:index] + ("a" if character != "a" else "b") + code[index + 1 :]
        with pytest.raises(NotFound):
            linking.open(altered)


def test_client_that_guesses_is_refused_even_the_right_code(linking: Linking) -> None:
    made = linking.make()
    for number in range(WRONG_CODES):
        with pytest.raises(NotFound):
            linking.open(f"{number:016}")
    with pytest.raises(TooManyWrongCodes) as refusal:
        linking.open(made)
    assert refusal.value.retry_after_seconds == WRONG_CODE_SECONDS
    linking.open(made, OTHER)
    linking.world.clock.advance(WRONG_CODE_SECONDS)
    linking.open(made)


def test_right_codes_are_not_counted(linking: Linking) -> None:
    made = linking.make()
    for _ in range(2 * WRONG_CODES):
        linking.open(made)


def test_addresses_of_one_ipv6_network_are_one_client(linking: Linking) -> None:
    for number in range(WRONG_CODES):
        with pytest.raises(NotFound):
            linking.open("x", f"2001:db8::{number:x}")
    with pytest.raises(TooManyWrongCodes):
        linking.open("x", "2001:db8::ffff:1")


def test_opened_link_outlives_a_database_that_is_away(linking: Linking) -> None:
    made = linking.make(expires_in=100_000)
    linking.open(made)
    linking.stored.is_failing = True
    linking.world.clock.advance(READ_AGAIN_SECONDS + UNREADABLE_SECONDS - 1)
    linking.open(made)
    linking.world.clock.advance(1)
    with pytest.raises(Unavailable):
        linking.open(made)
    linking.stored.is_failing = False
    linking.open(made)


def test_expired_links_are_removed_once_the_database_is_back(linking: Linking) -> None:
    linking.make(expires_in=10)
    linking.world.clock.advance(10 + KEPT_SECONDS)
    linking.stored.is_failing = True
    outcome(linking.links.remove_expired())
    assert len(linking.stored.rows) == 1
    linking.stored.is_failing = False
    outcome(linking.links.remove_expired())
    assert linking.stored.rows == {}


def test_damaged_row_is_gone(linking: Linking) -> None:
    made = linking.make()
    (digest, row) = linking.stored.rows.popitem()
    linking.stored.rows[digest] = attrs.evolve(row, sealed=(row.sealed or b"")[:-1] + b"x")
    with pytest.raises(Gone):
        linking.open(made)


def test_url_that_assisted_service_refuses_is_not_linked(linking: Linking) -> None:
    linking.world.assisted.failures["ignition"] = Unauthorized("no such token")
    with pytest.raises(InvalidParameter, match="url is not served: no such token"):
        linking.make()
    assert linking.stored.rows == {}


def test_size_is_that_of_the_image_that_the_url_names(linking: Linking) -> None:
    target = linking.open(linking.make()).target
    reader = Reader(CLIENT, target.credentials, target.ref)
    composed = linking.world.images.get_cached_image(ImageRequest(reader))
    assert composed is not None
    assert outcome(linking.links.find_size(URL, CLIENT)) == composed.representation.image.size


@pytest.mark.parametrize(
    "url",
    [
        f"{BASE_URL}/byid/{ID}/4.20/x86_64/full.iso.sha256",
        f"{BASE_URL}/images/{ID}/ipxe?version=4.20&arch=x86_64",
        f"{BASE_URL}/health",
        "http://elsewhere.test/byid/a/4.20/x86_64/full.iso",
    ],
)
def test_only_images_have_sizes(linking: Linking, url: str) -> None:
    with pytest.raises(InvalidParameter):
        outcome(linking.links.find_size(url, CLIENT))


def test_failure_of_assisted_service_is_not_the_clients_fault(linking: Linking) -> None:
    linking.world.assisted.failures["ignition"] = UpstreamError("it is away")
    with pytest.raises(UpstreamError):
        linking.make()


@pytest.mark.parametrize(
    "path",
    [
        f"/byid/{ID}/4.99/x86_64/full.iso",
        f"/images/{ID}/ipxe?version=4.20&arch=s390x",
        "/nowhere",
    ],
)
def test_url_that_is_not_served_is_refused(linking: Linking, path: str) -> None:
    with pytest.raises(InvalidParameter, match=r"^url is not served: "):
        linking.make(f"{BASE_URL}{path}")


def test_refusal_of_another_services_url_says_what_is_right(linking: Linking) -> None:
    with pytest.raises(InvalidParameter, match=rf"^url is not of this service, .* begin with {BASE_URL}$"):
        linking.make("http://elsewhere.test/full.iso")
