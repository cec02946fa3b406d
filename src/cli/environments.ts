/** Environments, as a config names them and as they are ended. */
import type { EnvConfig } from '../config/schema.ts'
import type { Environment, LoadOptions } from '../environments/index.ts'

/** How an [[env]] is loaded: what those in Python need. */
export function loadOptionsOf(env: EnvConfig): LoadOptions {
  const { python, python_path, extra_env_kwargs: kwargs, num_workers: workers } = env
  return { python: python === false ? false : (python_path ?? python), kwargs, workers }
}

export async function closeEnvironments(environments: readonly { env: Environment }[]): Promise<void> {
  await Promise.allSettled(environments.map(async ({ env }) => await env.close?.()))
}
