"""reasoning-gym's tasks as a verifiers environment: `[env] id = "reasoning-gym-env"`, `args = { gym = "spell_backward" }`.

The arguments are those of verifiers' own ReasoningGymEnv: gym (a task's name, or several as names and tables), num_train_examples,
num_eval_examples, system_prompt, seed. In addition, `answer` says where in a reply the answer is:

- "tags" (default, ReasoningGymEnv's way): between <answer> and </answer>;
- "text": the whole reply;
- "last-word": its last word or number, for models that are too small to use tags reliably.
"""

import re

import verifiers as vf
from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv


def last_word(text):
    words = re.findall(r"-?\w+", text or "")
    return words[-1] if words else ""


def load_environment(gym="spell_backward", answer="tags", **kwargs):
    parsers = {"tags": None, "text": vf.Parser(), "last-word": vf.Parser(extract_fn=last_word)}
    if answer not in parsers:
        raise ValueError(f'answer is "{answer}"; it must be one of {", ".join(parsers)}')
    return ReasoningGymEnv(gym=gym, parser=parsers[answer], **kwargs)
