"""How the processes of the bridge begin and end: the part of bridge.py that knows nothing of environments."""

import os
import select
import shutil
import signal
import sys
import threading
import time
import types
import warnings

# Whether processes that need verifiers are forked from one that has imported it. On macOS, system libraries may crash in a forked process.
FORKS = sys.platform == "linux"


def seed_children():
    """Gives each forked process other random numbers. Python's own generator does so itself."""
    if "numpy" in sys.modules:
        os.register_at_fork(after_in_child=sys.modules["numpy"].random.seed)


def while_open(command):
    """Runs command(), but kills this process with its group if standard input is closed meanwhile. Nothing else may be sent until command() has returned."""
    done = threading.Event()

    def watch():
        while not done.is_set():
            if select.select([0], [], [], 0.1)[0]:
                os.killpg(0, signal.SIGKILL)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    command()
    done.set()
    watcher.join()  # before anything is forked


def fork():
    """Like os.fork, for a process without threads but those of idle libraries, about which Python would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def run_apart(command):
    """
    Runs command(), which must end its process, in a child, so that nothing it does remains here. Returns if the child succeeds. If it fails, or is killed,
    this process ends in the same way; if standard input is closed meanwhile, both end. Without FORKS, command() runs here, and this never returns.
    """
    child = fork() if FORKS else 0
    if child == 0:
        # A group of its own, so that processes that it starts end with it.
        if FORKS:
            os.setpgid(0, 0)
        command()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        # The next command is sent after this one has ended: until then, all that can be read is the end.
        if select.select([0], [], [], 0.02)[0]:
            kill_group(child)
            os._exit(1)
    kill_group(child)
    if os.WIFSIGNALED(status):
        by = os.WTERMSIG(status)
        if by != signal.SIGKILL:
            signal.signal(by, signal.SIG_DFL)
        os.kill(os.getpid(), by)
    if status != 0:
        os._exit(os.WEXITSTATUS(status))


def kill_group(leader):
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def fork_workers(folder):
    """
    Makes verifiers start its workers with multiprocessing's "forkserver" in place of "spawn". The fork server is forked from this process, which has
    imported verifiers, where multiprocessing would start a new Python. Must run before anything here starts a thread. Its socket lies in `folder`.
    Does nothing without FORKS. Returns a function that ends the fork server and waits for it: otherwise it would outlive this process by a moment.
    """
    if not FORKS:
        return lambda: None
    from multiprocessing import current_process, forkserver, get_context, util

    try:
        import verifiers.serve.server.env_worker  # noqa: F401 (imported for the workers)
        from verifiers.serve.server import env_router
    except ImportError:
        # Another version of verifiers may not have them: leave it as it is.
        return lambda: None
    start = util.spawnv_passfds
    servers = []

    def start_here(path, args, fds):
        program = args[-1]
        if "multiprocessing.forkserver" not in program:
            return start(path, args, fds)
        child = fork()
        if child != 0:
            servers.append(child)
            return child
        try:
            keep_only({0, 1, 2, *fds})
            exec(program, {})
        finally:
            os._exit(1)

    # The folder for temporary files may have a name too long for a socket, and whatever is put there stays if this process is killed.
    current_process()._config["tempdir"] = folder
    util.spawnv_passfds = start_here
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = start
    env_router.mp = types.SimpleNamespace(get_context=lambda _: get_context("forkserver"))

    def end():
        for server in servers:
            try:
                if not os.waitpid(server, os.WNOHANG)[0]:
                    os.kill(server, signal.SIGKILL)
                    os.waitpid(server, 0)
            except ChildProcessError:
                pass  # multiprocessing has found it dead

    return end


def keep_only(wanted):
    """Closes all other files: a fork server ends when a pipe is closed, of which it must not hold the other end itself."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd not in wanted:
                os.close(fd)
        except OSError:
            pass  # the one by which the folder was read


def end_with(stream, writer, folder):
    """Ends everything once the run is gone, for whatever reason: by SIGTERM, later by SIGKILL. A killed run leaves the socket's folder behind."""
    while stream.read(1):
        pass
    writer.close()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(8)
    finally:
        os.killpg(0, signal.SIGKILL)


def end_alone(stream):
    """Ends everything at once when the run is gone, as there is nothing to clean up."""
    while os.read(stream, 1):
        pass
    os.killpg(0, signal.SIGKILL)
