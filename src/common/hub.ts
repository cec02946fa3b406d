/**
 * Shared by models and datasets of the Hugging Face hub: the cache of the Python libraries (HF_HUB_CACHE, HF_HOME), the access token, the address,
 * and messages for failures.
 */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { cacheRoot, home } from './cache.ts'
import { messageOf } from './errors.ts'

/** A path from an environment variable. As in Python, ~ is the home folder and $NAME another variable, for where no shell has replaced them. */
function expanded(path: string): string {
  const whole = /^~(?=$|[/\\])/u.test(path) ? home() + path.slice(1) : path
  return whole.replaceAll(
    /\$(?:(\w+)|\{([^}]*)\})/gu,
    (all, bare?: string, braced?: string) => process.env[bare ?? braced!] ?? all,
  )
}

/** The folder in which the Python libraries keep the hub's files and the access token. */
export const hubHome = (): string => expanded(process.env.HF_HOME || join(cacheRoot(), 'huggingface'))

/** Where the Python libraries keep the hub's files. */
export function hubCache(): string {
  const { HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE } = process.env
  return expanded(HF_HUB_CACHE ?? HUGGINGFACE_HUB_CACHE ?? join(hubHome(), 'hub'))
}

/** The address of the hub (HF_ENDPOINT), without a trailing slash. */
export function hubUrl(): string {
  return (process.env.HF_ENDPOINT ?? 'https://huggingface.co').replace(/\/+$/u, '')
}

/** Whether HF_HUB_OFFLINE, or one of the given variables, forbids using the network. */
export function isOffline(...names: string[]): boolean {
  return ['HF_HUB_OFFLINE', ...names].some((name) => ['1', 'true', 'yes', 'on'].includes(process.env[name]?.toLowerCase() ?? ''))
}

/**
 * The options that every call of @huggingface/hub takes: the address, and a `fetch` that adds the token from HF_TOKEN or from `hf auth login`. Given
 * the token itself, the library sends it to the hosts that the hub redirects to as well, and refuses the tokens of other hubs (HF_ENDPOINT).
 */
export async function hubAccess(): Promise<{ hubUrl: string; fetch: typeof fetch }> {
  const path = expanded(process.env.HF_TOKEN_PATH ?? join(hubHome(), 'token'))
  const token = process.env.HF_TOKEN?.trim() || (await readFile(path, 'utf8').catch(() => '')).trim()
  const url = hubUrl()
  const withToken: typeof fetch = (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined))
    const asked = input instanceof Request ? input.url : String(input)
    const isHub = URL.parse(asked)?.origin === URL.parse(url)?.origin
    if (token && isHub && !headers.has('authorization')) headers.set('authorization', `Bearer ${token}`)
    return fetch(input, { ...init, headers })
  }
  return { hubUrl: url, fetch: withToken }
}

/** The path of a file as downloadFile of @huggingface/hub takes it, which puts it into an address as it is. */
export const inAddress = (path: string): string => path.split('/').map(encodeURIComponent).join('/')

/** Says why a `what` could not be downloaded, for someone who does not know HTTP's status codes. */
export function hubFailure(error: unknown, what: string): string {
  const status = (error as { statusCode?: unknown }).statusCode
  if (status === 401 || status === 403) return 'it does not exist, or needs a token (set HF_TOKEN) whose owner was given access'
  if (status === 404) return `there is no ${what} of this name or revision`
  const cause = error instanceof Error && error.cause ? ` (${messageOf(error.cause)})` : ''
  return `${messageOf(error)}${cause}`
}
