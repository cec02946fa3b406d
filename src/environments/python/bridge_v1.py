"""
The part of bridge.py for verifiers 0.4.0 and later, which has tasksets (verifiers.v1) instead of load_environment. It is the module dawn_rl_v1: by that
name verifiers finds the harness below. Requests and replies have the format of verifiers' earlier environment server.
"""

import asyncio
import base64
import contextlib
import io
import json
import logging
import os
import signal
import sys
import threading

import httpx
import msgpack
import verifiers.v1 as vf
import zmq
import zmq.asyncio
from pydantic import ValidationError
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

from __main__ import Failed, module_of, processes, told  # bridge.py

__all__ = ["ChatHarness"]

# The words with which the run says that the context is full.
FULL = "maximum context length"
EARLIER = f"it is made by load_environment, which verifiers has up to 0.3.0, and {sys.executable} has a later one"


class ChatHarness(NullHarness):
    """verifiers' harness "null" (a chat with the task's tools), but in this process: the original starts a Python with its own packages each time."""

    async def setup(self, runtime):
        pass

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        system, prompt = self.resolve_prompt(data)
        messages = messages_of(system, prompt)
        async with contextlib.AsyncExitStack() as stack:
            asking = httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=None, trust_env=False, verify=False)
            client = await stack.enter_async_context(asking)
            config = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools, places, servers = await connect_mcp({"mcpServers": config}, stack)
            body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
            while True:
                response = await client.post(f"{endpoint}/chat/completions", json=body)
                if response.status_code >= 400:
                    # A rollout that a task or a limit has stopped gets an error status too. verifiers recognises that case from its trace.
                    return vf.ProgramResult(0 if FULL in response.text else 1, "", response.text)
                message = response.json()["choices"][0]["message"]
                calls = message.get("tool_calls") or []
                messages.append({key: value for key, value in message.items() if value is not None})
                if not calls:
                    return vf.ProgramResult(0, "", "")
                for call in calls:
                    result = await gated(client, tool_interception_url, call) if tool_interception_url else None
                    messages.append(bound_tool_message(result or await called(call, places, servers)))


async def gated(client, url, call):
    """Returns what a task's interceptors put in place of the call's result, or None if the call is to be made."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = function["arguments"]
    asked = {"tool_call_id": call["id"], "name": function["name"], "arguments": arguments}
    response = await client.post(url, json=asked)
    response.raise_for_status()
    decision = response.json()
    if decision["action"] == "stop":
        raise RuntimeError(decision["reason"])
    return decision["message"] if decision["action"] == "deny" else None


async def called(call, places, servers):
    """Calls a tool and returns the message with its result. Mistakes in a call are reported to the policy."""
    name, text = call["function"]["name"], call["function"]["arguments"]
    try:
        arguments = json.loads(text or "{}")
        wrong = None if isinstance(arguments, dict) else "must be a JSON object"
    except ValueError as error:
        wrong = f"are no JSON ({error})"
    if name not in places:
        content = f"error: there is no tool {name}"
    elif wrong:
        content = f"error: the arguments {wrong}"
    else:
        content = await call_mcp(servers, places, name, arguments)
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


def messages_of(system, prompt):
    begin = [{"role": "system", "content": system}] if system else []
    said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [message_to_wire(one) for one in prompt or []]
    return begin + said


def load(wish):
    """Creates the environment over the taskset. Raises Failed with the place of the error in the taskset's own code."""
    name = module_of(wish["id"]).lower()
    try:
        vf.import_taskset(wish["id"])
    except ModuleNotFoundError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing == name:
            raise Failed("unknown", f"there is no Python module {name}") from error
        if str(missing).startswith("verifiers."):
            raise Failed("load", EARLIER) from error
        raise Failed("load", f"it needs the Python module {missing}, which is not installed") from error
    except Exception as error:
        raise Failed("load", f"importing it raised {told(error)}") from error
    module = sys.modules.get(name)
    if hasattr(module, "load_environment") and not hasattr(module, "__all__"):
        raise Failed("load", EARLIER)
    try:
        return vf.load_environment(config_of(wish["id"], wish["args"], wish["kwargs"]))
    except Failed:
        raise
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(at) for at in one['loc'])}: {one['msg']}" for one in error.errors())
        raise Failed("load", f"its settings are refused: {wrong}") from error
    except Exception as error:
        raise Failed("load", f"making it raised {told(error)}") from error


def config_of(taskset, args, kwargs):
    """verifiers' config of the environment. `args` are the taskset's keys, `kwargs` the keys beside it."""
    given = {key: value for key, value in kwargs.items() if key != "select"}
    kind = vf.env_config_type(taskset, given.get("id", ""))
    agents = {key: field.default for key, field in kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)}
    if len(agents) != 1:
        raise Failed("load", f"it is played by {len(agents)} agents ({', '.join(agents)}); only tasks of one agent can be trained on")
    ((seat, default),) = agents.items()
    agent = {"runtime": {"type": "subprocess"}, **given.get(seat, {})}
    harness = dict(agent.get("harness") or {})
    own = harness.get("id") or (default.harness.id if default.harness else vf.default_harness_id(taskset).replace("bash", "null"))
    agent["harness"] = {**harness, "id": __name__ if own == "null" else own}
    return vf.resolve_env_config({**given, seat: agent, "taskset": {**args, "id": taskset}})


