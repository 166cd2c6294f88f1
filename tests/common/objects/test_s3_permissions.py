"""A store in S3 whose user lacks rights: what is told, and what stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from image_service.common.objects import s3 as s3_module
from image_service.common.objects.build import open_store
from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Options
from image_service.core.errors import StoreDenied, StoreFailed
from tests.common.objects.storing import put
from tests.s3_server import BUCKET, PREFIX, USER_KEY, USER_SECRET, S3User, running_s3_server_with_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.common.objects.store import ObjectStorage

KEY = "jobs/0b7a/1/disk.raw"
PART_BYTES = 5 * 2**20
ON_OBJECTS = ("PutObject", "GetObject", "DeleteObject", "AbortMultipartUpload")
ON_BUCKET = ("ListBucketMultipartUploads",)
"""The rights that docs/jobs.md lists."""
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3User]:
    with running_s3_server_with_user(tmp_path_factory.mktemp("s3")) as user:
        yield user


def store_of(user: S3User, place: str = f"{BUCKET}/{PREFIX}", secret: str = USER_SECRET) -> ObjectStorage:
    url = user.environment["AWS_ENDPOINT_URL"]
    options = S3Options(access_key_id=USER_KEY, secret_access_key=secret, endpoint_url=url)
    return open_store(f"s3://{place}", options)


def uploads_below(user: S3User) -> list[str]:
    environment = user.server.environment
    client = S3Client(
        S3Options(
            access_key_id=environment["AWS_ACCESS_KEY_ID"],
            secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=environment["AWS_ENDPOINT_URL"],
        )
    )
    return [upload for _, upload, _ in client.list_uploads(BucketLocation(BUCKET, ""))]


class Broken(BytesIO):
    """Content of more than one part, whose client disconnects at the end."""

    def __init__(self) -> None:
        super().__init__(bytes(PART_BYTES + 1))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return bytes, then raise."""
        if not (found := super().read(size)):
            raise ConnectionError("the client has gone")
        return found


def test_listed_rights_are_enough(user: S3User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "PART_BYTES", PART_BYTES)
    user.permit(*ON_OBJECTS, on_bucket=ON_BUCKET)
    store = store_of(user)
    for size in (1, PART_BYTES + 1):
        put(store, KEY, BytesIO(bytes(size)))
        assert store.read_at(KEY, size - 1, 9) == b"\0"
    store.delete(KEY)
    store.delete(KEY)
    with pytest.raises(ConnectionError):
        put(store, KEY, Broken())
    store.remove_unfinished(LATER)
    assert uploads_below(user) == []


CALLS: dict[str, Callable[[ObjectStorage], object]] = {
    "put an object": lambda store: put(store, KEY, BytesIO(b"x")),
    "read an object": lambda store: store.read_at(KEY, 0, 1),
    "delete an object": lambda store: store.delete(KEY),
    "list uploads": lambda store: store.remove_unfinished(LATER),
}


@pytest.mark.parametrize("action", CALLS)
def test_refusal_names_the_action_and_the_code(user: S3User, action: str) -> None:
    user.permit(*ON_OBJECTS, on_bucket=ON_BUCKET)
    put(store_of(user), KEY, BytesIO(b"kept"))
    user.permit()
    with pytest.raises(StoreDenied, match=rf"cannot {action}: AccessDenied \(status 403\)$") as denied:
        CALLS[action](store_of(user))
    assert USER_SECRET not in str(denied.value)
    user.permit("GetObject")
    assert store_of(user).read_at(KEY, 0, 9) == b"kept"


@pytest.mark.parametrize(
    ("place", "secret", "code"),
    [
        (f"{BUCKET}/other", USER_SECRET, "AccessDenied"),
        ("no-such-bucket/mine", USER_SECRET, "NoSuchBucket"),
        (f"{BUCKET}/{PREFIX}", "wrong", "SignatureDoesNotMatch"),
    ],
    ids=["other-prefix", "no-bucket", "wrong-secret"],
)
def test_wrong_settings_are_told(user: S3User, place: str, secret: str, code: str) -> None:
    user.permit(*ON_OBJECTS, on_bucket=ON_BUCKET)
    with pytest.raises(StoreDenied, match=code):
        put(store_of(user, place, secret), KEY, BytesIO(b"x"))


def test_store_that_does_not_answer_has_not_refused() -> None:
    store = open_store(
        "s3://b/p", S3Options(endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b")
    )
    with pytest.raises(StoreFailed) as failed:
        store.read_at(KEY, 0, 1)
    assert not isinstance(failed.value, StoreDenied)


def test_upload_that_may_not_be_aborted_is_removed_once_it_may(
    user: S3User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "PART_BYTES", PART_BYTES)
    user.permit("PutObject", on_bucket=ON_BUCKET)
    with pytest.raises(ConnectionError, match="the client has gone"):
        put(store_of(user), KEY, Broken())
    assert len(uploads_below(user)) == 1
    with pytest.raises(StoreDenied, match="list uploads: AccessDenied"):
        store_of(user).remove_unfinished(LATER)
    user.permit(*ON_OBJECTS, on_bucket=ON_BUCKET)
    store_of(user).remove_unfinished(LATER)
    assert uploads_below(user) == []
