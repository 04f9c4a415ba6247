#!/usr/bin/env bash
# Follow what the first worker says; Ctrl-C ends this, not the run.
#   launch/tpu_vm/log.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=0 \
    --command="tail -n 50 -F ~/jaxformer/train.log"
