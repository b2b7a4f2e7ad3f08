#!/usr/bin/env bash
# A GPU as this release sees it: the catalogue, its published figures, its state, its measured ceilings twice.
# Needs torch with CUDA in `python3`, and the packages of requirements.lock importable. Writes JSON into $OUT.
#
# bench/device/device_facts.sh [NAME, default h200]
set -u
NAME=${1:-h200}
OUT=${OUT:-$(mktemp -d)}
export KERNELASSAY_HOME; KERNELASSAY_HOME=$(mktemp -d)
export PYTHONUNBUFFERED=1 NO_COLOR=1 PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
failed=0
keep() { # keep FILE COMMAND…: its output in $OUT/FILE, its exit code told
  local file=$1; shift
  "$@" >"$OUT/$file"; local code=$?
  echo "$file: exit $code"
  [ $code -eq 0 ] || failed=1
}
assay() { python3 -m kernelassay "$@"; }
python3 --version; python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
keep devices.json assay device --json
keep before.json assay device "$NAME" --json
keep ceilings1.json assay device "$NAME" --measure --json
keep ceilings2.json assay device "$NAME" --measure --json
keep telemetry.json python3 bench/device/telemetry.py "$NAME"
assay device; assay device "$NAME"; assay doctor | grep -A2 GPU
exit $failed
