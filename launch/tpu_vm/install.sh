#!/usr/bin/env bash
# On every worker: unpack and install the archive of copy.sh. uv installs Python 3.12.
#   launch/tpu_vm/install.sh
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="\
mkdir -p ~/jaxformer && tar -xzf jaxformer.tar.gz -C ~/jaxformer && cd ~/jaxformer && \
python3 -m pip install -q --user uv && \
~/.local/bin/uv venv -q --allow-existing --python 3.12 .venv && \
~/.local/bin/uv pip install -q -e '.[tpu,gcs]'"
