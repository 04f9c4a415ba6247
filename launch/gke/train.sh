#!/usr/bin/env bash
# Train in a pod of jobset.yaml. SIGTERM is passed on to training, which saves the exact
# step and ends with 0. This script then ends with 143: a preempted pod has to count as
# failed, so that the JobSet restarts; 0 would count as a finished run.
#   launch/gke/train.sh configs/wmt_big.py gs://BUCKET/wmt_big
set -euo pipefail
config=$1 run=$2
shift 2
stopped='' child=''
trap 'stopped=yes again=yes; kill -TERM "$child" 2>/dev/null || true' TERM
python -m jaxformer.main train --config="$config" "$run" "$@" &
child=$!
# A signal interrupts wait, so wait again.
until again=''; wait "$child"; code=$?; [[ ! $again ]]; do :; done
if [[ $stopped ]] && ((code == 0)); then code=143; fi
exit "$code"
