"""One constructed model at one shape, and the calls that checks, probes and clocks make through it.

Values come as raw bytes, read by the judge out of the worker's memory where the results lie; where the kernel does
not permit that, the worker copies them into shared memory and the record says so. Either way they are compared with
nothing but the judge's private copies, and memory that was not written cannot look right, because it was poisoned.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import ValidationError
from torch import Tensor

from kernelassay.records import Record, Role, Shape
from kernelassay.session._peek import PeekError, read_memory
from kernelassay.session._session import Session
from kernelassay.session._slab import POISON, DeviceKind, Slab, torch_dtype


class OutputFact(Record):
    """What the worker says of one returned object."""

    type: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    device: str = ""
    lazy: bool = False
    contiguous: bool = False
    aliases_input: bool = False


class _Facts(Record):
    distinct: tuple[tuple[OutputFact, ...], ...]
    index: tuple[int, ...]


@dataclass(frozen=True)
class CallResult:
    """One call, as the judge saw it."""

    facts: tuple[OutputFact, ...]
    outputs: dict[str, Tensor]
    """Private snapshots of the outputs; poison where nothing could be read."""
    arguments: dict[str, Tensor]
    """Private snapshots of inputs and state after the call."""
    inner_us: float
    """What the worker's clock says the call took: a claim."""


@dataclass(frozen=True)
class Round:
    """Some calls in a row."""

    calls: tuple[CallResult, ...]
    elapsed_us: float
    """On the judge's clock, from before the worker could see the inputs until it said that it was done; when it was
    frozen, until it stood still with all results in its memory."""
    done_us: float
    """Until it said that it was done: only a hint of a worker that holds a submission, but what a clean one needs."""


class Rig:
    """The entry, constructed for one shape in one worker."""

    def __init__(self, session: Session, shape: Shape) -> None:
        """Construct it.

        Raises:
            Trouble: the constructor failed.
        """
        self.session, self.shape = session, shape
        self.problem = session.job.problem
        self.limits = session.job.limits
        self._single: Batch | None = None
        outputs = Slab(self.problem.role(Role.OUTPUT), shape, "assay-layout")
        session.ask("model", self.limits.load_s, model=shape.key, shape=shape.values, outputs=outputs.fields)
        outputs.close()

    @property
    def device(self) -> DeviceKind:
        """Where its tensors lie."""
        return self.session.job.device

    def set_weights(self, weights: Mapping[str, Tensor], only: Sequence[str] | None = None) -> None:
        """Change weights by the documented route, then `prepare()`; nothing for a problem without weights.

        Raises:
            Trouble: the model's state_dict is not the contract's, or `prepare()` failed.
        """
        if not self.problem.role(Role.WEIGHT):
            return
        number, slab = self.session.weights_slab(self.shape)
        slab.write(dict(weights))
        names = None if only is None else list(only)
        self.session.ask("weights", self.limits.load_s, model=self.shape.key, slab=number, only=names)
        self.session.ask("prepare", self.limits.prepare_s, model=self.shape.key)

    def read_weights(self) -> dict[str, Tensor]:
        """The model's weights as the worker copies them out; poison where it copied nothing."""
        if not self.problem.role(Role.WEIGHT):
            return {}
        number, slab = self.session.weights_slab(self.shape)
        slab.poison()
        self.session.ask("read_weights", self.limits.load_s, model=self.shape.key, slab=number)
        return slab.snapshot()

    def call(self, arguments: Mapping[str, Tensor], *, same_objects: bool = False) -> CallResult:
        """One call on the rig's one set of inputs, which is overwritten with `arguments`.

        Raises:
            Trouble: the call did not return.
        """
        if self._single is None:
            self._single = Batch(self, 1)
        return self._single.round([arguments], same_objects=same_objects).calls[0]


