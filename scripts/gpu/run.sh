#!/bin/sh
# The GPU proof in one command: scripts/gpu/run.sh --out DIR [--only NAME,…] [--gpus 1|2] [--budget SECONDS]
#
# Needs `python3` with SGLang, a GPU, and what pyproject.toml names. On a host without network (docs/gpu.md):
#   BUNDLE  a folder with env.sh that brings SGLang
#   CARRIED what `python -m scripts.gpu.pack` collected (build/gpu): wheels, and the real model in parts
#   WORK    where both are unpacked, and logs are kept (/tmp/antiphon-gpu)
#   COMMIT  what is proved, where the checkout does not say
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
CARRIED=${CARRIED:-$root/build/gpu}
WORK=${WORK:-/tmp/antiphon-gpu}
mkdir -p "$WORK"
PYTHONPATH=${PYTHONPATH:-}
BUNDLE=${BUNDLE:-$CARRIED/bundle}
if [ -e "$BUNDLE/env.sh" ]; then
    cp "$BUNDLE/env.sh" "$WORK/env.sh"
    . "$BUNDLE/env.sh"
elif [ -e "$WORK/env.sh" ]; then # unpacked by an earlier command
    . "$WORK/env.sh"
fi
if [ -d "$CARRIED/wheels" ] && [ ! -e "$WORK/site/.ok" ]; then
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$WORK/site" "$CARRIED"/wheels/*.whl
    touch "$WORK/site/.ok"
fi
export PYTHONPATH="$WORK/site${PYTHONPATH:+:$PYTHONPATH}"
cd "$root"
python3 -m scripts.gpu.real_model "$CARRIED" "$WORK" || echo "the real model could not be made" >&2
[ ! -d "$WORK/model" ] || set -- --model "$WORK/model" "$@"
exec python3 -m scripts.gpu.prove --work "$WORK" "$@"
