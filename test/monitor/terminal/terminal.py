"""Runs a command in a terminal of its own: python3 terminal.py COLUMNS ROWS COMMAND...

What it writes comes out of standard output as it is. Standard input takes lines of JSON: {"keys": TEXT} types, {"size": [COLUMNS, ROWS]} changes the
window, {"signal": NUMBER} goes to the command, {"hangup": true} closes the terminal. The exit code is the command's, or 128 + its signal.
"""
import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios


def resize(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


columns, rows = int(sys.argv[1]), int(sys.argv[2])
pid, terminal = pty.fork()
if pid == 0:
    resize(1, columns, rows)
    os.execvp(sys.argv[3], sys.argv[3:])

inputs = [terminal, 0]
pending = b""
while terminal in inputs:
    ready, _, _ = select.select(inputs, [], [])
    if terminal in ready:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # EIO: nobody holds the other side any more
            data = b""
        if not data:
            break
        os.write(1, data)
    if 0 in ready:
        data = os.read(0, 65536)
        if not data:
            inputs.remove(0)
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            wish = json.loads(line)
            if "keys" in wish:
                os.write(terminal, wish["keys"].encode())
            if "size" in wish:
                resize(terminal, *wish["size"])
                # Whoever draws the screen changes its size at this place of the stream.
                os.write(1, b"\x1b]777;size;%d;%d\x07" % tuple(wish["size"]))
            if "signal" in wish:
                os.kill(pid, wish["signal"])
            if wish.get("hangup"):
                os.close(terminal)
                inputs.remove(terminal)
_, status = os.waitpid(pid, 0)
sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
