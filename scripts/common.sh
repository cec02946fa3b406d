# Shared by the scripts, which source it. Must work with bash 3.2 (macOS).
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Container images often set this. Then every start of a Python compiles all that it imports, which takes longer than running it (verifiers 7 s in
# place of 3): the venvs made here keep what was compiled.
unset PYTHONDONTWRITEBYTECODE
pinned_node=$(cat "$root/.node-version")
oldest_node=24 # as in cli.js

say() { echo "${me:-dawn-rl}: $*"; }
warn() { echo "${me:-dawn-rl}: $*" >&2; }

# help_wanted "$@": if the first word asks for help, prints the script's head comment, which says how to use it, and exits.
help_wanted() {
  case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
}

# Sets NODE to a Node that can run the project: the system's if it is new enough, else the pinned one in .node/, else ''.
find_node() {
  NODE=
  local found major
  if found=$(command -v node); then
    major=$("$found" -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)
    if [ "$major" -ge "$oldest_node" ]; then NODE=$found; fi
  fi
  if [ -z "$NODE" ] && [ -x "$root/.node/$pinned_node/bin/node" ]; then NODE=$root/.node/$pinned_node/bin/node; fi
}

# Like find_node, but also puts that Node first in PATH, for the processes that tests and runs start themselves.
use_node() {
  find_node
  [ -n "$NODE" ] || { warn "there is no Node $oldest_node or newer here: run 'bash scripts/setup.sh'"; exit 1; }
  PATH=$(dirname "$NODE"):$PATH
  export PATH
}

# For tests: makes a software adapter (Mesa's lavapipe) compile shaders without LLVM's optimisations. They take half of the processor time of a first
# test run, and do not speed up models as small as the tests'. The other parts of CI (quickstart, most of the peers) run as they do for users.
# GALLIVM_PERF= turns them on again.
quick_shaders() { export GALLIVM_PERF=${GALLIVM_PERF-nopt}; }

# find_python OLDEST NEWEST: sets python to the first Python 3 in PATH whose minor version is in this range, or to ''.
find_python() {
  local found
  python=
  for found in python3.12 python3.11 python3.13 python3.10 python3; do
    command -v "$found" >/dev/null && "$found" -c "import sys; sys.exit(not (3, $1) <= sys.version_info[:2] <= (3, $2))" 2>/dev/null || continue
    python=$found
    break
  done
}

# The .venv-* of a setup script. The script sets venv (its folder) and wanted (its contents, recorded in $venv/ready once everything works), and then
# runs:
# if ! venv_is_there; then new_venv ...; uv install ...; venv_works 'import ...'; fi
venv_is_there() { [ "$(cat "$venv/ready" 2>/dev/null || true)" = "$wanted" ]; }

# new_venv WHAT OLDEST NEWEST TAKES NEEDS_MB: creates an empty venv with uv, for a Python 3 whose minor version is in this range ('' as NEWEST: no
# upper limit). Exit code 4 if there is no such Python or it has no pip, 1 if NEEDS_MB are not free. Messages use WHAT (the venv's purpose) and TAKES
# (the disk space).
new_venv() {
  local what=$1 oldest=$2 newest=$3 takes=$4 needs=$5 free versions debian='Debian and Ubuntu: sudo apt-get install'
  versions="Python 3.$oldest ${newest:+to 3.$newest}"
  [ -n "$newest" ] || versions+='or newer'
  find_python "$oldest" "${newest:-99}"
  [ -n "$python" ] || { warn "$what needs $versions, which is not there. $debian python3 python3-venv python3-pip"; exit 4; }
  "$python" -m pip --version >/dev/null 2>&1 || { warn "$python has no pip, which installs $what. $debian python3-pip"; exit 4; }
  free=$(($(df -Pk "$root" | awk 'NR == 2 { print $4 }') / 1000))
  [ "$free" -gt "$needs" ] || { warn "$what takes about $takes in $venv, and up to $needs MB while it is installed; $free MB are free there"; exit 1; }
  say "$wanted into ${venv#"$root"/} (once; about $takes)"
  rm -rf "$venv"
  # On Debian, ensurepip is in a separate package. So the venv gets no pip, and the system's pip installs uv.
  "$python" -m venv --without-pip "$venv"
  "$python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-cache-dir uv
}

# uv install WORDS: installs packages into the venv
uv() { "$venv/bin/uv" pip "$@" --quiet --python "$venv/bin/python" --no-progress; }

# venv_works CODE: runs this Python code in the venv, and marks the venv as ready. If the code fails, prints its last lines and exits with code 1
venv_works() {
  "$venv/bin/python" -c "$1" >/dev/null 2>"$venv/import.log" || {
    warn "$wanted: installed, and can't be imported; the end of $venv/import.log:"
    tail -n 3 "$venv/import.log" >&2
    exit 1
  }
  echo "$wanted" >"$venv/ready"
}

sha256_of() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}
