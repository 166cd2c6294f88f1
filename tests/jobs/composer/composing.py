"""The composer API on rows in SQLite, with doubles of engine, bases and contents."""

from __future__ import annotations

import json
from base64 import b64encode
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from twisted.internet.defer import Deferred

from image_service.common.objects.s3_client import S3Options
from image_service.common.objects.s3_links import S3Links
from image_service.core.errors import EngineUnavailable, ImageServiceError, NotFound
from image_service.jobs.artifacts.image_catalog import ImageCatalog
from image_service.jobs.composer.compose_routes import ComposeRoutes
from image_service.jobs.composer.composer_api import ComposerApi
from image_service.jobs.composer.errors import BASE_PATH
from image_service.jobs.composer.image_routes import ImageRoutes
from image_service.jobs.composer.reference_routes import ReferenceRoutes
from image_service.jobs.composer.requests import ComposeLimits
from image_service.jobs.composer.service import ComposeService
from image_service.jobs.dispatch.compose_plans import ComposePlans
from image_service.jobs.model import ComposeBase, ImageType
from image_service.jobs.principal import Principal
from image_service.server.web_api.messages import ApiRequest, ApiResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from image_service.core.provenance.dsse import SigningKeys
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.model import Compose, UploadResult
    from image_service.jobs.plans.plan import UploadPlace
    from tests.jobs.database.composing import Rows

T = TypeVar("T")

ORG_1, ORG_2 = Principal("org-1"), Principal("org-2")
IGNITION = b'{"ignition": {"version": "3.4.0"}, "s3cr3t": 1}'
BASE_DISK = ComposeBase("419.1", "x86_64", "metal", "raw")
DISTRIBUTIONS = {
    name: {"x86_64": tuple(ImageType), "aarch64": (ImageType.LIVE_INSTALLER,)}
    for name in ("rhcos-4.19", "debian-12")
}


def result_of(coroutine: Coroutine[Deferred[Any], Any, T]) -> T:
    """Return the result of a coroutine that never waits, or raise its error."""
    results: list[T] = []
    failures: list[Any] = []
    Deferred.fromCoroutine(coroutine).addCallbacks(results.append, failures.append)
    for failure in failures:
        failure.raiseException()
    return results[0]


async def at_once(work: Callable[[], T], /) -> T:
    """Run work in this thread."""
    return work()


@attrs.define
class RecordingEngine:
    """Records calls, or does not answer.

    Args:
        is_away: it says so.
        answers: it starts plans then; None: at once.
    """

    is_away: bool = False
    answers: Deferred[None] | None = None
    started: list[str] = attrs.field(factory=list)
    cancelled: list[str] = attrs.field(factory=list)

    async def start_plan(self, compose: Compose) -> bool:
        self._answer()
        if self.answers is not None:
            await self.answers
        self.started.append(compose.id)
        return True

    async def cancel_plan(self, compose_id: str) -> None:
        self._answer()
        self.cancelled.append(compose_id)

    def _answer(self) -> None:
        if self.is_away:
            raise EngineUnavailable("the engine does not answer")


class FixedBases:
    """Has `DISTRIBUTIONS`."""

    def distributions(self) -> Mapping[str, Mapping[str, tuple[ImageType, ...]]]:
        return DISTRIBUTIONS

    def all_disks(self) -> Iterator[tuple[ComposeBase, None]]:
        yield BASE_DISK, None

    def disk_bytes(self, base: ComposeBase) -> int:
        assert base.platform in {"", "metal"}
        return 2**30

    def find(self, distribution: str, architecture: str, image_type: ImageType) -> ComposeBase:
        assert image_type in DISTRIBUTIONS[distribution][architecture]
        return ComposeBase("419.1", architecture, *(["metal", "raw"] if image_type.is_disk else []))


@attrs.define
class TextContents:
    """The image of each compose is its id; they can be taken away."""

    are_gone: bool = False

    async def open_image(self, compose: Compose) -> str:
        if self.are_gone:
            raise NotFound("the image was deleted")
        return compose.id

    def open_catalog_image(self, image: CatalogImage | ComposeBase) -> str:
        return image.instance_alias

    async def respond(self, content: str, request: ApiRequest) -> ApiResponse:
        del request
        return ApiResponse(200, content.encode(), "application/octet-stream")


@attrs.frozen
class ComposerReply:
    """A response as a client sees it."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Composer:
    """The API.

    Args:
        rows: of composes and jobs.
        upload_place: for targets of S3; None: they are refused.
        max_queued: composes of one tenant that have not ended.
        get_signing_keys: signs provenance; None: nothing is signed.
    """

    def __init__(
        self,
        rows: Rows,
        upload_place: UploadPlace | None = None,
        max_queued: int = 10,
        get_signing_keys: Callable[[], SigningKeys] | None = None,
    ) -> None:
        self.rows = rows
        self.engine = RecordingEngine()
        self.contents = TextContents()
        parts: Any = self.engine, FixedBases(), self.contents
        engine, bases, contents = parts
        self.images = rows.images
        catalog = ImageCatalog(self.images, bases)
        self.service = ComposeService(
            rows.composes,
            catalog,
            ComposePlans(engine),
            bases,
            at_once,
            lambda: rows.clock().timestamp(),
            ComposeLimits(max_queued, 65_536, 2**20, 2**36, upload_place),
        )
        links = S3Links(
            S3Options(access_key_id="key", secret_access_key="s3cr3t", endpoint_url="http://s3.test")
        )
        self.api = ComposerApi(
            ComposeRoutes(self.service, rows.composes, rows.jobs, contents, at_once, links, get_signing_keys),
            ImageRoutes(catalog, self.service, contents, at_once),
            ReferenceRoutes(bases),
        )

    def __call__(
        self,
        method: str,
        path: str,
        document: object = None,
        principal: Principal = ORG_1,
        *,
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> ComposerReply:
        """Return the reply to a request; `path` is below the API's own."""
        body = b"" if document is None else json.dumps(document).encode()
        request = ApiRequest(method, BASE_PATH + path, query, body, principal=principal)
        try:
            response = result_of(self.api.respond(request))
        except ImageServiceError as error:
            response = self.api.render_error(error)
        return ComposerReply(response.status, dict(response.fields), response.body)

    def compose(self, image_type: ImageType = ImageType.LIVE_INSTALLER, **members: object) -> str:
        """Start a compose of org-1; return its id."""
        reply = self("POST", "/compose", compose_request(image_type, **members))
        assert reply.status == 201, reply
        return str(reply.document["id"])

    def set_upload(self, compose_id: str, upload: UploadResult) -> None:
        """Replace the state of the first upload of a compose."""
        compose = self.rows.composes.find_summary(compose_id)
        assert compose is not None
        self.rows.composes.set_upload(compose, 0, upload)


def compose_request(image_type: ImageType = ImageType.LIVE_INSTALLER, **members: object) -> dict[str, Any]:
    """Return a request with an Ignition config; `members` are of its image request."""
    image = {"architecture": "x86_64", "image_type": image_type.value, "repositories": [], **members}
    ignition = {"embedded": {"config": b64encode(IGNITION).decode()}}
    return {
        "distribution": "rhcos-4.19",
        "image_requests": [image],
        "customizations": {"ignition": ignition},
    }
