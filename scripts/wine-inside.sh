# The part of wine.sh that runs inside the sandbox with Wine: starts a display, without which Wine has no Vulkan, and the program. Not for use by
# itself.
# usage: wine-inside.sh wineboot | node NODE.EXE WORDS...
wine=/usr/lib/x86_64-linux-gnu/wine
home=$PWD/.wine
rm -f "$home/display"
Xvfb -displayfd 1 -screen 0 640x480x24 -nolisten tcp >"$home/display" 2>/dev/null &
for _ in {1..100}; do
  [ ! -s "$home/display" ] || break
  sleep 0.1
done
[ -s "$home/display" ] || { echo 'Xvfb gives no display' >"$home/err"; exit 1; }
DISPLAY=:$(cat "$home/display")
export DISPLAY
case $1 in
  wineboot)
    # It ends with an error, because it cannot start the parts for 32-bit Windows.
    "$wine/wine" wineboot -i >"$home/out" 2>&1 </dev/null
    # Makes Wine write the registry.
    "$wine/wineserver" -k >>"$home/out" 2>&1
    "$wine/wineserver" -w >>"$home/out" 2>&1
    [ -e "$WINEPREFIX/system.reg" ]
    ;;
  node)
    shift
    exec "$wine/wine" "$@" >"$home/out" 2>"$home/err" </dev/null
    ;;
esac
