#!/usr/bin/env bash
# Follow the log of the first worker; Ctrl-C stops following and leaves the run alone.
#   launch/tpu_vm/log.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=0 \
    --command="tail -n 50 -F ~/jaxformer/train.log"
