#!/usr/bin/env bash
# The plain torch submission of every problem, graded on a GPU at tier full: checks and probes, no times.
# Needs torch with CUDA in `python3`, and the packages of requirements.lock importable. One JSON per problem in $OUT; those
# that are there already are not graded again.
#
# bench/device/grade_torch.sh [-d DEVICE, default h200] [-s SECONDS, default 450] [PROBLEM …, default all]
set -u
DEVICE=h200 SECONDS_MAX=450
while getopts d:s: o; do case $o in d) DEVICE=$OPTARG ;; s) SECONDS_MAX=$OPTARG ;; *) exit 2 ;; esac; done
shift $((OPTIND - 1))
OUT=${OUT:-$(mktemp -d)}
KERNELASSAY_HOME=$(mktemp -d); chmod 755 "$KERNELASSAY_HOME"
export KERNELASSAY_HOME PYTHONUNBUFFERED=1 NO_COLOR=1 PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
[ $# -gt 0 ] || set -- ops/topk ops/w4a16_gemm ops/paged_attention ops/fp8_gemm ops/kda_chunk ops/sonic_moe \
  cuda/nsa_attention cuda/qwen_decode mega/kimi_decode cuda/mingru_rollout cuda/glm_moe
failed=0
for problem; do
  [ $SECONDS -lt "$SECONDS_MAX" ] || { echo "out of time before $problem"; break; }
  name=${problem##*/}; short=$name
  case $name in w4a16_gemm) short=w4a16 ;; mingru_rollout) short=mingru ;; esac
  file=$OUT/grade-$name.json
  [ -s "$file" ] && continue
  start=$SECONDS
  python3 -m kernelassay grade "examples/${short}_torch" --problem "$problem" --device "$DEVICE" --no-time --json --quiet \
    >"$file.part" 2>"$OUT/error-$name.txt"
  code=$?
  python3 - "$file.part" "$problem" "$code" $((SECONDS - start)) <<'P' && mv "$file.part" "$file"
import json, sys
path, problem, code, seconds = sys.argv[1:]
try:
    g = json.load(open(path))
    g["cases"]
except (ValueError, KeyError):
    print(problem, "exit", code, "no record:", open(path).read()[:600]); sys.exit(1)
worst = max((c["usage"] or 0 for c in g["cases"]), default=None)
print(problem, "exit", code, g["status"], g["verdict"], f"cases {len(g['cases'])}/{g['cases_planned']}", "usage", worst,
      f"{seconds} s", {p["name"]: round(p["seconds"], 1) for p in g["phases"]},
      [(p["name"], p["state"], p["note"][:80]) for p in g["probes"] if p["state"] not in ("passed", "not_applicable")],
      list(g["reasons"])[:2], [f["title"][:150] for f in g["findings"]][:3], flush=True)
P
  [ $code -eq 0 ] || { failed=1; tail -5 "$OUT/error-$name.txt"; }
done
exit $failed
