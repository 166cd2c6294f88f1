"""What is asked of a BMC, where the emulator of the acceptance test does not show it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import sushy

from image_service.core.errors import ConfigurationError
from image_service.tools.doctor.rules import ClientProfile
from image_service.tools.redfish.bmc_list import BmcAddress, parse_bmc_url, read_bmcs
from image_service.tools.redfish.machine import BmcLogin, Machine, RedfishFailure

if TYPE_CHECKING:
    from sushy.resources.system.system import System

LOGIN = BmcLogin("https://bmc", None, "admin", "hidden")


class Device:
    """A virtual device that accepts everything."""

    identity, image = "Cd", "http://user:hidden@other/hidden.iso"
    media_types = (sushy.VirtualMediaType.DVD,)

    def __init__(self, *, inserted: bool) -> None:
        self.inserted = inserted
        self.calls: list[object] = []

    def insert_media(self, image: str, **options: object) -> None:
        self.calls.append((image, options))

    def eject_media(self) -> None:
        self.calls.append("eject")


def machine(
    *devices: Device, power: sushy.PowerState = sushy.PowerState.ON, **body: str
) -> tuple[Machine, list[Any]]:
    """Return a machine whose manager has devices, and the calls of its system."""
    calls: list[Any] = []

    class WithoutMedia:
        def get_members(self) -> list[Device]:
            raise sushy.exceptions.MissingAttributeError(attribute="VirtualMedia", resource="/")

    system = SimpleNamespace(
        json=body,
        power_state=power,
        virtual_media=WithoutMedia(),
        managers=[SimpleNamespace(virtual_media=SimpleNamespace(get_members=lambda: list(devices)))],
        set_system_boot_options=lambda **options: calls.append(options),
        reset_system=calls.append,
    )
    return Machine(LOGIN, cast("System", system)), calls


def test_machine_boots_from_the_inserted_medium_once() -> None:
    device = Device(inserted=False)
    booted, calls = machine(device)
    assert booted.insert("http://image", replace=False) == "Cd"
    assert device.calls == [("http://image", {"inserted": True, "write_protected": True})]
    assert calls == [{"target": sushy.BootSource.CD, "enabled": sushy.BootSourceOverrideEnabled.ONCE}]


def test_medium_of_somebody_else_stays_and_is_named_by_its_host() -> None:
    device = Device(inserted=True)
    booted, calls = machine(device)
    with pytest.raises(
        RedfishFailure, match=r"has a medium from other inserted; --replace ejects it"
    ) as refused:
        booted.insert("http://image", replace=False)
    assert (device.calls, calls, "hidden" in refused.value.detail) == ([], [], False)
    booted.insert("http://image", replace=True)
    assert device.calls[0] == "eject"


def test_machine_without_virtual_cd_is_refused() -> None:
    floppy = Device(inserted=False)
    floppy.media_types = (sushy.VirtualMediaType.FLOPPY,)
    for booted in (machine()[0], machine(floppy)[0]):
        with pytest.raises(RedfishFailure, match="has no virtual CD or DVD"):
            booted.insert("http://image", replace=False)


@pytest.mark.parametrize("error", [ValueError, AttributeError, TypeError, KeyError])
def test_reply_that_is_not_redfish_is_a_failure_of_this_bmc(error: type[Exception]) -> None:
    class Garbled(Device):
        def insert_media(self, *_: object, **__: object) -> None:
            raise error("https://secret/")

    booted, _ = machine(Garbled(inserted=False))
    with pytest.raises(RedfishFailure, match=r"^answers what is not Redfish$"):
        booted.insert("https://secret/", replace=False)


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (sushy.PowerState.ON, sushy.ResetType.FORCE_RESTART),
        (sushy.PowerState.OFF, sushy.ResetType.ON),
        (None, sushy.ResetType.ON),
    ],
)
def test_machine_is_reset_or_switched_on(power: sushy.PowerState, expected: sushy.ResetType) -> None:
    booted, calls = machine(power=power)
    booted.restart()
    assert calls == [expected]


@pytest.mark.parametrize(
    ("maker", "profile"),
    [
        ("Dell Inc.", ClientProfile.IDRAC),
        ("HPE", ClientProfile.ILO),
        ("Supermicro", ClientProfile.SUPERMICRO),
        ("OpenBMC", ClientProfile.OPENBMC),
        ("Contoso", None),
    ],
)
def test_doctor_gets_the_limits_of_the_maker(maker: str, profile: ClientProfile | None) -> None:
    assert machine(Manufacturer=maker)[0].profile is profile


def test_password_is_not_shown() -> None:
    assert "hidden" not in repr(LOGIN)


@pytest.mark.parametrize("url", ["bmc:8443", "https://bmc:8443/", "https://bmc:8443/redfish/v1/"])
def test_url_of_a_bmc_is_its_service(url: str) -> None:
    assert parse_bmc_url(url) == "https://bmc:8443"


def test_file_of_bmcs() -> None:
    text = "https://a  # rack 1\n\n# none\nb 1\nhttp://c - c.txt\n[2001:db8::1] 2 d.txt\n"
    assert list(read_bmcs(text)) == [
        BmcAddress("https://a"),
        BmcAddress("https://b", "1"),
        BmcAddress("http://c", None, "c.txt"),
        BmcAddress("https://[2001:db8::1]", "2", "d.txt"),
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("ftp://a", "must be like https://bmc.example.com"),
        ("https://u:p@a", "must have no user and password"),
        ("a 1 c.txt more", "must be URL \\[SYSTEM"),
        ("[", "must be like"),
    ],
)
def test_line_of_a_file_of_bmcs_is_refused_by_number(line: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"line 2: .*{fault}"):
        list(read_bmcs(f"a\n{line}\n"))
