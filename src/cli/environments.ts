/** How environments of a config are loaded, and how they are closed. */
import type { EnvConfig } from '../config/schema.ts'
import type { Environment, LoadOptions } from '../environments/index.ts'

/** The options of `loadEnvironment` for an [[env]], which only Python environments use. */
export function loadOptionsOf(env: EnvConfig): LoadOptions {
  const { python, python_path, extra_env_kwargs: kwargs, num_workers: workers } = env
  return { python: python === false ? false : (python_path ?? python), kwargs, workers }
}

/** Closes all environments; errors while closing are ignored. */
export async function closeEnvironments(environments: readonly { env: Environment }[]): Promise<void> {
  await Promise.allSettled(environments.map(async ({ env }) => await env.close?.()))
}
