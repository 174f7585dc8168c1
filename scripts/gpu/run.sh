#!/bin/sh
# The GPU proof in one command: scripts/gpu/run.sh --out DIR [--only NAME,…] [--gpus 1|2] [--budget SECONDS]
#
# Needs `python3` with what pyproject.toml names, and a GPU. On a host without network (docs/gpu.md):
#   ENGINE_PYTHON the Python that has SGLang, if not python3
#   BUNDLE  a folder with env.sh that brings SGLang, where no Python has it
#   CARRIED what `python -m scripts.gpu.pack` collected (build/gpu): wheels, and the real model in parts
#   WORK    where all of it is unpacked, and logs are kept (/tmp/antiphon-gpu)
#   COMMIT  what is proved, where the checkout does not say
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
CARRIED=${CARRIED:-$root/build/gpu}
WORK=${WORK:-/tmp/antiphon-gpu}
BUNDLE=${BUNDLE:-$CARRIED/bundle}
mkdir -p "$WORK"
if [ -e "$BUNDLE/env.sh" ]; then
    # It says what a Python must see to be one that has SGLang; what fronts need is kept apart from that.
    cp "$BUNDLE/env.sh" "$WORK/env.sh"
    printf '#!/bin/sh\nunset PYTHONPATH\nBUNDLE=%s\n. %s/env.sh\nexec python3 "$@"\n' "$BUNDLE" "$WORK" >"$WORK/engine-python"
    chmod +x "$WORK/engine-python"
    "$WORK/engine-python" -c "" # unpacks it
fi
if [ -e "$WORK/engine-python" ]; then # perhaps unpacked by an earlier command
    ENGINE_PYTHON=$WORK/engine-python
fi
ENGINE_PYTHON=${ENGINE_PYTHON:-python3}
cd "$root"
"$ENGINE_PYTHON" -m scripts.gpu.real_model "$CARRIED" "$WORK" || echo "the real model could not be made" >&2
[ ! -d "$WORK/model" ] || set -- --model "$WORK/model" "$@"
if [ -d "$CARRIED/wheels" ] && [ ! -e "$WORK/site/.ok" ]; then
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$WORK/site" "$CARRIED"/wheels/*.whl
    touch "$WORK/site/.ok"
fi
if [ -e "$WORK/site/.ok" ]; then
    export PYTHONPATH="$WORK/site${PYTHONPATH:+:$PYTHONPATH}"
fi
exec python3 -m scripts.gpu.prove --work "$WORK" --engine-python "$ENGINE_PYTHON" "$@"