def describe(wish, write):
    env = load(wish)
    taskset = env.taskset
    data_type = type(taskset).task_type().data_type()
    lost = [name for name, field in data_type.model_fields.items() if field.exclude]
    if lost:
        raise Failed("load", f"its {data_type.__name__} leaves out {', '.join(lost)} when it is written (exclude)")
    try:
        taskset = taskset.select(vf.SelectConfig(**wish["kwargs"].get("select", {})))
        if not taskset.bounded:
            raise Failed("load", "its tasks never end; say how many are wanted: extra_env_kwargs = { select = { limit = 1000 } }")
        tasks = list(taskset)
        rewards = [[fn.__name__, getattr(fn, "_vf_weight", 1.0)] for fn in tasks[0].hooks("reward")] if tasks else []
        rewards += [[judge.reward_name, judge.config.weight] for judge in tasks[0].plugged_judges()] if tasks else []
    except Failed:
        raise
    except Exception as error:
        raise Failed("load", f"loading its tasks raised {told(error)}") from error
    (agent,) = [value for _, value in env.config if isinstance(value, vf.AgentConfig)]
    if agent.runtime.type != "subprocess" or type(taskset).task_type().NEEDS_CONTAINER:
        raise Failed("load", "its tasks are to be played in a container; here they are played on this machine as it is")
    tools = [*taskset.toolsets(taskset.config), *(tasks[0].toolsets(tasks[0].config) if tasks else [])]
    turns = agent.max_turns or (1 if type(env) is vf.SingleAgentEnv and not tools else -1)
    about = {"tasksets": True, "group": False, "max_turns": turns, "message_type": "chat", "system_prompt": None}
    write({**about, "tools": [], "rewards": rewards, "train": len(tasks)})
    for task in tasks:
        data = task.data
        fields = data.model_dump(mode="json", exclude=set(vf.TaskData.model_fields))
        answer = fields.pop("answer", None)
        # If the environment opens the conversation, there is no prompt yet.
        prompt = messages_of(data.system_prompt, data.prompt) or [{"role": "user", "content": ""}]
        packed = base64.b64encode(msgpack.packb(data.model_dump_json())).decode()
        write({"row": {"example_id": data.idx, "prompt": prompt, "answer": answer, "info": fields}, "packed": packed})


async def play(env, request):
    """Plays one task, as verifiers' own server does: the task is created from its data."""
    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate_json(request["input"]), env.config.taskset.task)
    endpoint = request["client_config"]
    client = vf.EvalClientConfig(base_url=endpoint["api_base_url"], api_key_var=endpoint["api_key_var"])
    sampling = vf.SamplingConfig(**request["sampling_args"])
    (slot,) = env.slots(task)
    return output_of(await env.run_slot(slot, vf.ModelContext(model=request["model"], client=client, sampling=sampling)))


def output_of(episode):
    def failed(kind, message):
        return {"trajectory": [], "error": {"error": kind, "message": message}}

    errors = episode.errors or [error for trace in episode.traces for error in trace.errors]
    if not episode.ok:
        return failed(errors[-1].type, errors[-1].message) if errors else failed("error", "verifiers tells of none")
    if len(episode.traces) != 1:
        return failed("several traces", f"its agent was run {len(episode.traces)} times; a rollout is trained on as one")
    (trace,) = episode.traces
    unscored = [name for name, reward in trace.rewards.items() if reward is None]
    taken = [call for call in trace.calls if call.node is not None]
    if unscored or not taken:
        return failed(trace.stop_condition, f"before {', '.join(unscored)} was scored" if unscored else "before the first answer")
    messages = trace.branches[-1].messages
    if trace.task.data.prompt is not None:
        begin = len(messages_of(trace.task.data.system_prompt, trace.task.data.prompt))
        messages = messages[begin:]
    full = any(call.error and FULL in call.error.message for call in trace.calls)
    return {
        "session": trace.id,
        "trajectory": [{"lengths": [call.usage.prompt_tokens, call.usage.completion_tokens]} for call in taken],
        "completion": [message_to_wire(message) for message in messages],
        "reward": trace.reward,
        "metrics": {**{name: reward.score for name, reward in trace.rewards.items()}, **trace.metrics},
        "stop_condition": "prompt_too_long" if full else trace.stop_condition,
        "is_truncated": full or any(call.finish_reason == "length" for call in taken),
    }


async def answer(env, request):
    kind = request.get("request_type")
    if kind != "run_rollout":
        return {"success": False, "error": f"there is no request {kind}"}
    try:
        return {"success": True, "error": None, "output": await play(env, request)}
    except asyncio.CancelledError:
        return {"success": False, "error": "it was cancelled"}
    except Exception as error:
        logging.getLogger(__name__).exception("a rollout failed")
        return {"success": False, "error": told(error)}


async def run(wish):
    env = load(wish)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    running = {}
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(wish["address"])

    async def serve_one(client, name, payload):
        reply = await answer(env, msgpack.unpackb(payload))
        running.pop(name, None)
        await socket.send_multipart([client, name, msgpack.packb(reply, default=str)])

    try:
        async with env.serving():
            try:
                while True:
                    client, name, payload = await socket.recv_multipart()
                    if payload:
                        running[name] = asyncio.create_task(serve_one(client, name, payload))
                        # Lets the task begin at once: if it were cancelled before that, it would not reply.
                        await asyncio.sleep(0)
                    elif name in running:
                        running[name].cancel()
            finally:
                # Lets them end what they have started: tool servers, folders.
                ending = list(running.values())
                for task in ending:
                    task.cancel()
                await asyncio.gather(*ending, return_exceptions=True)
    finally:
        context.destroy(linger=0)


def serve(wish):
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("verifiers").setLevel(logging.INFO)
    # Tool servers are processes that import the taskset's module by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.environ.get("DAWN_RL_PYTHON_FOLDERS")]))
    folder = os.path.dirname(wish["address"].removeprefix("ipc://"))
    threading.Thread(target=processes.end_with, args=(sys.stdin.buffer, io.BytesIO(), folder), daemon=True).start()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run(wish))
