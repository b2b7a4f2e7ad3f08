"""A naive judge, as many public ones are built: the measure of what an exploit has to fool before it counts.

It imports the submission into its own process, folder first on the path; compares on the very tensors that the
submission held, with the problem's own comparator, after the call; times repeated calls on one input with
`time.perf_counter` and takes `statistics.median`. Run it only in a throw-away process: what it imports may do anything.

    python -I -S naive_judge.py --path SITE[:SITE…] --submission DIR --problem ops/topk --seeds 11,22,33
"""

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType

REPEATS = 12
WARM_UPS = 3
PAUSE_S = 0.05
"""Between timing and comparison, so that the one does not disturb the other."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--path", "--submission", "--problem", "--seeds"):
        parser.add_argument(name, required=True)
    return parser.parse_args()


def import_solution(folder: Path, file: str) -> ModuleType:
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("solution", folder / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["solution"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    options = parse()
    sys.path[:] = [*options.path.split(":"), *sys.path]
    import torch
    from ruamel.yaml import YAML

    from kernelassay.decks import compare, draw, expect, load
    from kernelassay.records import Role, Tier, extent
    from kernelassay.worker import adapters

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    folder = Path(options.submission)
    loaded = load(options.problem)
    problem = loaded.problem
    shape = problem.tier(Tier.SMALL)[0]
    outputs = problem.role(Role.OUTPUT)
    fields = [{"name": t.name, "dtype": t.dtype, "shape": list(extent(t, shape))} for t in outputs]
    manifest_file = folder / "submission.yaml"
    manifest = YAML(typ="safe", pure=True).load(manifest_file.read_text()) if manifest_file.is_file() else {}
    entry: adapters.Adapter
    if manifest.get("entry") == "c_abi":
        library = folder / manifest["build"].get("library", "libkernel.so")
        entry = adapters.NativeAdapter(library, manifest["symbol"], fields, shape.values)
    else:
        module = import_solution(folder, manifest.get("file", "solution.py"))
        kind = manifest.get("entry") or adapters.kind_of(module)
        weights = [t.name for t in problem.role(Role.WEIGHT)]
        if kind == "model":
            entry = adapters.ModelAdapter(module, problem.entry, shape.values, weights)
        elif kind == "custom_kernel":
            entry = adapters.CustomKernelAdapter(module)
        else:
            entry = adapters.RunAdapter(module, fields)

    times = []
    accepted = True
    weights_set = False
    for seed in map(int, options.seeds.split(",")):
        tensors = draw(loaded, shape, "nominal", seed, 1)
        if not weights_set:
            entry.set_weights(tensors.weights, None)
            entry.prepare()
            weights_set = True
        states = {t.name: tensors.inputs[t.name].clone() for t in problem.role(Role.STATE)}
        scalars = [shape.values[name] for name in problem.scalars]
        for number in range(WARM_UPS + REPEATS):
            for name, value in states.items():
                tensors.inputs[name].copy_(value)
            call = entry.bind(tensors.inputs, scalars)
            start = time.perf_counter()
            results = call()
            elapsed = time.perf_counter() - start
            if number >= WARM_UPS:
                times.append(elapsed)
        gc.collect()
        time.sleep(PAUSE_S)
        after = {name: tensors.inputs[name].clone() for name in states}
        for name, value in states.items():
            tensors.inputs[name].copy_(value)
        wanted = expect(loaded, tensors)  # the reference runs after the submission, on the tensors that it held
        actual = dict(zip((t.name for t in outputs), results, strict=True)) | after
        accepted = accepted and compare(loaded, tensors, wanted, actual).passed
    import resource  # late, as helpers are

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opinion = {"accepted": bool(accepted), "median_us": 1e6 * statistics.median(times), "peak_kb": peak}
    print(json.dumps(opinion), flush=True)


if __name__ == "__main__":
    main()
