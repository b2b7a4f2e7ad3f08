"""What the contract does not let a call change, it leaves alone: its inputs and its weights."""

from __future__ import annotations

from kernelassay.probes._subject import PASSED, Evidence, Outcome, Subject
from kernelassay.records import Force, Location, Role, Verdict
from kernelassay.session import same_bytes

PROVES = "a call changes neither its inputs nor its weights"


def run(subject: Subject) -> Outcome:
    """Compare inputs (in shared memory) and weights (as the worker copies them out) with the judge's private copies."""
    case, tensors = subject.draw("unmutated")
    subject.rig.set_weights(tensors.weights)
    called = subject.rig.call(tensors.inputs)
    after = subject.rig.read_weights()
    now = {"inputs": called.arguments, "weights": after}
    then = {"inputs": tensors.inputs, "weights": tensors.weights}
    checked = [t.name for t in subject.loaded.problem.role(Role.INPUT)]
    for what, names in (("inputs", checked), ("weights", list(then["weights"]))):
        for name in names:
            if same_bytes(now[what][name], then[what][name]):
                continue
            evidence = Evidence(
                f"contract.{what}_mutated",
                Force.CONVICTS,
                Verdict.INCORRECT,
                f"the call changed {name}",
                "as before the call",
                "other bytes",
                case,
                Location(output=name),
            )
            return Outcome("failed", evidence.title, (evidence,))
    return PASSED
