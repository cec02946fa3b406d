"""The Python side of the bridge to verifiers' environments. It is started by `bridge.ts`, never by hand.

The first line of standard input is the command, as JSON. Standard input then stays open as long as the run lives.

- find {id}: says whether a module of that name can be imported, without importing anything.
- describe {id, args, kwargs}: loads the environment, and writes its description (one line) and its rows (one line each) to standard output. On Linux
  the process then waits for the command serve: importing verifiers takes most of the time in which an environment starts.
- serve {id, args, kwargs, address, workers, env, log}: runs verifiers' own environment server until standard input is closed.

For verifiers 0.4.0 and later, which has tasksets instead of load_environment, the last two are in bridge_v1.py.

What the environment prints goes to standard error. A failure is one line {"failed": kind, "message": ...} and exit code 1.
"""

import base64
import importlib
import importlib.util
import json
import os
import sys
import threading
import traceback

OLDEST, NEWEST = (0, 1, 14), (0, 3, 0)
# From this version on, verifiers has only tasksets.
TASKSETS = (0, 4, 0)
# A rollout whose worker has died this often fails.
MOST_DEATHS = 3
# Stack frames of verifiers itself and of this file, which are left out of messages.
FRAMES = (os.sep + "verifiers" + os.sep, "importlib", os.path.basename(__file__))


class Failed(Exception):
    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def module_of(env_id):
    return env_id.split("/")[-1].replace("-", "_")


def find(wish):
    try:
        return importlib.util.find_spec(module_of(wish["id"])) is not None
    except (ImportError, ValueError):
        return False


def has_tasksets():
    """Whether this Python's verifiers has tasksets. Raises Failed for an unsupported version."""
    try:
        import verifiers
    except ImportError as error:
        raise Failed("missing", f"{sys.executable} has no verifiers ({error})") from error
    text = getattr(verifiers, "__version__", "0")
    numbers = []
    for part in text.split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not part[:1].isdigit() or len(numbers) == 3:
            break
        numbers.append(int(digits))
    if tuple(numbers) >= TASKSETS:
        return True
    if not OLDEST <= tuple(numbers) <= NEWEST:
        raise Failed("version", f"{sys.executable} has verifiers {text}")
    return False


def for_tasksets():
    return part("dawn_rl_v1", "bridge_v1.py")


def part(name, file):
    """The module in a file beside this one, which is not in Python's path: its name must not hide that of an environment's module."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, os.path.join(own, file))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def load(wish):
    """Loads the environment. Raises Failed with the place of the error in the environment's own code."""
    import verifiers as vf

    name = module_of(wish["id"])
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise Failed("unknown", f"there is no Python module {name}") from error
        raise Failed("load", f"it needs the Python module {error.name}, which is not installed{place(error)}") from error
    except Exception as error:
        raise Failed("load", f"importing it raised {told(error)}") from error
    if not hasattr(module, "load_environment"):
        raise Failed("load", f"{getattr(module, '__file__', name)} has no load_environment, so it is no environment (a taskset needs verifiers 0.4.0)")
    try:
        env = vf.load_environment(wish["id"], **wish["args"])
        if wish["kwargs"]:
            env.set_kwargs(**wish["kwargs"])
    except Exception as error:
        # verifiers wraps what the environment raised.
        cause = error.__cause__ if error.__cause__ is not None and "Failed to load environment" in str(error) else error
        raise Failed("load", f"load_environment raised {told(cause)}") from error
    if not isinstance(env, vf.Environment):
        raise Failed("load", f"load_environment gave a {type(env).__name__}, not an environment of verifiers")
    return env


def told(error):
    return f"{type(error).__name__}: {str(error)[:600]}{place(error)}"


def place(error):
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(part in f.filename for part in FRAMES)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def describe(wish, write):
    if has_tasksets():
        for_tasksets().describe(wish, write)
        return
    import msgpack
    from verifiers.utils.serve_utils import msgpack_encoder

    env = load(wish)
    try:
        train = env.get_dataset()
    except ValueError as error:
        raise Failed("load", "it has no rows to train on (its dataset is not set)") from error
    env.build_eval_dataset()
    # Without held-out rows, verifiers would return the training rows.
    held = env.eval_dataset if env.eval_dataset is not None else []
    write(
        {
            "group": compares_group(env),
            "max_turns": max_turns(env),
            "message_type": getattr(env, "message_type", "chat"),
            "system_prompt": getattr(env, "system_prompt", None),
            "tools": [plain(tool) for tool in getattr(env, "tool_defs", None) or []],
            "rewards": rewards(env),
            "train": len(train),
        }
    )
    for rows in (train, held):
        for row in rows:
            shown = {key: row.get(key) for key in ("example_id", "prompt", "answer", "info")}
            # The bytes to be sent to the server later. msgpack keeps Python's types of numbers.
            packed = msgpack.packb(dict(row), default=lambda value: encoded(value, msgpack_encoder), use_bin_type=True)
            write({"row": shown, "packed": base64.b64encode(packed).decode()})


def encoded(value, encoder):
    try:
        return encoder(value)
    except TypeError:
        return str(value)


def plain(tool):
    return tool.model_dump() if hasattr(tool, "model_dump") else dict(tool)


