"""The worker's loop: one request, one reply, in order; an exception of the submission is a reply, not an end."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import adapters, wire
from .clock import Clock, address, addresses
from .slab import Slab

CLEAN = "clean"
"""Entry kind of a worker without a submission; the judge measures a round's fixed cost with it."""
MAX_NAME, MAX_MESSAGE, MAX_TRACEBACK = 200, 1_000, 8_000
"""Characters of an exception's texts; a character may take 12 bytes in a packet, and all of them fit one."""

MAX_RESULTS = 16
"""Results of one call that are described; no problem has as many outputs."""
MAX_DISTINCT = 4
"""Distinct descriptions that one reply holds; an honest submission has one."""

Reply = dict[str, Any]


class Worker:
    """Holds the submission's live objects and answers requests about them."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds the submission's files and, where the judge built one, its library."""
        self._folder = folder
        self._job: dict[str, Any] = {}
        self._module: ModuleType | None = None
        self._kind = ""
        self._device = "cpu"
        self._synchronize = torch.cuda.synchronize  # as it is before the submission could change it
        self._models: dict[str, adapters.Adapter] = {}
        self._slabs: dict[int, Slab] = {}
        self._clock = Clock()
        self._armed_on: Slab | None = None
        self._results = 0
        self._operations: dict[str, Callable[..., Reply]] = {
            "open_device": self.open_device,
            "load": self.load,
            "model": self.model,
            "map": self.map,
            "unmap": self.unmap,
            "weights": self.weights,
            "prepare": self.prepare,
            "arm": self.arm,
            "go": self.go,
            "facts": self.facts,
            "copy": self.copy,
            "read_weights": self.read_weights,
            "quiet": self.quiet,
            "globals": self.globals,
        }

    def handle(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Answer one request; every exception of the submission becomes a reply."""
        operation = self._operations[message.pop("op")]
        request_id = message.pop("id")
        torch.set_grad_enabled(False)
        try:
            if fds:
                message["fd"] = fds[0]
            reply = operation(**message)
            if self._device != "cpu":
                self._synchronize()  # a reply says that everything before it has happened
            return {"id": request_id, "ok": True, **reply}
        except BaseException as error:  # SystemExit and KeyboardInterrupt of the submission are answers too
            text = "".join(traceback.format_exception(error))
            return {
                "id": request_id,
                "ok": False,
                "type": type(error).__name__[:MAX_NAME],
                "message": str(error)[:MAX_MESSAGE],
                "traceback": text[-MAX_TRACEBACK:],
            }

    def open_device(self) -> Reply:
        """Make the GPU's context, before anything of the submission runs."""
        torch.cuda.init()
        self._synchronize()
        return {}

    def load(self, file: str, kind: str | None, library: str | None, **job: Any) -> Reply:
        """Import the submission; `kind` None means: find out."""
        torch.set_num_threads(job["threads"])
        self._device = job["device"]
        self._job = {**job, "library": library}
        if kind not in ("c_abi", CLEAN):
            self._module = adapters.import_submission(self._folder, file)
            kind = kind or adapters.kind_of(self._module)
        self._kind = kind
        return {"kind": kind}

    def model(self, model: str, shape: dict[str, int], outputs: list[dict[str, Any]]) -> Reply:
        """Construct the entry for one shape under the name `model`."""
        job, device = self._job, self._device
        self._models.pop(model, None)  # before the next one: both together may not fit
        built: adapters.Adapter
        if self._kind == "c_abi":
            built = adapters.NativeAdapter(self._folder / job["library"], job["symbol"], outputs, shape, device)
        elif self._kind == CLEAN:
            built = adapters.CleanAdapter(outputs, device)
        elif self._module is None:
            raise RuntimeError("model before load")
        elif self._kind == "model":
            built = adapters.ModelAdapter(self._module, job["entry"], shape, job["weights"], device)
        elif self._kind == "custom_kernel":
            built = adapters.CustomKernelAdapter(self._module)
        else:
            built = adapters.RunAdapter(self._module, outputs, device)
        self._models[model] = built
        return {}

    def map(self, slab: int, fd: int, **layout: Any) -> Reply:
        """Map shared memory under the number `slab`."""
        self._slabs[slab] = Slab(fd, **layout, device=self._device)
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

    def arm(
        self,
        model: str,
        slab: int,
        sets: list[int],
        scalars: list[int],
        results: int,
        same_objects: bool,
        flush_bytes: int,
    ) -> Reply:
        """Bind one call per number in `sets`, in that order, for the next `go`; each is to give `results` tensors.

        With `same_objects` the tensors are those of the last such call on the same set, not new views.
        """
        source, adapter = self._slabs[slab], self._models[model]
        views = source.kept if same_objects else source.views
        calls = [adapter.bind(views(number), scalars) for number in sets]
        self._clock.arm(calls, flush_bytes, self._device)
        self._armed_on, self._results = source, results
        return {}

    def go(self) -> Reply:
        """Make the armed calls and note where the results lie; the reply holds nothing that could be said later."""
        source = self._armed_on
        if source is None:
            raise RuntimeError("go before arm")
        self._clock.go()
        source.note(addresses(self._clock.held, self._results))
        return {}

    def facts(self) -> Reply:
        """Describe the last `go`: per call, the number of its description among the distinct, and nanoseconds."""
        source = self._armed_on
        if source is None:
            raise RuntimeError("facts before arm")
        distinct: list[list[dict[str, Any]]] = []
        index = []
        for results in self._clock.held:
            told = [describe(result, source) for result in results[:MAX_RESULTS]]
            if told not in distinct[:MAX_DISTINCT]:
                distinct.append(told)
            index.append(distinct.index(told) if told in distinct else len(distinct))
        return {"distinct": distinct[:MAX_DISTINCT], "index": index, "ns": self._clock.stamps}

    def copy(self, slab: int) -> Reply:
        """Copy the results of the last `go` into the sets of a slab, for a judge that may not read this process."""
        target = self._slabs[slab]
        for number, results in enumerate(self._clock.held):
            views = target.views(number).values()
            if len(results) == len(views):
                for result, view in zip(results, views, strict=True):
                    _copy(result, view)
        return {}

    def read_weights(self, model: str, slab: int) -> Reply:
        """Copy the model's current weights into a slab."""
        for name, view in self._slabs[slab].views().items():
            _copy(self._models[model].get_weights()[name], view)
        return {}

    def quiet(self) -> Reply:
        """Threads and children of this process, as the kernel counts them."""
        tasks = list(Path("/proc/self/task").iterdir())
        children = [p for t in tasks for p in (t / "children").read_text().split()] if tasks else []
        return {"threads": len(tasks), "python_threads": threading.active_count(), "children": len(children)}

    def globals(self) -> Reply:
        """Global state that a submission might change, as text."""
        return {"globals": global_state()}


def global_state() -> dict[str, str]:
    """Flags, environment and identities of functions that honest code leaves alone; an account, not a proof."""
    names = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time")
    methods = ("data_ptr", "copy_", "is_contiguous")
    watched = ("allclose", "equal", "isclose", "topk", "sort", "matmul", "empty", "zeros", "frombuffer")
    readings: dict[str, Callable[[], str]] = {
        "clocks": lambda: ", ".join(f"{n}={getattr(time, n)!r}" for n in names),
        "torch functions": lambda: ", ".join(f"{n}={_origin(getattr(torch, n))}" for n in watched),
        "tensor methods": lambda: ", ".join(f"{n}={_origin(getattr(Tensor, n))}" for n in methods),
        "default dtype": lambda: str(torch.get_default_dtype()),
        "threads": lambda: str(torch.get_num_threads()),
        "deterministic": lambda: str(torch.are_deterministic_algorithms_enabled()),
        "matmul precision": lambda: torch.get_float32_matmul_precision(),
        "tf32": lambda: f"{torch.backends.cuda.matmul.allow_tf32} {torch.backends.cudnn.allow_tf32}",
        "flush denormals": lambda: str(float(torch.tensor([1e-40]) * 1.0 != 0.0)),
        "environment": lambda: str(sorted(os.environ.items()))[:2000],
    }
    told = {}
    for name, read in readings.items():
        try:
            told[name] = read()
        except Exception as error:  # torch refuses to read some switches after others were set
            told[name] = f"{type(error).__name__}: {error}"[:200]
    return told


def _origin(function: Any) -> str:
    return f"{type(function).__name__}:{getattr(function, '__module__', None)}"


def describe(result: Any, inputs: Slab) -> dict[str, Any]:
    """Facts about one returned object."""
    kind = type(result)
    fact: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"[:200]}
    if kind is not Tensor and kind is not torch.nn.Parameter:
        return fact
    if result.is_nested:  # a Tensor by type that has no shape
        return {"type": "torch.Tensor (nested)"}
    fact |= {
        "dtype": str(result.dtype).removeprefix("torch."),
        "shape": list(result.shape),
        "strides": list(result.stride()) if result.layout is torch.strided else None,
        "device": str(result.device),
        "lazy": bool(result.is_conj() or result.is_neg()),
    }
    strided = result.layout is torch.strided and result.device == inputs.device
    fact["contiguous"] = strided and result.is_contiguous()
    if strided and result.numel():
        fact["aliases_input"] = inputs.start <= result.data_ptr() < inputs.end
    return fact


def _copy(result: Any, view: Tensor) -> None:
    if not (address(result) and result.dtype == view.dtype and result.shape == view.shape and result.is_contiguous()):
        return
    if result.is_cuda or view.is_cuda:
        view.copy_(result)
    else:
        ctypes.memmove(view.data_ptr(), result.data_ptr(), view.numel() * view.element_size())


def main(fd: int, folder: Path) -> None:
    """Serve requests on the inherited packet socket `fd` until the judge closes it."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    worker = Worker(folder)
    canary = ctypes.create_string_buffer(bytes(range(1, 65)))
    wire.send(sock, {"id": 0, "ok": True, "torch": torch.__version__, "canary": ctypes.addressof(canary)})
    while True:
        try:
            message, fds = wire.receive(sock, accept_fds=True)
        except wire.Closed:
            os._exit(0)
        wire.send(sock, worker.handle(message, fds))