class Batch:
    """Some sets of inputs in shared memory, on which the worker makes calls in a row."""

    def __init__(self, rig: Rig, sets: int) -> None:
        """Map `sets` sets of inputs and state, and a private place for as many results."""
        # Not the rig itself: it keeps a batch, and a circle would hold shared memory until it is found.
        self.session, self.shape, self.problem, self.limits = rig.session, rig.shape, rig.problem, rig.limits
        self.sets = sets
        session, problem = rig.session, rig.problem
        results = len(problem.role(Role.OUTPUT))
        self._id, self.inputs = session.slab((Role.INPUT, Role.STATE), rig.shape, "assay-inputs", sets, results)
        self._outputs: tuple[int, Slab] | None = None
        if not session.readable:
            self._outputs = session.slab((Role.OUTPUT,), rig.shape, "assay-outputs", sets)
        self._last: list[list[int]] = []
        """Where the results of the last round lay, by the worker's word."""
        layout = Slab(problem.role(Role.OUTPUT), rig.shape, "assay-layout")
        self._layout = layout.fields
        layout.close()

    def round(
        self,
        arguments: Sequence[Mapping[str, Tensor]],
        *,
        same_objects: bool = False,
        flush_bytes: int = 0,
        frozen: Callable[[int, int], None] | None = None,
    ) -> Round:
        """Make one call per element of `arguments`, in order.

        Args:
            arguments: at most `sets` sets of inputs and state, copied into the shared memory.
            same_objects: hand the worker's calls the same tensor objects as the last such round did.
            flush_bytes: the worker first reads that much memory, which displaces the cache.
            frozen: when given, the worker is frozen while the inputs are written and this is called with their
                address and bytes, and again before its results are read; the elapsed time runs from just before the
                thaw until it stands still.

        Raises:
            Trouble: a call did not return.
        """
        session, limits = self.session, self.limits
        scalars = [self.shape.values[name] for name in self.problem.scalars]
        session.ask(
            "arm",
            limits.call_s,
            model=self.shape.key,
            slab=self._id,
            sets=list(range(len(arguments))),
            scalars=scalars,
            results=self.inputs.table.shape[1],
            same_objects=same_objects,
            flush_bytes=flush_bytes,
        )
        if frozen:
            session.process.freeze()
        for number, values in enumerate(arguments):
            self.inputs.write(dict(values), number)
        targets = [self._targets() for _ in arguments]
        self.inputs.table.zero_()
        if frozen:
            frozen(self.inputs.address, len(arguments) * self.inputs.set_bytes)
        request = session.post("go")
        start = time.perf_counter_ns()
        if frozen:
            session.process.thaw()
        session.receive(request, "go", limits.call_s * max(1, len(arguments)))
        done_us = (time.perf_counter_ns() - start) / 1e3
        if self._outputs is not None:
            self._outputs[1].poison()
            session.ask("copy", limits.call_s, slab=self._outputs[0])
        if frozen:
            session.process.freeze()  # from here on no result can change, so this is when all of them exist
        elapsed_us = (time.perf_counter_ns() - start) / 1e3
        self._last = self.inputs.table[: len(arguments)].tolist()
        self._capture(targets)
        after = [self.inputs.snapshot(number) for number in range(len(arguments))]
        if frozen:
            session.process.thaw()
        return Round(self._results(targets, after), elapsed_us, done_us)

    def again(self) -> list[dict[str, Tensor]]:
        """Read the results of the last round once more, from where they lay then."""
        targets = [self._targets() for _ in self._last]
        if self._outputs is not None:
            self._outputs[1].poison()
            self.session.ask("copy", self.limits.call_s, slab=self._outputs[0])
        self._capture(targets)
        return targets

    def _targets(self) -> dict[str, Tensor]:
        out = {}
        for field in self._layout:
            tensor = torch.empty(field["shape"], dtype=torch_dtype(field["dtype"]), device=self.session.job.device)
            tensor.view(-1).view(torch.uint8).fill_(POISON)
            out[field["name"]] = tensor
        return out

    def _capture(self, targets: list[dict[str, Tensor]]) -> None:
        """Read every result, in random order, into `targets`."""
        if self._outputs is not None:
            for number, target in enumerate(targets):
                target.update(self._outputs[1].snapshot(number))
            return
        pieces = [
            (there, tensor.data_ptr(), tensor.numel() * tensor.element_size())
            for row, target in zip(self._last, targets, strict=True)
            for there, tensor in zip(row, target.values(), strict=True)
            if 0 < there < 1 << 48
        ]
        random.shuffle(pieces)
        try:
            read_memory(self.session.pid, pieces)
        except PeekError:
            self._capture_singly(pieces)

    def _capture_singly(self, pieces: list[tuple[int, int, int]]) -> None:
        """What cannot be read stays poison; the comparison then says so, or the facts say why."""
        for piece in pieces:
            try:
                read_memory(self.session.pid, [piece])
            except PeekError:
                ctypes.memset(piece[1], POISON, piece[2])

    def _results(self, targets: list[dict[str, Tensor]], after: list[dict[str, Tensor]]) -> tuple[CallResult, ...]:
        session = self.session
        told = session.ask("facts", self.limits.call_s)
        try:
            facts = _Facts.from_plain({"distinct": told["distinct"], "index": told["index"]})
            rows = [facts.distinct[i] for i in facts.index]
            stamps = [_microseconds(ns) for ns in told["ns"]]
            if not len(rows) == len(stamps) == len(targets):
                raise ValueError(f"{len(rows)} descriptions and {len(stamps)} times of {len(targets)} calls")
        except (KeyError, TypeError, ValueError, IndexError, ValidationError) as error:
            raise session.forged("go", f"a description of results that is none: {error}") from error
        return tuple(
            CallResult(row, outputs, arguments, us)
            for row, outputs, arguments, us in zip(rows, targets, after, stamps, strict=True)
        )


def _microseconds(stamp: object) -> float:
    """A worker's nanoseconds as µs.

    Raises:
        ValueError: it is no duration that a clock could give.
    """
    if not isinstance(stamp, int) or not 0 <= stamp < 1 << 63:
        raise ValueError(f"{stamp!r} nanoseconds")
    return stamp / 1e3
