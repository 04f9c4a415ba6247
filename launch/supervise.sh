#!/usr/bin/env bash
# Restart a command until it ends with 0. It is not restarted after exit code 2, which
# means that a person must correct something, nor after SIGTERM and Ctrl-C, which are
# passed on as SIGTERM.
# PAUSE seconds (10) separate two starts; after RESTARTS restarts (20) it gives up.
#   launch/supervise.sh launch/local.sh configs/wmt_base.py runs/wmt
set -euo pipefail
: "${1:?give the command to supervise}"
pause=${PAUSE:-10} restarts=${RESTARTS:-20}

stopped='' child=''
trap 'stopped=yes again=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT

run() { # run a command that gets our signals; its exit code is in code
    "$@" &
    child=$!
    if [[ $stopped ]]; then kill -TERM "$child" 2>/dev/null || true; fi
    # A signal interrupts wait, so wait again.
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
