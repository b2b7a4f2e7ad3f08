#!/usr/bin/env bash
# Another machine, another Python: what the doctor says there, A/A grades of the C++ top-k, then the suites.
# Needs torch and pytest in `python3`, and the packages of requirements.lock importable. Writes into $OUT.
set -u
OUT=${OUT:-$(mktemp -d)}
export KERNELASSAY_HOME=$OUT/home PYTHONUNBUFFERED=1 NO_COLOR=1
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
assay() { python3 -m kernelassay "$@"; }
python3 --version; python3 -c 'import torch; print("torch", torch.__version__)'; nproc; uname -r
assay doctor
assay device --measure
for n in $(seq "${GRADES:-6}"); do
  start=$(date +%s.%N)
  assay grade examples/topk_cpp --problem ops/topk --json --quiet >"$OUT/grade$n.json"
  echo "grade $n: exit $?, $(echo "$(date +%s.%N) - $start" | bc 2>/dev/null) s"
  python3 - "$OUT/grade$n.json" <<'PY'
import json, sys
g = json.load(open(sys.argv[1]))
if "error" in g:
    print(g); sys.exit()
print(g["verdict"], g["status"], g["timing"]["state"], g["timing"]["reason"][:300], "score", g["score"], g["isolation"])
for s in g["timing"]["shapes"]:
    us = lambda c: None if s[c] is None else round(s[c]["median_us"], 2)
    print("  ", s["shape"], s["state"], "inner", us("inner"), "outer", us("outer"), "single", us("single"), s["labels"], s["reason"][:160])
print("  phases", {p["name"]: round(p["seconds"], 1) for p in g["phases"]})
PY
done
[ -n "${SUITES:-}" ] && python3 -m pytest -q -x --timeout 120 -p no:cacheprovider -m "not slow" $SUITES
exit 0
