/** What models and data sets of the Hugging Face hub share: the cache of the Python libraries (HF_HUB_CACHE, HF_HOME), the token, the address, words for what fails. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { cacheRoot } from './cache.ts'
import { messageOf } from './errors.ts'

/** The folder of the Python libraries for what they keep: files of the hub, and the token. */
export const hubHome = (): string => process.env.HF_HOME || join(cacheRoot(), 'huggingface')

/** Where the Python libraries keep the hub's files. */
export function hubCache(): string {
  const { HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE } = process.env
  return HF_HUB_CACHE ?? HUGGINGFACE_HUB_CACHE ?? join(hubHome(), 'hub')
}

export function hubUrl(): string {
  return (process.env.HF_ENDPOINT ?? 'https://huggingface.co').replace(/\/+$/u, '')
}

/** Whether one of these variables says that the network is not to be touched, beside HF_HUB_OFFLINE. */
export function isOffline(...names: string[]): boolean {
  return ['HF_HUB_OFFLINE', ...names].some((name) => ['1', 'true', 'yes', 'on'].includes(process.env[name]?.toLowerCase() ?? ''))
}

/** What every call of @huggingface/hub takes: the address, and HF_TOKEN or the token that `hf auth login` left. */
export async function hubAccess(): Promise<{ hubUrl: string; accessToken?: string }> {
  const path = process.env.HF_TOKEN_PATH ?? join(hubHome(), 'token')
  const accessToken = process.env.HF_TOKEN || (await readFile(path, 'utf8').catch(() => '')).trim()
  return { hubUrl: hubUrl(), ...(accessToken && { accessToken }) }
}

/** Why a `what` could not be fetched, in words for someone who does not know HTTP's numbers. */
export function hubFailure(error: unknown, what: string): string {
  const status = (error as { statusCode?: unknown }).statusCode
  if (status === 401 || status === 403) return 'it does not exist, or needs a token (set HF_TOKEN) whose owner was given access'
  if (status === 404) return `there is no ${what} of this name or revision`
  const cause = error instanceof Error && error.cause ? ` (${messageOf(error.cause)})` : ''
  return `${messageOf(error)}${cause}`
}
