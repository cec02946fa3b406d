# What the scripts share; sourced, not run. bash 3.2 (macOS) must do.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pinned_node=$(cat "$root/.node-version")
oldest_node=24 # as in cli.js

say() { echo "${me:-dawn-rl}: $*"; }
warn() { echo "${me:-dawn-rl}: $*" >&2; }

# Sets NODE to a Node that runs the project as it is: the system's where it is new enough, else the pinned one in .node/, else ''.
find_node() {
  NODE=
  local found major
  if found=$(command -v node); then
    major=$("$found" -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)
    if [ "$major" -ge "$oldest_node" ]; then NODE=$found; fi
  fi
  if [ -z "$NODE" ] && [ -x "$root/.node/$pinned_node/bin/node" ]; then NODE=$root/.node/$pinned_node/bin/node; fi
}

# find_node, and that Node first in PATH, for what the tests and runs start themselves.
use_node() {
  find_node
  [ -n "$NODE" ] || { warn "there is no Node $oldest_node or newer here: run 'bash scripts/setup.sh'"; exit 1; }
  PATH=$(dirname "$NODE"):$PATH
  export PATH
}

# find_python OLDEST NEWEST: python becomes the first Python 3 on the PATH whose minor version is between them, or nothing.
find_python() {
  local found
  python=
  for found in python3.12 python3.11 python3.13 python3.10 python3; do
    command -v "$found" >/dev/null && "$found" -c "import sys; sys.exit(not (3, $1) <= sys.version_info[:2] <= (3, $2))" 2>/dev/null || continue
    python=$found
    break
  done
}

sha256_of() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}
