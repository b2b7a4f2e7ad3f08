"""`assay device`: which devices there are, which are here, what is published of them and what this machine showed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelassay.cli._errors import CommandError, split_next
from kernelassay.cli._options import Home, Json, home_folder
from kernelassay.cli._out import emit, show, styled
from kernelassay.cli._progress import reporter

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from kernelassay.devices import Gpu, Unit
    from kernelassay.records import Ceiling, Ceilings, Device, GpuCeilings, Telemetry

_MIB = 1 << 20
# `library` stands in for the module `pynvml` throughout.


def device(name: str | None = None, /, *, measure: bool = False, home: Home = None, json: Json = False) -> int:
    """List the devices and say which are here; or show one with its published figures and measured ceilings.

    Parameters
    ----------
    name
        The device: `cpu`, `h200`, …; `h200:1` or `h200:GPU-…` chooses among several.
    measure
        Measure its ceilings (a CPU about 3 s, a GPU about 20 s); without a name those of the CPU.
    home
        Folder that keeps the ceilings.
    json
        Print everything as JSON.
    """
    if name is None and not measure:
        return _list(json=json)
    if name in (None, "cpu"):
        return _cpu(home_folder(home), measure=measure, json=json)
    return _gpu(str(name), home_folder(home), measure=measure, json=json)


# ── all of them ──────────────────────────────────────────────────────────────────────────────────


def _list(*, json: bool, library: Any = None) -> int:
    from kernelassay.devices import CATALOGUE, NvmlError, detect, gpus

    why = None
    units: tuple[Unit, ...] = ()
    try:
        units = gpus(library)
    except NvmlError as error:
        why = str(error)
    cpu = detect("cpu")
    if json:
        rows: list[dict[str, Any]] = [
            {"name": "cpu", "title": cpu.model, "published": None, "here": [_here(cpu, None)]}
        ]
        for entry in CATALOGUE.values():
            here = [_here(unit.device, _refusal(unit)) for unit in units if unit.entry is entry]
            rows.append({"name": entry.name, "title": entry.title, "published": asdict(entry), "here": here})
        others = [unit.device.model_dump(mode="json") for unit in units if unit.entry is None]
        emit({"devices": rows, "others": others, "no_gpu_because": why})
    else:
        show(_list_table(cpu, units), *_list_notes(units, why))
    return 0


def _refusal(unit: Unit) -> str | None:
    from kernelassay.devices import refused

    return refused(unit.state)


def _here(found: Device, refusal: str | None) -> dict[str, Any]:
    return {"device": found.model_dump(mode="json"), "refused": refusal}


def _list_table(cpu: Device, units: Iterable[Unit]) -> Table:
    from kernelassay.devices import CATALOGUE

    table = _table("device", "what", "GB/s", "bf16 Tflop/s", "here", right=("GB/s", "bf16 Tflop/s"))
    table.add_row("cpu", cpu.model, "measured", "measured", "yes")
    for entry in CATALOGUE.values():
        places = [_place(unit) for unit in units if unit.entry is entry]
        rate = entry.flops.get("bf16")
        table.add_row(
            entry.name,
            entry.title,
            f"{entry.bandwidth / 1e9:g}",
            "–" if rate is None else f"{rate / 1e12:g}",
            ", ".join(places) or "no",
        )
    return table


def _place(unit: Unit) -> str:
    refusal = _refusal(unit)
    return f"yes, {unit.state.index}" if refusal is None else f"{unit.state.index}: {refusal}"


def _list_notes(units: Iterable[Unit], why: str | None) -> Iterator[Text]:
    for unit in units:
        if unit.entry is None:
            yield styled(f"also here: {unit.description}")
    if why is not None:
        yield styled(f"no GPU: {why}")
    yield styled("next: assay device NAME")


# ── the CPU ──────────────────────────────────────────────────────────────────────────────────────


def _cpu(home: Path, *, measure: bool, json: bool) -> int:
    with reporter("measuring cpu", quiet=json) as progress:
        progress.phase("ceilings")
        from kernelassay.devices import CeilingsError, ceilings, detect, device_cpus

        found = detect("cpu")
        try:
            known = ceilings(
                found,
                home,
                measure=measure,
                cpus=device_cpus()[1],
                on_wait=lambda waiting: progress.advance(0, waiting.position, str(waiting)),
            )
        except CeilingsError as error:
            raise CommandError(*_what_next(error), 5) from error
    if json:
        emit({"device": found.model_dump(mode="json"), "ceilings": known.model_dump(mode="json")})
    else:
        show(styled(f"{found.name}: {found.model}", "bold"), _cpu_table(known), *_cpu_notes(found, known))
    return 0


def _what_next(error: Exception) -> tuple[str, str]:
    what, following = split_next(str(error))
    return what, following or "assay doctor"


def _cpu_table(known: Ceilings) -> Table:
    table = _table("ceiling", "best", "median", "unit", right=("best", "median"))
    groups = (
        ("memory", known.bandwidth, "GB/s"),
        ("in cache", known.in_cache, "GB/s"),
        ("rate", known.rates, "Gop/s"),
    )
    for group, measured, unit in groups:
        for what, ceiling in measured.items():
            table.add_row(f"{group} {what}", f"{ceiling.value / 1e9:.1f}", f"{ceiling.median / 1e9:.1f}", unit)
    return table


def _cpu_notes(found: Device, known: Ceilings) -> Iterable[Text]:
    cpus = ", ".join(str(cpu) for cpu in known.cpus) or "any"
    yield styled(f"on {known.threads} thread(s), CPUs {cpus}; measured {known.measured_at:%Y-%m-%d %H:%M} UTC")
    yield styled(f"fingerprint {found.fingerprint}")
    for what, why in known.unknown.items():
        yield styled(f"unknown: {what}: {why}")


# ── a GPU ────────────────────────────────────────────────────────────────────────────────────────


def _gpu(name: str, home: Path, *, measure: bool, json: bool, library: Any = None) -> int:
    from kernelassay.devices import CATALOGUE, DeviceError, detect, kept_gpu_ceilings

    found, why = None, None
    try:
        found = detect(name, library)
    except DeviceError as error:
        if measure or name.partition(":")[0] not in CATALOGUE:
            raise
        why = split_next(str(error))[0]
    entry = CATALOGUE[name.partition(":")[0]]
    state = known = None
    if found is not None:
        state = _telemetry(found, library)
        known = _measured(name, found, home) if measure else kept_gpu_ceilings(found, home)
    if json:
        emit(
            {
                "published": asdict(entry),
                "not_here_because": why,
                "device": None if found is None else found.model_dump(mode="json"),
                "telemetry": None if state is None else state.model_dump(mode="json"),
                "ceilings": None if known is None else known.model_dump(mode="json"),
            }
        )
    else:
        show(styled(f"{entry.name}: {entry.title}", "bold"), _gpu_table(entry, known))
        show(*_gpu_notes(entry, found, state, known, why))
    return 0


def _telemetry(found: Device, library: Any) -> Telemetry | None:
    from kernelassay.devices import telemetry

    return None if found.gpu is None else telemetry(found.gpu.uuid, library)


def _measured(name: str, found: Device, home: Path) -> GpuCeilings:
    from kernelassay.devices import CeilingsError, gpu_ceilings, lease, lease_name

    with reporter(f"measuring {name}") as progress:
        progress.phase("ceilings")
        try:
            with lease(lease_name(found), on_wait=lambda w: progress.advance(0, w.position, str(w))):
                return gpu_ceilings(found, home)
        except CeilingsError as error:
            raise CommandError(*_what_next(error), 5) from error


def _gpu_table(entry: Gpu, known: GpuCeilings | None) -> Table:
    numbers = ("published", "best", "median", "share")
    table = _table("ceiling", *numbers, "unit", right=numbers)
    for what in ("copy", "read"):
        measured = None if known is None else next((c for n, c in known.bandwidth.items() if n == what), None)
        table.add_row(f"memory {what}", *_beside(entry.bandwidth, measured, 1e9), "GB/s")
    precisions = dict.fromkeys((*entry.flops, *(known.rates if known is not None else ())))
    for precision in precisions:
        sizes = {} if known is None else known.rates.get(precision, {})
        for edge, measured in sizes.items() or ((None, None),):
            label = f"rate {precision}" if edge is None else f"rate {precision}, {edge}³"
            table.add_row(label, *_beside(entry.flops.get(precision), measured, 1e12), "Tflop/s")
    return table


def _beside(published: float | None, measured: Ceiling | None, unit: float) -> tuple[str, str, str, str]:
    """Published, best, median, and the share of the published figure that the best reached."""
    quoted = "–" if published is None else f"{published / unit:g}"
    if measured is None:
        return quoted, "–", "–", "–"
    share = "–" if published is None else f"{100 * measured.value / published:.1f} %"
    return quoted, f"{measured.value / unit:.1f}", f"{measured.median / unit:.1f}", share


def _gpu_notes(
    entry: Gpu, found: Device | None, state: Telemetry | None, known: GpuCeilings | None, why: str | None
) -> Iterator[Text]:
    l2 = "unknown" if entry.l2_bytes is None else f"{entry.l2_bytes // _MIB} MiB"
    sms = "unknown" if entry.sms is None else str(entry.sms)
    clock = "unknown" if entry.clock_hz is None else f"{entry.clock_hz / 1e6:g} MHz"
    yield styled(f"{entry.memory_gb} GB, {sms} multiprocessors, L2 {l2}, highest published clock {clock}")
    if entry.note:
        yield styled(entry.note)
    for figure, source in entry.sources.items():
        yield styled(f"  {figure}: {source}", "dim")
    if why is not None:
        yield styled(why)
    if found is not None and found.gpu is not None:
        yield styled(f"here: {found.model} {found.gpu.uuid}, driver {found.gpu.driver}")
        yield styled(f"fingerprint {found.fingerprint}")
    if state is not None:
        reasons = "unknown" if state.reasons is None else ", ".join(state.reasons) or "none"
        yield styled(f"now: {state.sm_clock_mhz} MHz, {state.temperature_c} °C, held back by: {reasons}")
    if known is None:
        if found is not None:
            yield styled(f"not measured; next: assay device {entry.name} --measure")
        return
    for interval, least in known.latency.items():
        yield styled(f"{interval}: {least.least_us:.2f} µs at least, median {least.median_us:.2f} µs")
    yield styled(f"measured {known.measured_at:%Y-%m-%d %H:%M} UTC with torch {known.torch}")
    for what, reason in known.unknown.items():
        yield styled(f"unknown: {what}: {reason}")


def _table(*columns: str, right: tuple[str, ...]) -> Table:
    from rich.table import Table

    table = Table(box=None)
    for title in columns:
        table.add_column(title, justify="right" if title in right else "left")
    return table
