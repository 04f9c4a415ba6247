#!/usr/bin/env bash
# Start or resume the JobSet on the cluster that kubectl talks to. The JobSet controller
# has to be there: https://jobset.sigs.k8s.io/docs/installation/
#   launch/gke/apply.sh && kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=jaxformer
set -euo pipefail
kubectl apply -f "$(dirname "$0")/jobset.yaml"
