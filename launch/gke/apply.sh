#!/usr/bin/env bash
# Start or resume the JobSet on kubectl's current cluster, which needs the JobSet
# controller: https://jobset.sigs.k8s.io/docs/installation/
#   launch/gke/apply.sh && kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=jaxformer
set -euo pipefail
kubectl apply -f "$(dirname "$0")/jobset.yaml"
