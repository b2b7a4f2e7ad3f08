"""NVML, read only: the vendor's library tells what a GPU is and does; nothing here changes a setting of it.

`nvidia-ml-py` is imported when first asked, and another object with the same functions can stand in for it. A figure
that a device does not give is None: NVML answers "not supported" for many, and an old driver lacks functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class NvmlError(Exception):
    """There is no usable driver; the message says why in one line."""


class Nvml:
    """An open NVML."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def ask(self, function: str, *arguments: Any) -> Any:
        """What NVML's `function` answers; None where the device or the driver does not know."""
        call = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._library.NVMLError:
            return None

    def text(self, function: str, *arguments: Any) -> str | None:
        """The same for text, which old bindings give as bytes."""
        answer = self.ask(function, *arguments)
        return answer.decode() if isinstance(answer, bytes) else answer

    def switch(self, function: str, *arguments: Any) -> bool | None:
        """The same for a switch: its current state, where a pending one may stand beside it."""
        answer = self.ask(function, *arguments)
        if isinstance(answer, list | tuple):
            answer = answer[0]
        return None if answer is None else bool(answer)

    def constant(self, name: str) -> int:
        """The value of one of NVML's constants."""
        return int(getattr(self._library, name))


@contextmanager
def opened(library: Any = None) -> Iterator[Nvml]:
    """NVML between its start and its end.

    Args:
        library: Stands in for the module `pynvml`.

    Raises:
        NvmlError: there is no binding, no driver, or the driver does not answer.
    """
    found = _binding() if library is None else library
    try:
        found.nvmlInit()
    except found.NVMLError as error:
        raise NvmlError(f"NVML does not start: {error}") from error
    try:
        yield Nvml(found)
    finally:
        found.nvmlShutdown()


def _binding() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlError(f"the package nvidia-ml-py cannot be imported: {error}") from error
    return pynvml
