#!/usr/bin/env bash
# Request a TPU slice as a queued resource, and wait until it is active.
#   source launch/tpu_vm/env.sh && launch/tpu_vm/create.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}" "${ACCELERATOR_TYPE:?}" "${RUNTIME_VERSION:?}"
gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" --zone="$ZONE" \
    --accelerator-type="$ACCELERATOR_TYPE" --runtime-version="$RUNTIME_VERSION" \
    ${SPOT:+--spot}
while true; do
    state=$(gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" \
        --format='value(state.state)')
    case $state in
        ACTIVE) exit 0 ;;
        FAILED | SUSPEND*) echo "create: $NAME is $state" >&2 && exit 1 ;;
    esac
    sleep "${PAUSE:-30}"
done
