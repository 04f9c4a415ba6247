#!/usr/bin/env bash
# Start or resume training on all workers, under supervise.sh, and return: training
# continues without this terminal. log.sh follows it, stop.sh stops it. Fails while a
# run is in progress.
#   launch/tpu_vm/run.sh configs/wmt_big.py gs://BUCKET/wmt_big
set -euo pipefail
: "${NAME:?}" "${ZONE:?}"
config=$1 run=$2
shift 2
train=(.venv/bin/python -m jaxformer.main train --config="$config" "$run" "$@")
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="\
cd ~/jaxformer && flock --nonblock train.lock true && \
{ nohup flock --no-fork train.lock launch/supervise.sh $(printf '%q ' "${train[@]}")\
>> train.log 2>&1 < /dev/null & echo \$! > train.pid; }"
