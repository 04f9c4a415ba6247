#!/usr/bin/env bash
# Stop training on all workers, and wait until the exact step is saved.
#   launch/tpu_vm/stop.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="\
cd ~/jaxformer && kill -TERM \$(cat train.pid) && flock train.lock true"
