#!/usr/bin/env bash
# Delete the slice and its queued resource; the share, and so the workdir, stays.
#   launch/tpu_vm/delete.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
