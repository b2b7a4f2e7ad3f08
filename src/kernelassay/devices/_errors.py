"""What this package raises where a caller can act on it."""

from __future__ import annotations


class DeviceError(Exception):
    """The device that a caller named cannot be used; the message ends with the next command."""
