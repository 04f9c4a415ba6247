#!/usr/bin/env bash
# Stop the JobSet: every pod gets SIGTERM and saves the exact step. The bucket is kept.
# After a run that failed or finished, run this before apply.sh.
#   launch/gke/delete.sh
set -euo pipefail
kubectl delete -f "$(dirname "$0")/jobset.yaml" --ignore-not-found
