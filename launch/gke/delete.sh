#!/usr/bin/env bash
# Stop the JobSet: every pod gets SIGTERM and saves the exact step. The volume stays.
# After a run that failed or finished, this has to come before apply.sh.
#   launch/gke/delete.sh
set -euo pipefail
kubectl delete -f "$(dirname "$0")/jobset.yaml" --ignore-not-found
