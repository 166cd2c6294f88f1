"""What clients may be served, by rules that share no code with the product.

An image is its base with an archive of the config in the middle. What comes under an entity tag must be
bytes of one such image: of a config that assisted-service has answered to the same token about the same
infra-env. The rest are promises of time and number.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.events import Events, Machine

TTL_SECONDS = 4.0
GRACE_SECONDS = 40.0
WINDOW_SECONDS = 20.0
LATE_SECONDS = 30.0
"""For how long what is known is served while assisted-service has not answered; the product promises it."""
ANSWER_SECONDS = 3.0
"""Within which a request is answered or refused."""
CLAIM_SECONDS = 45.0
"""After this the claims of an ended process have expired."""
LEEWAY_SECONDS = 4.0
"""For all that takes a moment."""
REFUSED_SECONDS = 5.0
"""For how long a refusal is repeated without asking; the product promises it."""
CALLS_AT_ONCE = {"ignition": 1, "infra-env": 2}
"""About one infra-env with one token: it is part of a config's question, and completes a client's URL."""
BEGINNING_BYTES = 65536
"""A range that starts before this begins to read anew."""

Timeline = list[tuple[float, object]]
"""Values, each from an instant on."""


@attrs.frozen(eq=False)
class Base:
    """A base image: its bytes, and where the config goes."""

    content: bytes = attrs.field(repr=False)
    area: int
    area_bytes: int


@attrs.frozen(eq=False)
class Answer:
    """What assisted-service has answered; ``archive`` has the config."""

    infra_env: str
    token: str
    text: int
    archive: bytes = attrs.field(repr=False)


@attrs.frozen
class Image:
    """An answer laid over a base."""

    answer: Answer
    base: Base

    def read(self, start: int, stop: int) -> bytes:
        """Return its bytes from ``start`` to ``stop``."""
        base = self.base
        archive = self.answer.archive.ljust(base.area_bytes, b"\0")
        begin, end = max(start, base.area), min(stop, base.area + base.area_bytes)
        if begin >= end:
            return base.content[start:stop]
        inside = archive[begin - base.area : end - base.area]
        return base.content[start:begin] + inside + base.content[end:stop]


@attrs.define(eq=False)
class Oracle:
    """Knows what assisted-service has said when, and collects the faults."""

    events: Events
    bases: list[Base]
    faults: list[str] = attrs.field(factory=list)
    texts: dict[str, Timeline] = attrs.field(factory=lambda: defaultdict(list))
    """The text of each infra-env."""
    permitted: dict[tuple[str, str], Timeline] = attrs.field(factory=lambda: defaultdict(list))
    """Whether each token is good for each infra-env."""
    moods: Timeline = attrs.field(factory=list)
    """Whether assisted-service is well."""
    disturbed_until: float = 0.0
    """When the last fault of replicas and their database was over, and claims of ended processes too."""
    unheard_until: float = 0.0
    """When all replicas have heard again what the others have served."""
    longest_pause: float = 0.0
    """Of a replica; what it was answered before is as much older."""
    calls: dict[tuple[str, str, str], list[tuple[Machine, float]]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    """Who asks assisted-service what, and since when."""
    _answers: list[Answer] = attrs.field(factory=list)
    _images: dict[tuple[str, str], list[Image]] = attrs.field(factory=dict)
    _etags: dict[Image, str] = attrs.field(factory=dict)

    def fail(self, what: str) -> None:
        """Record a fault."""
        self.events.record(f"FAULT {what}")
        self.faults.append(what)

    # What assisted-service says.

    def record_answer(self, infra_env: str, token: str, text: int, config: bytes) -> None:
        """Record an answer of assisted-service."""
        self.events.record(f"assisted: {infra_env[:2]} has text {text}")
        self._answers.append(Answer(infra_env, token, text, _archive(config)))

    def begin_call(self, machine: Machine, question: tuple[str, str, str]) -> None:
        """Record that a replica asks something: so many of them at a time, unless there was a fault."""
        calls, most = self.calls[question], CALLS_AT_ONCE[question[0]]
        calls[:] = [(other, at) for other, at in calls if not other.is_dead]
        calls.append((machine, self.events.now))
        if sum(other is machine for other, _ in calls) > most:
            self.fail(f"{machine.name} asks for one {question[0]} more than once at a time")
        locked = [other.name for other, at in calls if at > self.disturbed_until]
        if len(locked) > most:
            self.fail(f"replicas ask at once: {', '.join(locked)}")

    def end_call(self, machine: Machine, question: tuple[str, str, str]) -> None:
        """Record that a call has ended."""
        calls = self.calls[question]
        number = next((number for number, (other, _) in enumerate(calls) if other is machine), None)
        if number is not None:
            del calls[number]

    # What clients get.

    def check_bytes(self, infra_env: str, token: str, etag: str, start: int, content: bytes) -> None:
        """Check bytes of a response against all images that they may be of."""
        key = (infra_env, etag)
        known = self._images.get(key)
        if known is None:
            known = [
                Image(answer, base)
                for answer in self._answers
                for base in self.bases
                if answer.infra_env == infra_env
            ]
        stop = start + len(content)
        left = [image for image in known if image.read(start, stop) == content]
        if not left:
            self.fail(
                f"bytes {start}-{stop} under {etag[:9]} are of no image that {infra_env[:2]} had under it"
            )
        elif all(image.answer.token != token for image in left):
            self.fail(f"bytes {start}-{stop} under {etag[:9]} are of an answer to another token")
        elif len(left) == 1 and self._etags.setdefault(left[0], etag) != etag:
            self.fail(f"{etag[:9]} and {self._etags[left[0]][:9]} are of the same bytes")
        self._images[key] = left

    def texts_of(self, infra_env: str, etag: str) -> set[int]:
        """Return the texts that an entity tag may stand for."""
        return {image.answer.text for image in self._images.get((infra_env, etag), ())}

    def check_permission(self, infra_env: str, token: str, asked_at: float) -> None:
        """Check that assisted-service has not refused a token for longer than the product may not know."""
        since = asked_at - self._bound(asked_at)
        if not any(value for value in _values(self.permitted[infra_env, token], since, self.events.now)):
            self.fail(f"served although {infra_env[:2]} has been refused since before {since:.1f}")

    def check_refusal(self, infra_env: str, token: str, asked_at: float) -> None:
        """Check that assisted-service has not permitted a token for longer than the product may not know."""
        since = asked_at - REFUSED_SECONDS - LEEWAY_SECONDS - self.longest_pause
        known = list(_values(self.permitted[infra_env, token], since, self.events.now))
        if self.is_calm(since) and known and all(known):
            self.fail(f"refused although {infra_env[:2]} has been permitted since before {since:.1f}")

    def check_text(self, infra_env: str, etag: str, asked_at: float) -> None:
        """Check that what a new mount gets is not too old."""
        texts = self.texts_of(infra_env, etag)
        since = asked_at - self._bound(asked_at)
        current = set(_values(self.texts[infra_env], since, self.events.now))
        if texts and not texts & current:
            self.fail(
                f"{infra_env[:2]} is served as text {sorted(texts)}, which has been over; it is {current}"
            )

    def is_calm(self, since: float) -> bool:
        """Return True if since an instant nothing was disturbed, nor had assisted-service failed before."""
        is_well = all(_values(self.moods, since - GRACE_SECONDS, self.events.now))
        return is_well and since > self.disturbed_until

    def _bound(self, now: float) -> float:
        """Return for how long what assisted-service has said may be unknown."""
        bound = TTL_SECONDS + LATE_SECONDS + LEEWAY_SECONDS + self.longest_pause
        # After a pause, `LATE_SECONDS` begin with the next question, which a claim may delay.
        if now < self.disturbed_until:
            bound += CLAIM_SECONDS
        is_well = all(_values(self.moods, now - bound - GRACE_SECONDS, now))
        return bound if is_well else bound + GRACE_SECONDS + LATE_SECONDS


def _values(timeline: Timeline, since: float, until: float) -> Iterator[object]:
    """Yield the values that were there at any moment of a time."""
    for (begin, value), (end, _) in pairwise([*timeline, (inf, None)]):
        if begin <= until and end >= since:
            yield value


def _archive(config: bytes) -> bytes:
    """Return a gzip member, not compressed, with a cpio archive of one file."""
    archive = _member(b"config.ign", 0o100600, config) + _member(b"TRAILER!!!", 0, b"")
    deflate = zlib.compressobj(level=0, wbits=-15)
    stored = deflate.compress(archive) + deflate.flush()
    head = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return head + stored + struct.pack("<II", zlib.crc32(archive), len(archive))


def _member(name: bytes, mode: int, data: bytes) -> bytes:
    numbers = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
