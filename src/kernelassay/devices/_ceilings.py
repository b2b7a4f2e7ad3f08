"""Ceilings of a CPU, measured on the spot: a floor divides by what this machine showed, not by a data sheet.

The rule: a rate is the best of several repetitions on the cores of the device, all together, over memory that was
written before. Kept under the machine's fingerprint in `<home>/devices/`; a file that is stale, damaged or made by
another version of the program is measured again. What could not be measured is named with its reason, never zero.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from pydantic import ValidationError

from kernelassay.devices._lease import Waiting, lease
from kernelassay.records import Ceiling, Ceilings, Device, Record

SOURCE = Path(__file__).with_name("_ceilings.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-pthread")

ARRAY_CACHES = 4
"""Each array is this many last-level caches, STREAM's rule: what a repetition leaves behind is displaced by the rest
of the same array before its turn comes again. [read]"""
ARRAY_MIN_BYTES = 64 << 20
"""Also where the cache is small or unknown. [estimated]"""
ARRAY_MAX_BYTES = 1 << 30
"""Bounds the time of one repetition on machines with hundreds of MiB of cache. [estimated]"""
MEMORY_SHARE = 16
"""One array takes at most this part of the free memory; three exist at once. [estimated]"""
BUDGET_MS = 120
"""Per measurement, eleven or twelve of them; with allocation, first touch and compilation 2 to 3 s in all on two busy
cores, under the 4 s that a first grade can spare. [measured]"""
TIMEOUT_S = 60.0
"""For the compiler and for the program; both end within seconds on any machine that can grade. [estimated]"""
DEFAULT_L1_BYTES = 32 << 10
DEFAULT_L2_BYTES = 256 << 10
"""Where the kernel does not say: smaller than or equal to those of all current server cores, so that half of it fits.
[estimated]"""

OPTIONAL_UNITS = ("int8", "bf16", "fp16")
"""Precisions for which some instruction sets have vector arithmetic and others do not."""

Bandwidth = Literal["read", "copy", "triad"]
Cache = Literal["l1", "l2"]


class CeilingsError(Exception):
    """The machine could not be measured; the message says why and what to do next."""


class Caches(NamedTuple):
    """Cache sizes in bytes: private ones of one core, and the last level over all cores given; None unknown."""

    l1: int | None
    l2: int | None
    last: int | None


def ceilings(
    device: Device,
    home: Path,
    *,
    measure: bool = False,
    cpus: Iterable[int] | None = None,
    on_wait: Callable[[Waiting], None] | None = None,
) -> Ceilings:
    """The ceilings of the CPU `device`: from `home`, or measured now (about 2 s, under its lease) and kept there.

    Args:
        device: Kind `cpu`; its fingerprint names the file, its `cores` the number of threads (None: all that this
            process may use).
        home: Folder of kept data; `devices/<fingerprint>.json` is written in it.
        measure: Measure even if a good file exists.
        cpus: Logical CPUs to run on; None: wherever the scheduler of this process may. A measurement made on other
            CPUs is made again.
        on_wait: Hears of the wait for the device, where it has to be measured and somebody else has it.

    Raises:
        ValueError: `device` is no CPU, or its fingerprint is no file name.
        CeilingsError: nothing could be measured.
        LeaseError: the lease's files cannot be used.
        OSError: the file cannot be written.
    """
    if device.kind != "cpu":
        raise ValueError(f"only a CPU is measured here, not {device.name!r}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", device.fingerprint):
        raise ValueError(f"not a fingerprint: {device.fingerprint!r}")
    chosen = tuple(sorted(cpus)) if cpus is not None else ()
    threads = device.cores or len(chosen) or len(os.sched_getaffinity(0))
    path = kept_path(device, home)
    if not measure:
        kept = _kept(path)
        if kept is not None and (kept.fingerprint, kept.threads, kept.cpus, kept.program) == (
            device.fingerprint,
            threads,
            chosen,
            _program_hash(),
        ):
            return kept
    with lease(device.name, on_wait=on_wait):
        fresh = _measure(device, threads, chosen)
    write_record(path, fresh)
    return fresh


def kept_ceilings(device: Device, home: Path) -> Ceilings | None:
    """The ceilings of `device` that were measured before, whatever cores they are of; None where there are none."""
    return _kept(kept_path(device, home))


def kept_path(device: Device, home: Path) -> Path:
    """Where the ceilings of `device` are kept."""
    return home / "devices" / f"{device.fingerprint}.json"


def cache_sizes(cpus: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> Caches:
    """Cache sizes as the kernel states them; last-level instances that `cpus` share count once."""
    private: dict[int, int] = {}
    last: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
            try:
                level = int((index / "level").read_text())
                kind = (index / "type").read_text().strip()
                size = _bytes((index / "size").read_text().strip())
                shared = (index / "shared_cpu_list").read_text().strip()
            except (OSError, ValueError):
                continue  # a kernel that does not say; unknown stays unknown
            if kind == "Instruction" or size <= 0:
                continue
            private[level] = min(size, private.get(level, size))
            last[level, shared] = size
    top = max(private, default=0)
    total = sum(size for (level, _), size in last.items() if level == top)
    return Caches(private.get(1), private.get(2), total or None)


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def _program_hash() -> str:
    return hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()


def _kept(path: Path) -> Ceilings | None:
    """The record at `path`; None when there is none or it cannot be read as one."""
    try:
        return Ceilings.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write `record` at `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(record.model_dump(mode="json"), indent=1, allow_nan=False) + "\n")
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def _array_bytes(cache: int | None) -> int:
    wanted = min(max(ARRAY_CACHES * (cache or 0), ARRAY_MIN_BYTES), ARRAY_MAX_BYTES)
    with contextlib.suppress(OSError, ValueError, IndexError):
        free = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
        if free is not None:
            wanted = max(min(wanted, int(free.group(1)) * 1024 // MEMORY_SHARE), 1 << 20)
    return wanted


def _measure(device: Device, threads: int, cpus: tuple[int, ...]) -> Ceilings:
    begin = time.monotonic()
    sizes = cache_sizes(cpus or sorted(os.sched_getaffinity(0)))
    measured: dict[str, Ceiling] = {}
    unknown: dict[str, str] = {}
    method: Literal["c", "numpy"] = "c"
    compiler = _compiler()
    try:
        measured, unknown = _parse(_run_program(threads, cpus, sizes))
    except CeilingsError as error:
        method, compiler = "numpy", None
        measured = _numpy_rates(threads, _array_bytes(sizes.last))
        reason = f"measured with numpy only: {error}"
        unknown = dict.fromkeys(("triad", "l1", "l2", *OPTIONAL_UNITS), reason)
    return Ceilings(
        fingerprint=device.fingerprint,
        model=device.model,
        threads=threads,
        cpus=cpus,
        measured_at=datetime.now(UTC),
        method=method,
        compiler=compiler,
        program=_program_hash(),
        seconds=time.monotonic() - begin,
        cache_bytes=sizes.last,
        bandwidth={name: measured[name] for name in get_args(Bandwidth) if name in measured},
        in_cache={name: measured[name] for name in get_args(Cache) if name in measured},
        rates={n: c for n, c in measured.items() if n not in get_args(Bandwidth) + get_args(Cache)},
        no_unit=tuple(name for name in OPTIONAL_UNITS if name not in measured and name not in unknown),
        unknown=unknown,
    )


def _compiler() -> str | None:
    try:
        done = subprocess.run(["cc", "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0] if done.stdout else None


def _run_program(threads: int, cpus: tuple[int, ...], sizes: Caches) -> str:
    """Compile the program into a throw-away folder and run it.

    Raises:
        CeilingsError: there is no compiler, or the program did not compile or end well.
    """
    arguments = [
        *(threads, _array_bytes(sizes.last), sizes.l1 or DEFAULT_L1_BYTES, sizes.l2 or DEFAULT_L2_BYTES, BUDGET_MS),
        *([",".join(map(str, cpus))] if cpus else []),
    ]
    with tempfile.TemporaryDirectory(prefix="kernelassay-ceilings-") as folder:
        program = Path(folder) / "ceilings"
        _command(["cc", *FLAGS, "-o", str(program), str(SOURCE)])
        return _command([str(program), *map(str, arguments)])


def _command(argv: Sequence[str]) -> str:
    name = Path(argv[0]).name
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise CeilingsError(f"{name} did not run: {error}; next: install a C compiler (cc)") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise CeilingsError(f"{name} ended with {done.returncode}: {said}; next: `assay device --measure`")
    return done.stdout


def _parse(text: str) -> tuple[dict[str, Ceiling], dict[str, str]]:
    """Read the program's lines.

    Raises:
        CeilingsError: a line is not one of the program's, a rate is no positive number, or memory bandwidth is missing.
    """
    measured: dict[str, Ceiling] = {}
    unknown: dict[str, str] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if rest.startswith("- "):
            unknown[name] = rest[2:]
            continue
        try:
            best, median, count = rest.split()
            ceiling = Ceiling(value=float(best), median=float(median), repetitions=int(count))
        except ValueError as error:  # pydantic's error is one too
            raise CeilingsError(f"not a measurement: {line!r}; next: `assay device --measure`") from error
        if name not in measured or ceiling.value > measured[name].value:
            measured[name] = ceiling
    if not set(measured) & set(get_args(Bandwidth)):
        raise CeilingsError("no memory bandwidth was measured; next: `assay device --measure`")
    return measured, unknown


def _numpy_rates(threads: int, array_bytes: int) -> dict[str, Ceiling]:
    """Read and copy bandwidth and the rates of matrix products, with numpy alone: lower than the machine's ceilings."""
    count = max(array_bytes // threads // 8, 1024)
    sources = [np.ones(count) for _ in range(threads)]
    targets = [np.zeros(count) for _ in range(threads)]
    rates: dict[str, Ceiling] = {}
    with ThreadPoolExecutor(threads) as pool:

        def together(work: Callable[[int], object]) -> Callable[[], object]:
            return lambda: list(pool.map(work, range(threads)))

        total = 8.0 * count * threads
        rates["read"] = _best(together(lambda i: sources[i].max()), total)
        rates["copy"] = _best(together(lambda i: np.copyto(targets[i], sources[i])), 2 * total)
    size = 512
    for name, dtype in (("fp32", np.float32), ("fp64", np.float64)):
        left, right = np.ones((size, size), dtype), np.ones((size, size), dtype)
        out = np.empty((size, size), dtype)
        rates[name] = _best(lambda a=left, b=right, c=out: np.matmul(a, b, out=c), 2.0 * size**3)  # type: ignore[misc]
    return rates


def _best(work: Callable[[], object], amount: float) -> Ceiling:
    """Rate of the best and of the median repetition of `work`, which does `amount` bytes or operations."""
    work()  # warms, and is not counted
    seconds: list[float] = []
    end = time.perf_counter() + 1e-3 * BUDGET_MS
    while len(seconds) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        seconds.append(max(time.perf_counter() - begin, 1e-9))
    seconds.sort()
    return Ceiling(value=amount / seconds[0], median=amount / seconds[len(seconds) // 2], repetitions=len(seconds))
