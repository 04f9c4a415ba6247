#!/usr/bin/env bash
# Go on after a preemption: take what is left of the slice away, ask for a new one, and
# do copy, install and run again. A slice that is still there is kept.
#   launch/tpu_vm/resume.sh configs/wmt_big.py ../shared/wmt_big
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
