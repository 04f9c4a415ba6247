#!/usr/bin/env bash
# Rehearse a run of several processes on this machine, each with two simulated CPU
# devices; they connect over the loopback. SIGTERM and Ctrl-C reach every process.
#   launch/rehearse.sh configs/demo.py runs/rehearsal 2 --config.mesh.fsdp=2
# Relative paths are those of the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
config=$1 run=$2 processes=$3
shift 3
address=127.0.0.1:${PORT:-$((20000 + RANDOM % 20000))}
export JAX_PLATFORMS=cpu
export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=2"

pids=()
trap 'again=yes; kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
for ((id = 0; id < processes; id++)); do
    .venv/bin/python -m jaxformer.main train --config="$config" "$run" \
        --coordinator_address="$address" --num_processes="$processes" \
        --process_id="$id" "$@" &
    pids+=($!)
done

worst=0
for pid in "${pids[@]}"; do
    # A signal interrupts wait, so wait again.
    until again=''; wait "$pid"; code=$?; [[ ! $again ]]; do :; done
    # 2 is a mistake to correct; it overrides the 3 of processes that lost this peer.
    if ((code != 0 && worst != 2)); then worst=$code; fi
done
exit "$worst"
