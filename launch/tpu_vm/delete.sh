#!/usr/bin/env bash
# Delete the slice and its queued resource; keep the bucket of the run.
#   launch/tpu_vm/delete.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
