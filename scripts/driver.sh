# Finds and installs the software Vulkan driver (Mesa's lavapipe). Sourced by setup.sh and newer-mesa.sh. The driver comes from
#   Debian 12: from bookworm-backports, as its own Mesa 22.3 is too old for Dawn; the source is added with the mirror apt has already.
#   Debian 13, Ubuntu 24.04 and other systems with apt: their own mesa-vulkan-drivers.
# usage as a command, for the tests: bash scripts/driver.sh --backports-source APT_DIR

# Prints everything that decides which drivers WebGPU finds. When it changes, WebGPU must be probed again.
driver_facts() {
  uname -r
  env | grep -E '^(VK_|DAWN_RL_ADAPTER|XDG_DATA_)' | sort || true
  ls -ldL /dev/dri/* /dev/nvidia* /dev/dxg 2>/dev/null | awk '{ print $1, $NF }' || true
  ls -lL --time-style=+%s /usr/share/vulkan/icd.d/* /usr/local/share/vulkan/icd.d/* /etc/vulkan/icd.d/* "${HOME:-/root}"/.local/share/vulkan/icd.d/* \
    /usr/lib/*/libvulkan* /usr/lib64/libvulkan* /usr/lib/*/libGLX_nvidia.so.0 /usr/lib64/libGLX_nvidia.so.0 2>/dev/null || true
}

# Prints the adapter's name. If there is none, prints why and returns 1. Returns 3 if it cannot be asked, as Node or the npm packages are missing.
probe_adapter() {
  if [ -z "$NODE" ]; then echo 'it was not asked, as Node is missing'; return 3; fi
  "$NODE" "$root/scripts/probe.js" 2>/dev/null
}

install_driver() {
  local hidden=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}
  if [ -n "$hidden" ]; then
    warn "VK_DRIVER_FILES or VK_ICD_FILENAMES is set ($hidden), so no installed driver would be seen. Unset it and run this again"
    exit 1
  fi
  if ! command -v apt-get >/dev/null; then
    warn "this system has no apt-get: install the Vulkan loader and Mesa's lavapipe with its own package manager (Fedora: mesa-vulkan-drivers vulkan-loader, Arch: vulkan-swrast, Alpine has no glibc and does not do), then run this again"
    exit 1
  fi
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      warn "installing it needs root. Run this one command, then start again:"
      echo "  sudo bash $root/scripts/setup.sh --driver" >&2
      exit 1
    fi
    as_root=(sudo -n)
  fi
  local codename release=() quiet=(-qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  codename=$(. /etc/os-release && echo "${ID:-}-${VERSION_CODENAME:-}")
  if [ "$codename" = debian-bookworm ]; then
    release=(-t bookworm-backports)
    if ! grep -qsE '^[^#]*bookworm-backports' /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; then
      local name
      name=$(backports_file /etc/apt)
      say "adding Debian's backports to apt: /etc/apt/sources.list.d/$name (Debian 12's own Mesa 22.3 is too old for WebGPU)"
      backports_source /etc/apt | ${as_root[@]+"${as_root[@]}"} tee "/etc/apt/sources.list.d/$name" >/dev/null
    fi
  fi
  say "apt-get install ${release[*]+${release[*]} }libvulkan1 mesa-vulkan-drivers"
  ${as_root[@]+"${as_root[@]}"} apt-get "${quiet[@]}" update || { warn "apt-get update failed; its words are above"; exit 1; }
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}" install -y --no-install-recommends \
    ${release[@]+"${release[@]}"} libvulkan1 mesa-vulkan-drivers >/dev/null || { warn "apt-get install failed; its words are above"; exit 1; }
}

# Prints bookworm's own entry under APT_DIR, in the same format (deb822 stanza or one line), but with bookworm-backports as the suite. This keeps this
# machine's mirror, key and options.
backports_source() {
  local stanza line
  stanza=$(deb822_stanza "$1")
  line=$(one_line_entry "$1")
  if [ -n "$stanza" ]; then
    printf '%s\n' "$stanza"
  else
    printf '%s\n' "${line:-deb http://deb.debian.org/debian bookworm-backports main}"
  fi
}
backports_file() {
  if [ -n "$(deb822_stanza "$1")" ]; then echo dawn-rl-backports.sources; else echo dawn-rl-backports.list; fi
}
deb822_stanza() {
  cat_with_gaps "$1"/sources.list.d/*.sources | awk '
    function flush() {
      if (!done && enabled && types ~ /(^| )deb( |$)/ && suites ~ /(^| )bookworm( |$)/) { printf "Types: deb\nSuites: bookworm-backports\n%s", rest; done = 1 }
      enabled = 1; types = ""; suites = ""; rest = ""; field = ""
    }
    BEGIN { flush() }
    /^#/ { next }
    /^[ \t]*$/ { flush(); next }
    /^[^ \t]/ { field = tolower(substr($0, 1, index($0, ":") - 1)) }
    {
      value = $0; if ($0 !~ /^[ \t]/) sub(/^[^:]*:[ \t]*/, "", value); else sub(/^[ \t]+/, "", value)
      if (field == "types") types = types " " value
      else if (field == "suites") suites = suites " " value
      else if (field == "enabled") enabled = (tolower(value) !~ /^(no|false|0|off)/)
      else rest = rest $0 "\n"
    }
    END { flush() }'
}
one_line_entry() {
  cat_with_gaps "$1"/sources.list "$1"/sources.list.d/*.list | awk '
    /^[ \t]*deb[ \t]/ && !/cdrom:/ {
      for (i = 2; i <= NF; i++) if ($i == "bookworm") { $i = "bookworm-backports"; print; exit }
    }'
}
cat_with_gaps() {
  local file
  for file in "$@"; do if [ -f "$file" ]; then cat "$file"; printf '\n\n'; fi; done
}

if [ "${1:-}" = --backports-source ] && [ "${BASH_SOURCE[0]}" = "$0" ]; then backports_source "$2"; fi
