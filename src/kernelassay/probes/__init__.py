"""Probes: experiments that a genuine submission passes and a family of cheats cannot. One file each.

`PROBES` is the order in which a grade runs them: what needs the least history first, what ends the
live worker last.
"""

from collections.abc import Callable

from kernelassay.probes import (
    call_count,
    fresh_pointers,
    fresh_process,
    fresh_results,
    global_state,
    late_work,
    live_inputs,
    live_state,
    live_weights,
    one_element,
    phase_blindness,
    unmutated,
)
from kernelassay.probes._subject import Evidence, Outcome, Subject, finding_of, result_of

PROBES: dict[str, tuple[str, Callable[[Subject], Outcome]]] = {
    module.__name__.rpartition(".")[2]: (module.PROVES, module.run)
    for module in (
        live_inputs,
        one_element,
        live_weights,
        live_state,
        fresh_results,
        unmutated,
        fresh_pointers,
        phase_blindness,
        late_work,
        call_count,
        global_state,
        fresh_process,
    )
}
"""Name → what it proves, and the experiment."""

__all__ = ["PROBES", "Evidence", "Outcome", "Subject", "finding_of", "result_of"]
