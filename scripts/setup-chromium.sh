#!/usr/bin/env bash
# Installs Chromium and a font, for the tests of the viewer's page (test/view). On Debian and Ubuntu through apt, about 400 MB. On other systems, or
# to use another Chrome, set CHROMIUM to the program.
# usage: bash scripts/setup-chromium.sh     does nothing if it is installed already
# Exit code 4 if it cannot be installed from here.
set -euo pipefail
me=setup-chromium
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
help_wanted "$@"
chromium=${CHROMIUM:-/usr/bin/chromium}

if [ -x "$chromium" ]; then exit 0; fi
[ -z "${CHROMIUM:-}" ] || { warn "CHROMIUM is $CHROMIUM, and there is no such program"; exit 4; }
command -v apt-get >/dev/null || { warn "this system has no apt-get: install Chromium with its own package manager and set CHROMIUM to the program"; exit 4; }
as_root=()
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || { warn "installing it needs root: sudo apt-get install chromium fonts-dejavu-core"; exit 4; }
  as_root=(sudo -n)
fi
quiet=(-qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
say 'apt-get install chromium fonts-dejavu-core'
${as_root[@]+"${as_root[@]}"} apt-get "${quiet[@]}" update || { warn 'apt-get update failed; its words are above'; exit 4; }
${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}" install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
  { warn 'apt-get install failed; its words are above'; exit 4; }
# Ubuntu's package of this name only installs a snap.
[ -x "$chromium" ] || { warn "the package left no $chromium: install a Chromium and set CHROMIUM to the program"; exit 4; }
