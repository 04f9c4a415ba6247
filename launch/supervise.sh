#!/usr/bin/env bash
# Start a command again until it ends with 0. Exit code 2 asks for a human: nothing is
# started after it, nor after SIGTERM and Ctrl-C, which the command gets as SIGTERM.
# PAUSE seconds lie between two starts (10); after RESTARTS restarts (20) it gives up.
#   launch/supervise.sh launch/local.sh configs/wmt_base.py runs/wmt
set -euo pipefail
: "${1:?give the command to supervise}"
pause=${PAUSE:-10} restarts=${RESTARTS:-20}

stopped='' child=''
trap 'stopped=yes again=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT

run() { # the exit code of a command that gets our signals
    "$@" &
    child=$!
    if [[ $stopped ]]; then kill -TERM "$child" 2>/dev/null || true; fi
    # A signal cuts the wait short.
    until again=''; wait "$child"; code=$?; [[ ! $again ]]; do :; done
}

for ((restart = 0; ; restart++)); do
    run "$@"
    last=$code
    if [[ $stopped ]] || ((last == 0 || last == 2 || restart == restarts)); then
        break
    fi
    echo "supervise: exit code $last; starting again in $pause s" >&2
    run sleep "$pause"
    if [[ $stopped ]]; then break; fi
done
exit "$last"