def members_of(env):
    """The members of an environment group; for any other environment, the environment itself."""
    members = getattr(env, "envs", None)
    return [one for member in members for one in members_of(member)] if members else [env]


def max_turns(env):
    turns = [int(getattr(member, "max_turns", -1)) for member in members_of(env)]
    return -1 if any(t <= 0 for t in turns) else max(turns)


def compares_group(env):
    rubrics = [member.rubric for member in members_of(env)]
    return any(rubric._is_group_func(function) for rubric in rubrics for function in rubric._get_reward_funcs())


def rewards(env):
    found = {}
    for rubric in (member.rubric for member in members_of(env)):
        for name, weight in zip(rubric._get_reward_func_names(), rubric._get_reward_weights()):
            found.setdefault(name, float(weight))
    return list(found.items())


def give_up_after(deaths):
    """
    Patches verifiers' router so that a request whose worker has died `deaths` times is answered with an error. verifiers would play it again forever: each
    attempt asks the policy anew, so that no time limit is reached, and each death takes down everything else that the worker plays.
    """
    import msgpack

    try:
        from verifiers.serve.server.env_router import EnvRouter

        run, restart_worker = EnvRouter.run, EnvRouter.restart_worker
    except (ImportError, AttributeError):
        # Another version of verifiers may not have this router: leave it as it is.
        return

    async def run_and_know(self, on_response, stop_event):
        self.answer_with = on_response
        await run(self, on_response, stop_event)

    async def restart(self, worker_id):
        worker = self.workers.get(worker_id)
        for info in list(worker.active_requests.values()) if worker else []:
            info.deaths = getattr(info, "deaths", 0) + 1
            if info.deaths >= deaths:
                self.complete_request(info.request_id)
                reply = {"success": False, "error": f"a crash of its process, {deaths} times during this rollout"}
                await self.answer_with(info.client_id, info.request_id, msgpack.packb(reply))
        await restart_worker(self, worker_id)

    EnvRouter.run, EnvRouter.restart_worker = run_and_know, restart


def serve(wish):
    if has_tasksets():
        for_tasksets().serve(wish)
        return
    give_up_after(MOST_DEATHS)
    folder = os.path.dirname(wish["address"].removeprefix("ipc://"))
    end_workers = processes.fork_workers(folder)
    import multiprocessing

    from verifiers.serve import ZMQEnvServer

    # Workers end when this process does, even if it is killed.
    reader, writer = multiprocessing.Pipe(duplex=False)
    threading.Thread(target=processes.end_with, args=(sys.stdin.buffer, writer, folder), daemon=True).start()
    try:
        ZMQEnvServer.run_server(
            wish["id"],
            wish["args"],
            wish["kwargs"],
            address=wish["address"],
            num_workers=wish["workers"],
            worker_heartbeat_timeout=wish["heartbeat"],
            stats_log_interval=600.0,
            death_pipe=reader,
        )
    finally:
        end_workers()


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def write(line):
        try:
            text = json.dumps(line, default=str, allow_nan=False)
        except ValueError:
            # NaN or infinity, which JSON lacks. For display only: the server gets the packed row.
            answer = line["row"]["answer"]
            shown = {**line["row"], "info": None, "answer": None if answer is None else str(answer)}
            text = json.dumps({**line, "row": shown}, default=str, allow_nan=False)
        out.write(text + "\n")
        out.flush() if "row" not in line else None

    def describe_and_end():
        # By its file descriptor: a thread waiting in the file object would hold its lock when Python exits.
        threading.Thread(target=processes.end_alone, args=(0,), daemon=True).start()
        report(lambda: describe(wish, write))
        if not processes.FORKS:
            write({"done": True, "waits": False})
        out.flush()
        # Threads and processes that the environment has started are not waited for.
        os._exit(0)

    def report(command):
        try:
            command()
        except Failed as error:
            give_up(error.kind, str(error))
        except Exception as error:
            traceback.print_exc()
            give_up("other", told(error))

    def give_up(kind, message):
        write({"failed": kind, "message": message})
        out.flush()
        os._exit(1)

    def prepare():
        if has_tasksets():
            for_tasksets()
        processes.seed_children()

    wish = next_command()
    if wish["do"] == "find":
        write({"found": find(wish)})
        out.flush()
        return
    processes.while_open(lambda: report(prepare))
    if wish["do"] == "describe":
        processes.run_apart(describe_and_end)
        write({"done": True, "waits": True})
        wish = next_command()
        if wish is None:
            return
    os.environ.update(wish["env"])
    log = os.open(wish["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for fd in (1, 2, out.fileno()):
        os.dup2(log, fd)
    os.close(log)
    report(lambda: serve(wish))


def next_command():
    """The next line of standard input, or None at its end. Reads nothing beyond it: the rest may be for another process."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return None
        line += piece
    return json.loads(line)


# Processes that multiprocessing starts import this file too, and must find modules in the same folders.
own = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != own]
for folder in os.environ.get("DAWN_RL_PYTHON_FOLDERS", "").split(os.pathsep):
    if folder and folder not in sys.path:
        sys.path.append(folder)

processes = part("dawn_rl_processes", "processes.py")

if __name__ == "__main__":
    main()
