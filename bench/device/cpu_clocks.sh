#!/usr/bin/env bash
# Both clocks on a quiet machine's CPU: a whole grade, ten A/A grades, agreement of the clocks, an injected slow-down.
# Needs torch in `python3`, and the packages of requirements.lock importable. Writes into $OUT.
#
# bench/device/cpu_clocks.sh [TRIALS of the slow-down]
set -u
OUT=${OUT:-$(mktemp -d)}
export KERNELASSAY_HOME=$OUT/home/x PYTHONUNBUFFERED=1 NO_COLOR=1
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
assay() { python3 -m kernelassay "$@"; }
python3 --version; python3 -c 'import torch; print("torch", torch.__version__)'; nproc; uname -r
assay device --measure | tail -20
assay grade examples/topk_cpp --problem ops/topk --device cpu --json --quiet >"$OUT/grade.json"; echo "grade: exit $?"
start=$(date +%s); assay grade examples/topk_cpp --problem ops/topk --device cpu --json --quiet >"$OUT/grade.json"
echo "the same again: exit $?, $(($(date +%s) - start)) s"
echo "== ten grades of the same submission"
python3 bench/honest_clocks.py --grades 10 --only topk_cpp:small --out "$OUT/ten.json"
echo "== both clocks on honest kernels"
python3 bench/honest_clocks.py --only topk_cpp:full topk_torch:small w4a16_cpp w4a16_torch mingru_cpp --out "$OUT/honest.json"
echo "== a slow-down of 10 %"
python3 bench/slowdown.py --trials "${1:-20}"
echo "== no slow-down"
python3 bench/slowdown.py --percent 0 --trials 3
