#!/usr/bin/env bash
# On every worker: mount the share, then unpack and install the archive of copy.sh. uv
# installs Python 3.12.
#   launch/tpu_vm/install.sh
# To use a bucket in place of NFS, mount it by gcsfuse. It needs hierarchical namespace,
# so that a checkpoint's folder is renamed in one step, and --metadata-cache-ttl-secs=0,
# so that workers see each other's files at once.
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
