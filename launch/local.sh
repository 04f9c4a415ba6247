#!/usr/bin/env bash
# Train on all devices of this machine, with the virtual environment of the checkout.
#   launch/local.sh configs/multi30k.py runs/m30k --config.data.directory=data/multi30k
# Relative paths are those of the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
config=$1 run=$2
shift 2
exec .venv/bin/python -m jaxformer.main train --config="$config" "$run" "$@"
