#!/usr/bin/env bash
# Resume after a preemption: delete what is left of the slice, request a new one, then
# copy, install and run again. An active slice is kept.
#   launch/tpu_vm/resume.sh configs/wmt_big.py gs://BUCKET/wmt_big
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
here=$(dirname "$0")
state=$(gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" \
    --format='value(state.state)') || state=none
if [[ $state != ACTIVE ]]; then
    if [[ $state != none ]]; then "$here/delete.sh"; fi
    "$here/create.sh"
fi
"$here/copy.sh"
"$here/install.sh"
exec "$here/run.sh" "$@"
