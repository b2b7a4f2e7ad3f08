"""The worker's loop: one request, one reply, in order; an exception of the submission is a reply, not an end."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import adapters, wire
from .slab import Slab

MAX_TEXT = 16_000
"""Characters of one error text; a packet holds several of them."""

Reply = dict[str, Any]


class Worker:
    """Holds the submission's live objects and answers requests about them."""

    def __init__(self) -> None:
        self._job: dict[str, Any] = {}
        self._module: ModuleType | None = None
        self._kind = ""
        self._models: dict[str, adapters.Adapter] = {}
        self._slabs: dict[int, Slab] = {}
        self._operations: dict[str, Callable[..., Reply]] = {
            "load": self.load,
            "model": self.model,
            "map": self.map,
            "unmap": self.unmap,
            "weights": self.weights,
            "prepare": self.prepare,
            "call": self.call,
            "quiet": self.quiet,
        }

    def handle(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Answer one request; every exception of the submission becomes a reply."""
        operation = self._operations[message.pop("op")]
        request_id = message.pop("id")
        try:
            if fds:
                message["fd"] = fds[0]
            reply = operation(**message)
            return {"id": request_id, "ok": True, **reply}
        except BaseException as error:  # SystemExit and KeyboardInterrupt of the submission are answers too
            text = "".join(traceback.format_exception(error))
            return {
                "id": request_id,
                "ok": False,
                "type": type(error).__name__,
                "message": str(error)[:MAX_TEXT],
                "traceback": text[-MAX_TEXT:],
            }

    def load(self, folder: str, file: str, kind: str | None, library: str | None, **job: Any) -> Reply:
        """Import the submission; `kind` None means: find out."""
        torch.set_num_threads(job["threads"])
        self._job = {**job, "library": library}
        if kind != "c_abi":
            self._module = adapters.import_submission(Path(folder), file)
            kind = kind or adapters.kind_of(self._module)
        self._kind = kind
        return {"kind": kind}

    def model(self, model: str, shape: dict[str, int], outputs: list[dict[str, Any]]) -> Reply:
        """Construct the entry for one shape under the name `model`."""
        job = self._job
        built: adapters.Adapter
        if self._kind == "c_abi":
            built = adapters.NativeAdapter(Path(job["library"]), job["symbol"], outputs, shape)
        elif self._module is None:
            raise RuntimeError("model before load")
        elif self._kind == "model":
            built = adapters.ModelAdapter(self._module, job["entry"], shape, job["weights"])
        elif self._kind == "custom_kernel":
            built = adapters.CustomKernelAdapter(self._module)
        else:
            built = adapters.RunAdapter(self._module, outputs)
        self._models[model] = built
        return {}

    def map(self, slab: int, size_bytes: int, fields: list[dict[str, Any]], fd: int) -> Reply:
        """Map shared memory under the number `slab`."""
        self._slabs[slab] = Slab(fd, size_bytes, fields)
        return {}

    def unmap(self, slab: int) -> Reply:
        """Forget a slab; the memory goes when the submission holds no view of it."""
        self._slabs.pop(slab, None)
        return {}

    def weights(self, model: str, slab: int, only: list[str] | None) -> Reply:
        """Change the model's weights to the slab's values."""
        self._models[model].set_weights(self._slabs[slab].views(), only)
        return {}

    def prepare(self, model: str) -> Reply:
        """Call `prepare()` where the submission has one."""
        return {"called": self._models[model].prepare()}

    def call(self, model: str, inputs: int, outputs: int, scalars: list[int]) -> Reply:
        """One call; the outputs are copied, as raw bytes, into the slab `outputs`."""
        source, target = self._slabs[inputs], self._slabs[outputs]
        results = self._models[model].call(source.views(), scalars)
        facts = [describe(result, source) for result in results]
        if len(results) == len(target.fields):
            for result, fact, (name, view) in zip(results, facts, target.views().items(), strict=True):
                fact["copied"] = fact["plain"] and _copy(result, view)
                fact["name"] = name
        return {"outputs": facts}

    def quiet(self) -> Reply:
        """Threads and children of this process, as the kernel counts them."""
        tasks = list(Path("/proc/self/task").iterdir())
        children = [p for t in tasks for p in (t / "children").read_text().split()] if tasks else []
        return {"threads": len(tasks), "python_threads": threading.active_count(), "children": len(children)}


def describe(result: Any, inputs: Slab) -> dict[str, Any]:
    """Facts about one returned object; `plain` says that its memory can be read as it lies."""
    kind = type(result)
    fact: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"[:200], "plain": False}
    if kind is not Tensor and kind is not torch.nn.Parameter:
        return fact
    fact |= {
        "dtype": str(result.dtype).removeprefix("torch."),
        "shape": list(result.shape),
        "strides": list(result.stride()) if result.layout is torch.strided else None,
        "device": str(result.device),
        "lazy": bool(result.is_conj() or result.is_neg()),
    }
    strided = result.layout is torch.strided and result.device.type == "cpu"
    contiguous = strided and result.is_contiguous()
    fact["contiguous"] = contiguous
    if strided and result.numel():
        fact["aliases_input"] = inputs.start <= result.data_ptr() < inputs.end
    fact["plain"] = contiguous and not fact["lazy"] and kind is Tensor
    return fact


def _copy(result: Tensor, view: Tensor) -> bool:
    if result.dtype != view.dtype or result.shape != view.shape:
        return False
    ctypes.memmove(view.data_ptr(), result.data_ptr(), view.numel() * view.element_size())
    return True


def main(fd: int) -> None:
    """Serve requests on the inherited packet socket `fd` until the judge closes it."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    worker = Worker()
    wire.send(sock, {"id": 0, "ok": True, "torch": torch.__version__})
    while True:
        try:
            message, fds = wire.receive(sock, accept_fds=True)
        except wire.Closed:
            os._exit(0)
        wire.send(sock, worker.handle(message, fds))
