#!/usr/bin/env bash
# Delete the slice and its queued resource; keep the bucket of the workdir.
#   launch/tpu_vm/delete.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
