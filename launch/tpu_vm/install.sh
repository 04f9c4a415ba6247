#!/usr/bin/env bash
# Mount the share, then unpack and install what copy.sh brought, on every worker. uv
# brings Python 3.12, whatever the image has.
#   launch/tpu_vm/install.sh
# A bucket can take the place of NFS, with gcsfuse for mount: let it have a hierarchical
# namespace, so that a checkpoint's folder is renamed in one step, and mount it with
# --metadata-cache-ttl-secs=0, so that workers see each other's files at once.
set -euo pipefail
: "${NAME:?}" "${ZONE:?}" "${SHARE:?}"
share=$(printf %q "$SHARE")
mount="sudo apt-get install -y -q nfs-common && sudo mount -t nfs $share ~/shared && \
sudo chmod go+rwx ~/shared"
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="\
mkdir -p ~/jaxformer ~/shared && \
{ mountpoint -q ~/shared || { $mount; }; } && \
tar -xzf jaxformer.tar.gz -C ~/jaxformer && cd ~/jaxformer && \
python3 -m pip install -q --user uv && \
~/.local/bin/uv venv -q --allow-existing --python 3.12 .venv && \
~/.local/bin/uv pip install -q -e '.[tpu]'"
