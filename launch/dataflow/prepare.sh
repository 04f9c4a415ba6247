#!/usr/bin/env bash
# Prepare the text of a config on Dataflow. Text and run are on gs://. This machine
# needs jaxformer[beam,gcs] and apache-beam[gcp]. After a stop, run it again here: it goes
# on with the missing shards. Remove RUN.temp at the end. OPTIONS has further options
# of Dataflow, such as --max_num_workers=50. docs/own_text.md has a whole example.
#   PROJECT=mine REGION=us-east5 IMAGE=... launch/dataflow/prepare.sh \
#       configs/wmt_base.py gs://BUCKET/run --config.data.corpus=files ...
set -euo pipefail
: "${PROJECT:?}" "${REGION:?}" "${IMAGE:?}"
config=$1 run=$2
shift 2
exec "${PYTHON:-python}" -m jaxformer.main prepare --config="$config" \
    "$run" --runner="DataflowRunner \
--project=$PROJECT --region=$REGION --sdk_container_image=$IMAGE \
--temp_location=${run%/}.temp ${OPTIONS:-}" "$@"
