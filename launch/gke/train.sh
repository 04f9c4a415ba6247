#!/usr/bin/env bash
# What a pod of jobset.yaml runs. SIGTERM goes to training, which saves the exact step
# and ends with 0; this ends with 143 then, so that a preempted pod counts as failed and
# the JobSet starts again, where 0 would count as a finished run.
#   launch/gke/train.sh configs/wmt_big.py /shared/wmt_big
set -euo pipefail
config=$1 workdir=$2
shift 2
stopped='' child=''
trap 'stopped=yes again=yes; kill -TERM "$child" 2>/dev/null || true' TERM
python -m jaxformer.main --config="$config" --workdir="$workdir" "$@" &
child=$!
# A signal cuts the wait short.
until again=''; wait "$child"; code=$?; [[ ! $again ]]; do :; done
if [[ $stopped ]] && ((code == 0)); then code=143; fi
exit "$code"
