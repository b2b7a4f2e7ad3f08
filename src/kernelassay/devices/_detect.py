"""From the name a caller gives to the device that is really there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from kernelassay.devices._cpu import cpu_device
from kernelassay.records import Device

_CATALOGUE: Mapping[str, Callable[[], Device]] = {"cpu": cpu_device}


class DeviceError(Exception):
    """The caller named a device that this release cannot judge on."""


def device_names() -> tuple[str, ...]:
    """Names that `detect` knows, sorted."""
    return tuple(sorted(_CATALOGUE))


def detect(name: str) -> Device:
    """The device called `name`, as found on this machine.

    Raises:
        DeviceError: the name is not in the catalogue; says which are and what to do next.
    """
    make = _CATALOGUE.get(name)
    if make is not None:
        return make()
    close = difflib.get_close_matches(name.lower(), _CATALOGUE, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise DeviceError(
        f"no device {name!r}; this release judges on: {', '.join(device_names())}{hint}; next: assay doctor"
    )
