"""One machine, reached by the Redfish service of its BMC. It blocks; sushy knows the vendors' differences."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import sushy
from sushy.auth import BasicAuth
from sushy.exceptions import AccessError, HTTPError, SushyError
from sushy.exceptions import ConnectionError as Unreachable

from image_service.core.errors import ImageServiceError
from image_service.tools.doctor.rules import ClientProfile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from sushy.resources.manager.virtual_media import VirtualMedia
    from sushy.resources.system.system import System

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0  # some BMCs read the whole head of an image before they answer an insertion
_PROFILES = {
    "dell": ClientProfile.IDRAC,
    "hpe": ClientProfile.ILO,
    "hewlett": ClientProfile.ILO,
    "supermicro": ClientProfile.SUPERMICRO,
    "openbmc": ClientProfile.OPENBMC,
}
_MEDIA = (sushy.VirtualMediaType.CD, sushy.VirtualMediaType.DVD)

# It logs requests with their bodies, in which the URL of the image is, and errors, which are raised anyway.
_log = logging.getLogger("sushy")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class RedfishFailure(ImageServiceError):
    """A BMC cannot be reached, refuses something, or cannot do it."""

    code = "redfish-failed"


@attrs.frozen
class BmcLogin:
    """How a BMC is reached.

    Args:
        url: of its Redfish service, without user and path: ``https://bmc.example.com``.
        system: the ``Id`` of one of its systems; None: its only one.
        verify: False: its certificate is not verified; a path: of a PEM file of authorities.
    """

    url: str
    system: str | None
    user: str
    password: str = attrs.field(repr=False)
    verify: bool | str = True

    @property
    def name(self) -> str:
        """Its name in messages."""
        host = urlsplit(self.url).netloc
        return f"{host}/{self.system}" if self.system else host


@attrs.frozen
class Machine:
    """One system of a BMC; `login` names it."""

    login: BmcLogin
    system: System

    @classmethod
    def find(cls, login: BmcLogin) -> Self:
        """Log in, and find the system; raise RedfishFailure."""
        with _told(login):
            service = sushy.Sushy(
                login.url,
                verify=login.verify,
                auth=BasicAuth(login.user, login.password),
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                server_side_retries=3,
            )
            members = {system.identity: system for system in service.get_system_collection().get_members()}
        if login.system is not None and login.system in members:
            return cls(login, members[login.system])
        known = ", ".join(members) or "none"
        if login.system is not None:
            raise RedfishFailure(f"has no system {login.system}; its systems: {known}")
        if len(members) != 1:
            raise RedfishFailure(f"has {len(members)} systems; name one of them: {known}")
        return cls(login, *members.values())

    @property
    def name(self) -> str:
        """That of its login."""
        return self.login.name

    @property
    def model(self) -> str:
        """Manufacturer and model, as far as the BMC says."""
        body = self.system.json
        words = [str(body[name]) for name in ("Manufacturer", "Model") if body.get(name)]
        return " ".join(words) or "unknown model"

    @property
    def profile(self) -> ClientProfile | None:
        """The limits that its BMC has, by its manufacturer; None: they are not known."""
        maker = str(self.system.json.get("Manufacturer") or "").lower()
        return next((profile for name, profile in _PROFILES.items() if maker.startswith(name)), None)

    @property
    def power(self) -> str:
        """``on``, ``off`` or another state that the BMC reports."""
        state = self.system.power_state
        return state.value.lower() if state else "unknown"

    def insert(self, image: str, *, replace: bool) -> str:
        """Insert an image as virtual CD, and boot from it once; return the name of the device.

        Args:
            image: URL, which no message shows.
            replace: eject another medium first, which is otherwise refused.

        Raises:
            RedfishFailure: another medium is inserted, or the BMC refuses the image.
        """
        with _told(self.login, image):
            device = self._device()
            if device.inserted:
                if not replace:
                    raise RedfishFailure(
                        f"has a medium from {_host_of(device.image)} inserted; --replace ejects it"
                    )
                device.eject_media()
            device.insert_media(image, inserted=True, write_protected=True)
            self.system.set_system_boot_options(
                target=sushy.BootSource.CD, enabled=sushy.BootSourceOverrideEnabled.ONCE
            )
            return str(device.identity)

    def eject(self) -> str | None:
        """Eject the virtual CD; return the name of the device, or None if nothing was inserted."""
        with _told(self.login):
            device = self._device()
            if not device.inserted:
                return None
            device.eject_media()
            return str(device.identity)

    def restart(self) -> None:
        """Switch the machine on, or reset it if it is on; raise RedfishFailure."""
        with _told(self.login):
            is_on = self.system.power_state == sushy.PowerState.ON
            self.system.reset_system(sushy.ResetType.FORCE_RESTART if is_on else sushy.ResetType.ON)

    def _device(self) -> VirtualMedia:
        """Return the first virtual device for CDs, of the system or else of its managers."""
        found = []
        for resource in (self.system, *self.system.managers):
            try:
                found += resource.virtual_media.get_members()
            except SushyError:  # it has none: older services have it at the manager, newer ones at the system
                continue
        for device in found:
            if any(media in device.media_types for media in _MEDIA):
                return device
        raise RedfishFailure("has no virtual CD or DVD")


@contextmanager
def _told(login: BmcLogin, image: str = "") -> Iterator[None]:
    """Raise what sushy raises as RedfishFailure, without the URL of the image."""
    try:
        yield
    except AccessError:
        raise RedfishFailure(f"refuses the user {login.user} or the password") from None
    except Unreachable as error:
        raise RedfishFailure(f"cannot be reached: {_cause(error)}") from None
    except SushyError as error:
        text = " ".join(str(error).split())
        if isinstance(error, HTTPError):
            text = f"answers {error.status_code}: {error.detail or error.code}"
        raise RedfishFailure(text.replace(image, "the image") if image else text) from None
    except (AttributeError, KeyError, TypeError, ValueError):  # what sushy does with other JSON, or none
        raise RedfishFailure("answers what is not Redfish") from None


def _cause(error: BaseException) -> str:
    """Return the innermost reason: those around it repeat it, with addresses of objects."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(getattr(error, "verify_message", None) or getattr(error, "strerror", None) or error)


def _host_of(image: str | None) -> str:
    """Return where a medium is from: the rest of its URL may be a credential."""
    return (urlsplit(image).netloc.rpartition("@")[2] if image else "") or "elsewhere"
