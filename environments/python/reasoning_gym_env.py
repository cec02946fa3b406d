"""reasoning-gym's tasks as a verifiers environment: `[env] id = "reasoning-gym-env"`, `args = { gym = "spell_backward" }`.

The arguments are those of verifiers' own ReasoningGymEnv: gym (a task's name, or several as names and tables), num_train_examples,
num_eval_examples, system_prompt, seed.
"""

from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv


def load_environment(gym="spell_backward", **kwargs):
    return ReasoningGymEnv(gym=gym, **kwargs)
