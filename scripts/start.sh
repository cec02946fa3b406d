#!/usr/bin/env bash
# npm start: installs what is missing, downloads the model, and trains it: node train.js @ configs/quickstart.toml
# usage: npm start -- WORDS      WORDS are added after the config, for example --trainer.args.max_steps 2
set -euo pipefail
me=start
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
bash scripts/setup.sh
use_node
config=configs/quickstart.toml
if ! bash scripts/get-smollm2.sh; then
  config=configs/tiny.toml
  say "so this runs $config instead, on the small model that ships with the checkout"
fi
say "node train.js @ $config $*"
exec "$NODE" train.js @ "$config" "$@"
