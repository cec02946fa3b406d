# Unpacks packages of Debian's unstable release into a folder, without changing the system. Sourced by newer-mesa.sh and wine.sh.

# unpack_sid HOME TAKES UNPACKING INSTEAD PACKAGE...: unpacks the packages with all their dependencies into HOME/root. An existing HOME is replaced
# once the new one is complete. GPU drivers and documentation are left out. TAKES and UNPACKING: megabytes on disk at the end and meanwhile. INSTEAD:
# an alternative for systems without Debian's tools, for messages. Exit code 4 if the packages cannot be had.
unpack_sid() {
  local home=$1 takes=$2 unpacking=$3 instead=$4 keys=/usr/share/keyrings/debian-archive-keyring.gpg words mirror free deb
  shift 4
  for words in apt-get dpkg-deb; do
    command -v $words >/dev/null || { warn "this system has no $words, which unpacks Debian's packages. $instead"; exit 4; }
  done
  [ -r $keys ] || { warn "Debian's keys are not here ($keys): sudo apt-get install debian-archive-keyring"; exit 4; }
  free=$(($(df -Pk "$root" | awk 'NR == 2 { print $4 }') / 1000))
  [ "$free" -gt $((unpacking + 100)) ] || { warn "it takes $takes MB in $(basename "$home"), and $unpacking MB while it is unpacked; $free MB are free there"; exit 4; }
  # The mirror that apt uses for Debian on this machine.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 -E '/debian/?$' || true)
  mirror=${mirror:-http://deb.debian.org/debian/}
  say "packages of Debian unstable from $mirror into $(basename "$home") (once; $takes MB on disk)"
  work=$(mktemp -d "$home-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/lists/partial "$work"/debs/partial "$work/none" "$work/root"
  echo "deb [signed-by=$keys] $mirror sid main" >"$work/sources"
  # apt gets an empty list of installed packages, so that it downloads every dependency, including the C library.
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources" -o "Dir::Etc::SourceParts=$work/none" -o "Dir::State::Lists=$work/lists" -o "Dir::State::Status=/dev/null"
    -o "Dir::Cache::Archives=$work/debs" -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache= -o APT::Install-Recommends=false -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)")
  "${apt[@]}" update || { warn 'apt-get update failed; its words are above'; exit 4; }
  "${apt[@]}" -y --download-only install "$@" >/dev/null || { warn 'apt-get could not fetch the packages; its words are above'; exit 4; }
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
  find "$work/root" \( -name 'libvulkan_*' ! -name 'libvulkan_lvp.so' -o -name 'libVkLayer_*' -o -path '*/share/doc/*' -o -path '*/share/locale/*' \) ! -type d -delete
  rm -rf "$work/debs" "$work/lists" "$work/none" "$home"
  mv "$work" "$home"
  trap - EXIT
}
