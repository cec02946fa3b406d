#!/usr/bin/env bash
# Installs what is missing on this machine, and says what and why (well under a second if nothing is missing):
#   - Node: the pinned version (.node-version) into .node/, only if the system's is older than 24
#   - the npm packages of package-lock.json into node_modules/, only if they are missing or the lock file has changed
#   - on Linux a software Vulkan driver from the system's packages, only if no WebGPU adapter is found (needs root or sudo)
# usage: bash scripts/setup.sh             set up
#        bash scripts/setup.sh --check     say what is missing, change nothing; exit code 1 if something is
#        bash scripts/setup.sh --driver    the driver only (the one part that needs root)
set -euo pipefail
me=setup
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/driver.sh"

check=no
only_driver=no
for word in "$@"; do
  case $word in
    --check) check=yes ;;
    --driver) only_driver=yes ;;
    -h | --help) help_wanted "$word" ;;
    *) warn "unknown option $word (there are --check and --driver)"; exit 2 ;;
  esac
done
missing=no

# needed WHAT WHY: succeeds if it should be installed now
needed() {
  missing=yes
  if [ $check = yes ]; then say "missing: $1 ($2)"; return 1; fi
  say "$1 ($2)"
}

set_up_node() {
  find_node
  [ -z "$NODE" ] || return 0
  local have
  have=$(node -v 2>/dev/null || echo none)
  needed "Node $pinned_node into .node/" "TypeScript runs as it is from Node $oldest_node on, and the system's is $have" || return 0
  command -v npm >/dev/null || { warn "npm is missing, and Node comes through it: install Node $oldest_node or newer (nodejs.org), or on Debian run 'apt-get install nodejs npm', then run this again"; exit 1; }
  local os arch package
  case $(uname -s) in MINGW* | MSYS* | CYGWIN*) os=win ;; *) os=$(uname -s | tr '[:upper:]' '[:lower:]') ;; esac
  case $(uname -m) in x86_64 | amd64) arch=x64 ;; aarch64 | arm64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
  package=node-$os-$arch
  # Installed next to its final place and then moved, so that an interrupted download never looks complete. npm checks the package's integrity.
  aside=$root/.node/aside.$$
  mkdir -p "$aside"
  trap 'rm -rf "$aside"' EXIT
  trap 'exit 130' INT TERM HUP
  if ! (cd "$aside" && echo '{"private":true}' >package.json && npm install --no-save --no-package-lock --no-audit --no-fund --loglevel=error "$package@$pinned_node" >/dev/null); then
    warn "npm has no $package@$pinned_node, or cannot be reached. Install Node $oldest_node or newer another way (nodejs.org; on macOS 'brew install node@$oldest_node') and run this again"
    exit 1
  fi
  rm -rf "${root:?}/.node/$pinned_node"
  mv "$aside/node_modules/$package" "$root/.node/$pinned_node"
  rm -rf "$aside"
  find_node
  [ -n "$NODE" ] && "$NODE" -v >/dev/null || { warn "$root/.node/$pinned_node/bin/node does not run on this system. Install Node $oldest_node or newer another way (nodejs.org) and run this again"; exit 1; }
}

set_up_packages() {
  [ -f "$root/package-lock.json" ] || return 0 # in the npm package, npm has already installed the packages
  local stamp=$root/node_modules/.dawn-rl-lock lock
  lock=$(sha256_of "$root/package-lock.json")
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$lock" ]; then return 0; fi
  local why='node_modules/ is not there yet'
  [ -d "$root/node_modules" ] && why='those in node_modules/ were not installed by this script, so they may be others'
  [ -f "$stamp" ] && why='package-lock.json has changed since they were installed'
  needed "npm packages from the lock file, about 300 MB on disk" "$why" || return 0
  command -v npm >/dev/null || { warn "npm is missing: on Debian 'apt-get install npm', then run this again"; exit 1; }
  # Uses the Node that will run, and an npm that is new enough. An older npm silently leaves out optional packages that need a newer one:
  # compute-engine needs npm 10.5, and Debian and Ubuntu have 9.2.
  local npm=(npm)
  case $(npm -v) in [0-9].* | 10.[0-4].*) npm=(npm exec --yes --loglevel=error --package=npm@11 -- npm) ;; esac
  (cd "$root" && use_node && "${npm[@]}" ci --no-audit --no-fund --loglevel=error) || { warn "npm ci failed; its words are above"; exit 1; }
  # npm does not report either that one of them could not be downloaded.
  local absent
  absent=$("$NODE" -p 'const folder = process.argv[1]; Object.keys(require(folder + "/package.json").optionalDependencies ?? {}).filter((name) => !require("fs").existsSync(folder + "/node_modules/" + name)).join(" ")' "$root")
  [ -z "$absent" ] || warn "not installed, and needed by what uses them: $absent. Run 'npm ci' again, or go on without"
  echo "$lock" >"$stamp"
}

# Unlike the rest, the driver depends on things outside the folder. The stamp records what a probe depends on (drivers, devices, variables), and
# WebGPU is probed again when any of that changes.
set_up_driver() {
  [ "$(uname -s)" = Linux ] || return 0
  local stamp=$root/node_modules/.dawn-rl-adapter facts
  facts=$(driver_facts)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$facts" ]; then return 0; fi
  local answer code=0
  answer=$(probe_adapter) || code=$?
  if [ $code = 3 ] && [ $only_driver = no ]; then
    say "not looked at: the Vulkan driver, as WebGPU cannot be asked yet ($answer)"
    return 0
  fi
  if [ $code != 0 ]; then
    needed "a software Vulkan driver" "WebGPU finds no adapter: $answer" || return 0
    install_driver
    code=0
    answer=$(probe_adapter) || code=$?
    if [ $code = 3 ]; then return 0; fi
    if [ $code != 0 ]; then
      warn "the driver is installed, and WebGPU still finds no adapter ($answer): 'node cli.js doctor' says more"
      exit 1
    fi
  fi
  say "WebGPU adapter: $answer"
  # No stamp with --driver, as a file of root's would be in the way of its owner. None either if it cannot be stored, as in the npm package, which
  # usually has no node_modules of its own: WebGPU is then probed each time.
  if [ $check = no ] && [ $only_driver = no ] && [ -w "$root/node_modules" ]; then driver_facts >"$stamp" || true; fi
}

if [ $only_driver = yes ]; then
  find_node
  set_up_driver
else
  set_up_node
  set_up_packages
  set_up_driver
fi
if [ $missing = no ]; then say 'nothing is missing'; fi
[ $check = no ] || [ $missing = no ]
