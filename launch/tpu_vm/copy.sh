#!/usr/bin/env bash
# Copy the last commit of this checkout to every worker.
#   launch/tpu_vm/copy.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
git archive --output="$folder/jaxformer.tar.gz" HEAD
gcloud compute tpus tpu-vm scp "$folder/jaxformer.tar.gz" "$NAME:" \
    --zone="$ZONE" --worker=all
