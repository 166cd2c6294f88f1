"""What is laid over an ISO, whatever its family."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import attrs

from image_service.core.errors import KernelArgumentInvalid
from image_service.core.families.coreos.kargs import KernelArgument, Operation, check_argument
from image_service.core.families.live.family import MediumEdit
from image_service.core.formats.hosts import ascii_host
from image_service.core.images.customization import Customization

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _words(values: Sequence[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"kernel arguments are a sequence of strings, not the string {values!a}")
    return tuple(values)


def check_rootfs_url(url: str) -> None:
    """Raise KernelArgumentInvalid unless a URL is one kernel argument; name the character to replace."""
    if not url:
        raise KernelArgumentInvalid("the URL is empty")
    for position, character in enumerate(url):
        try:
            check_argument(KernelArgument(Operation.APPEND, character))  # which has no quotes around it
        except KernelArgumentInvalid:
            raise KernelArgumentInvalid(
                f"the URL has {character!a} at position {position}, which boot loaders do not pass on alike;"
                f" write {quote(character, errors='surrogateescape')} if the server takes it for the same, or"
                " use a URL without it"
            ) from None
    try:
        if host := urlsplit(url).hostname:
            ascii_host(host)
    except ValueError as fault:
        raise KernelArgumentInvalid(str(fault)) from None


@attrs.frozen(kw_only=True)
class IsoCustomization:
    """The bytes of one machine: a config, kernel arguments and files.

    Args:
        config: of the ISO's family: Ignition of CoreOS, a preseed, kickstart or autoinstall file, …;
            byte for byte as the machine will read it. None: there is none.
        append: kernel arguments that are added, also if they are present.
        delete: kernel arguments that are removed wherever they stand.
        replace: ``KEY=OLD=NEW`` makes each ``KEY=OLD`` a ``KEY=NEW``; after deletions and additions.
        ramdisk: of CoreOS: an archive that is unpacked over the initrd, after the config.
        network_keyfiles: of CoreOS, in place of a ramdisk: NetworkManager's keyfiles by name.
        files: of other families: content by path on the medium; added or replaced.
        initrd_files: same, in one more initrd.
        efi_files: same, in the EFI system partition.
    """

    config: bytes | None = attrs.field(default=None, repr=False)
    append: Sequence[str] = attrs.field(default=(), converter=_words, repr=False)
    delete: Sequence[str] = attrs.field(default=(), converter=_words, repr=False)
    replace: Sequence[str] = attrs.field(default=(), converter=_words, repr=False)
    ramdisk: bytes | None = attrs.field(default=None, repr=False)
    network_keyfiles: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    files: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    initrd_files: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    efi_files: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)

    @property
    def kernel_arguments(self) -> tuple[KernelArgument, ...]:
        """The edits of the kernel arguments, each checked; raises KernelArgumentInvalid."""
        edits = (
            (Operation.DELETE, self.delete),
            (Operation.APPEND, self.append),
            (Operation.REPLACE, self.replace),
        )
        arguments = tuple(KernelArgument(operation, value) for operation, values in edits for value in values)
        for argument in arguments:
            check_argument(argument)
        return arguments

    @property
    def medium_edit(self) -> MediumEdit:
        """The files for ISOs of other families than CoreOS."""
        return MediumEdit(files=self.files, initrd=self.initrd_files, efi_files=self.efi_files)

    def to_lay_over(self, ramdisk: bytes | None) -> Customization:
        """Return what the composition of images takes, with the ramdisk that is made of keyfiles."""
        return Customization(self.config or b"", self.kernel_arguments, modified=None, ramdisk=ramdisk)
