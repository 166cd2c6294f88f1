"""The arguments of ``image-service infra-env``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.cli.infra_env.kinds import URLS_OF_KINDS
from image_service.cli.shared.command import parse_web_url
from image_service.cli.shared.input import parse_input_name

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser

_EXAMPLES = """\
examples:
  image-service infra-env create --name lab --base 4.20 --ignition config.ign --ssh-key ~/.ssh/id_ed25519.pub
  image-service infra-env create --name lab --base 4.20 --butane config.bu --static-network network.yaml
  image-service infra-env create --csv rack7.csv --base 4.20 --ssh-key ~/.ssh/id_ed25519.pub
  image-service infra-env show lab --kind minimal-iso --kind ipxe
  image-service infra-env edit lab --hostname worker-1 --karg console=ttyS0
"""


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "infra-env",
        help="make images of a config, in standalone mode",
        description="Register infra-envs at a running service in standalone mode, and print the URLs of their"
        " images. Beside assisted-service, infra-envs are made there. Without --api,"
        " STANDALONE_LISTEN and STANDALONE_TOKEN of the environment say where the service is asked.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb, text in (
        ("create", "register an infra-env, and print the URLs of its images"),
        ("list", "show all infra-envs"),
        ("show", "print the URLs of an infra-env's images"),
        ("edit", "change an infra-env: each option replaces the value of its attribute"),
        ("copy", "register an infra-env that is like another one"),
        ("delete", "remove infra-envs; their images are then refused"),
    ):
        declared = verbs.add_parser(verb, help=text, description=f"{text[0].upper()}{text[1:]}.")
        declared.set_defaults(run=run, verb=verb, refuse=declared.error, csv=None)
        if verb in {"show", "edit", "copy"}:
            declared.add_argument(
                "infra_env", metavar="INFRA-ENV", help="its id, or its name if only one has it"
            )
        if verb == "delete":
            declared.add_argument(
                "infra_envs", nargs="+", metavar="INFRA-ENV", help="its id, or its name if only one has it"
            )
        if verb in {"create", "edit", "copy"}:
            _add_fields(declared)
        if verb == "create":
            declared.add_argument(
                "--csv",
                type=parse_input_name,
                metavar="FILE",
                help="register one for each line; the first one names columns as options are named: name,"
                " base, arch, hostname, ignition, butane, config, ssh_key, karg, and network with mac; - is"
                " standard input",
            )
        if verb in {"create", "show", "edit", "copy"}:
            declared.add_argument(
                "--kind",
                choices=list(URLS_OF_KINDS),
                action="append",
                dest="kinds",
                help="print the URLs of these images alone; repeatable; pxe is kernel, initrd and rootfs",
            )
        if verb != "delete":
            declared.add_argument("--json", action="store_true", help="print JSON")
        _add_service(declared)


def _add_service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api", type=parse_web_url, metavar="URL", help="base URL of the API of standalone mode"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file of the API's token")
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="PEM file of certificate authorities to trust too"
    )


def _add_fields(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="TEXT", help="name for people")
    parser.add_argument(
        "--base",
        metavar="VERSION",
        help="version of the base image, such as 4.20; `image-service images list` shows them",
    )
    parser.add_argument("--arch", metavar="NAME", help="architecture of the base image (default: x86_64)")
    coreos_config = parser.add_mutually_exclusive_group()
    coreos_config.add_argument(
        "--ignition",
        type=parse_input_name,
        metavar="FILE",
        help="the Ignition config, version 3; - is standard input",
    )
    coreos_config.add_argument(
        "--butane",
        type=parse_input_name,
        metavar="FILE",
        help="the config as Butane, which the service translates if butane is installed there",
    )
    parser.add_argument(
        "--config",
        type=parse_input_name,
        metavar="FILE",
        help="the config of another family than CoreOS: a preseed, kickstart or autoinstall file, …",
    )
    parser.add_argument(
        "--ssh-key",
        type=parse_input_name,
        metavar="FILE",
        action="append",
        help="public keys of the user core; repeatable",
    )
    parser.add_argument("--hostname", metavar="NAME", help="host name of the machine")
    for operation, option in (
        ("append", "--karg"),
        ("delete", "--karg-delete"),
        ("replace", "--karg-replace"),
    ):
        parser.add_argument(
            option,
            metavar="KEY=OLD=NEW" if operation == "replace" else "ARG",
            action="append",
            dest="kernel_arguments",
            type=partial(_parse_kernel_argument, operation),
            help=f"kernel argument to {operation}; repeatable",
        )
    parser.add_argument(
        "--network-keyfile",
        type=Path,
        metavar="FILE",
        action="append",
        help="a NetworkManager keyfile, NAME.nmconnection; repeatable",
    )
    parser.add_argument(
        "--static-network",
        type=parse_input_name,
        metavar="FILE",
        help="assisted-service's static_network_config, as YAML or JSON: a list of network_yaml, nmstate's,"
        " and mac_interface_map; the service converts it if nmstatectl is installed there",
    )


def _parse_kernel_argument(operation: str, value: str) -> dict[str, str]:
    return {"operation": operation, "value": value}


def run(options: argparse.Namespace) -> int:
    """Run the verb; return the exit status."""
    if options.verb == "create" and options.csv is None and None in {options.name, options.base}:
        options.refuse("create needs --name and --base, or --csv")
    if options.csv is not None and options.kinds:
        options.refuse("--kind does not go with --csv, which prints the ISOs, or with --json all URLs")
    # Imported here because no other command needs them.
    from image_service.cli.infra_env.verbs import VERBS  # noqa: PLC0415

    VERBS[options.verb](options)
    return 0
