#!/usr/bin/env bash
# Stop training on all workers: the exact step is saved. Waits until it is.
#   launch/tpu_vm/stop.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="\
cd ~/jaxformer && kill -TERM \$(cat train.pid) && flock train.lock true"
