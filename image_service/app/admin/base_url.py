"""The base URL of the service, and the choice of its address."""

from __future__ import annotations

import json
from functools import partial
from ipaddress import IPv4Address
from itertools import chain
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from twisted.internet.defer import DeferredLock
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from image_service.common.files.atomic import atomic_write
from image_service.common.http.own_addresses import find_own_addresses
from image_service.core.errors import Conflict, InvalidParameter, Unavailable
from image_service.settings.parsers import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from twisted.internet.epollreactor import EPollReactor

    from image_service.common.http.own_addresses import OwnAddress
    from image_service.settings.settings import Settings

_log = Logger()

FILE = "image-service-address.json"
"""In ``DATA_DIR``: the address that was chosen."""
_MAX_FILE_BYTES = 4096


class BaseUrl:
    """The URL by which clients reach the service, without a slash at its end: one for all that it serves.

    In standalone mode on all addresses an operator may choose the one in it; the choice survives a restart.

    Args:
        port: bound for ``LISTEN_PORT``.
    """

    def __init__(self, reactor: EPollReactor, settings: Settings, port: int, *, standalone: bool) -> None:
        self._reactor = reactor
        self._settings = settings
        self._port = port
        self._lock = DeferredLock()
        self._file = settings.storage.data_dir / FILE
        self.decided_by = _deciding_setting(settings, standalone=standalone)
        self._fault = ""
        self._chosen = None if self.decided_by else self._load()
        self.url = self._make(self._chosen if self.is_chosen_present else None)

    def get(self) -> str:
        """Return it as it is now."""
        return self.url

    def find_all(self) -> list[str]:
        """Return it as it is now, and those of the other addresses that may be chosen."""
        others = () if self.decided_by else map(self._make, self._texts())
        return list(dict.fromkeys((self.url, *others)))

    def of_plain_port(self, port: int) -> str:
        """Return the URL of another port, on plain HTTP."""
        return f"http://{Address(urlsplit(self.url).hostname or '', port).netloc}"

    @property
    def is_chosen_present(self) -> bool:
        """True unless an address was chosen that is not this machine's now."""
        return self._chosen is None or self._chosen in self._texts()

    def find_warnings(self) -> Iterator[str]:
        """Yield a sentence about a choice that cannot be followed."""
        if self._fault:
            yield self._fault
        if not self.is_chosen_present:
            yield (
                f"{self._chosen}, which was chosen for URLs, is not an address of this machine now: they"
                f" begin with {self.url}"
            )

    def describe(self) -> Mapping[str, Any]:
        """Return ``BaseAddress`` of `admin.status_api`."""
        found = [] if self.decided_by else self._find_addresses()
        addresses = [{"address": str(each.address), "interface": each.interface} for each in found]
        return {
            "decided_by": self.decided_by,
            "chosen": self._chosen,
            "is_present": self._chosen is None or any(each["address"] == self._chosen for each in addresses),
            "addresses": addresses,
        }

    def follow(self) -> bool:
        """Have URLs begin with the chosen address if they do not, and this machine has it again.

        Returns:
            Whether they begin with another address now.
        """
        if self._chosen is None or not self.is_chosen_present:
            return False
        url = self._make(self._chosen)
        if url == self.url:
            return False
        self._use(url)
        return True

    async def choose(self, address: str | None) -> None:
        """Have URLs begin with an address of this machine; None: that of the default route, as at the start.

        Raises:
            Conflict: a setting decides.
            InvalidParameter: it is not an address of this machine.
            Unavailable: the choice cannot be stored; URLs stay as they are.
        """
        if self.decided_by:
            raise Conflict(f"{self.decided_by} decides the address in URLs")
        texts = self._texts()
        if address is not None and address not in texts:
            raise InvalidParameter(f"address must be null or one of this machine's: {', '.join(texts)}")
        await self._lock.run(self._choose, address)

    async def _choose(self, address: str | None) -> None:
        save = partial(self._save, address)
        try:
            await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), save)
        except OSError as error:
            raise Unavailable(f"the choice cannot be stored in DATA_DIR: {error.strerror}") from None
        self._chosen = address
        self._use(self._make(address))

    def _use(self, url: str) -> None:
        self.url = url
        _log.info("URLs begin with {url} from now on", url=url)

    def _make(self, address: str | None) -> str:
        return self._settings.base_url(self._port, address)

    def _find_addresses(self) -> list[OwnAddress]:
        is_ipv4 = isinstance(self._settings.listen.address, IPv4Address)
        families = (AF_INET,) if is_ipv4 else (AF_INET, AF_INET6)
        return list(chain.from_iterable(map(find_own_addresses, families)))

    def _texts(self) -> list[str]:
        return [str(each.address) for each in self._find_addresses()]

    def _save(self, address: str | None) -> None:
        if address is None:
            self._file.unlink(missing_ok=True)
            return
        with atomic_write(self._file) as file:
            file.write(json.dumps({"address": address}).encode())

    def _load(self) -> str | None:
        try:
            with self._file.open("rb") as file:
                document = json.loads(file.read(_MAX_FILE_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self._fault = f"cannot read which address was chosen for URLs: {FILE}: {error}"
            return None
        match document:
            case {"address": str(address)}:
                return address
        self._fault = f"{FILE} must be an object with an address, as the service writes it; none is chosen"
        return None


def _deciding_setting(settings: Settings, *, standalone: bool) -> str | None:
    """Return the variable that decides the address in URLs; None: an operator may choose it."""
    listen = settings.listen
    # Replicas, and assisted-service, which makes URLs itself, must have the same one.
    if listen.base_url is not None or not standalone or settings.database.url is not None:
        return "IMAGE_SERVICE_BASE_URL"
    is_everywhere = listen.address is not None and listen.address.is_unspecified
    return None if is_everywhere else "LISTEN_ADDRESS"
