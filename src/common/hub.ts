/**
 * Shared by models and datasets of the Hugging Face hub: the cache of the Python libraries (HF_HUB_CACHE, HF_HOME), the access token, the address,
 * and messages for failures.
 */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { cacheRoot, home } from './cache.ts'
import { messageOf } from './errors.ts'
import { usesProxies } from './patient-fetch.ts'

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

/**
 * The variable that forbids using the network, if one does. As in the Python libraries, the first that is set decides: of models HF_HUB_OFFLINE before
 * TRANSFORMERS_OFFLINE, of datasets HF_DATASETS_OFFLINE before both.
 */
export function offlineBy(what: 'models' | 'datasets'): string | undefined {
  const names = ['HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE']
  const set = [...(what === 'datasets' ? ['HF_DATASETS_OFFLINE'] : []), ...names].find((name) => process.env[name])
  return set && ['1', 'true', 'yes', 'on'].includes(process.env[set]!.toLowerCase()) ? set : undefined
}

export interface HubAccess {
  hubUrl: string
  fetch: typeof fetch
}

/** How long the hub may take to begin an answer. Its body may take longer. */
const ANSWER_SECONDS = 60

/** The variable that names the proxy, if one does. */
const proxyVariable = (): string | undefined =>
  ['HTTPS_PROXY', 'https_proxy', 'HTTP_PROXY', 'http_proxy'].find((name) => process.env[name])

function noAnswer(): Error {
  const proxy = usesProxies ? proxyVariable() : undefined
  return new Error(`no answer has come for ${ANSWER_SECONDS} s${proxy ? `: check that ${proxy} names a proxy that works` : ''}`)
}

/**
 * The options that every call of @huggingface/hub takes: the address, and a `fetch` that adds the token from HF_TOKEN or from `hf auth login`,
 * and gives up if no answer begins. Given the token itself, the library sends it to the hosts that the hub redirects to as well, and refuses the
 * tokens of other hubs (HF_ENDPOINT).
 */
export async function hubAccess(): Promise<HubAccess> {
  const path = expanded(process.env.HF_TOKEN_PATH ?? join(hubHome(), 'token'))
  const token = process.env.HF_TOKEN?.trim() || (await readFile(path, 'utf8').catch(() => '')).trim()
  const url = hubUrl()
  const withToken: typeof fetch = (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined))
    const asked = input instanceof Request ? input.url : String(input)
    const isHub = URL.parse(asked)?.origin === URL.parse(url)?.origin
    if (token && isHub && !headers.has('authorization')) headers.set('authorization', `Bearer ${token}`)
    // Through a proxy that closes each connection, Node's fetch would connect again without end.
    const late = new AbortController()
    const timer = setTimeout(() => late.abort(noAnswer()), ANSWER_SECONDS * 1000)
    const signal = init?.signal ? AbortSignal.any([init.signal, late.signal]) : late.signal
    return fetch(input, { ...init, headers, signal }).finally(() => clearTimeout(timer))
  }
  return { hubUrl: url, fetch: withToken }
}

/** A file of the hub, as its bytes arrive. */
export type HubBytes = Pick<Blob, 'stream'>

/**
 * Opens a file of a model or dataset. Null if the hub does not have it.
 *
 * downloadFile of @huggingface/hub is only used for files in Xet's storage. It asks for one byte first, which fails for empty files and with servers
 * that ignore `Range`. Then it asks again, and of an error it keeps only the text, and of an answer without a body nothing arrives, not even its end.
 */
export async function openHubFile(
  repo: { type: 'model' | 'dataset'; name: string },
  sha: string,
  { path, xetHash }: { path: string; xetHash?: string },
  access: HubAccess,
  downloadFile: (params: { repo: typeof repo; path: string; revision: string } & HubAccess) => Promise<HubBytes | null>,
): Promise<HubBytes | null> {
  const inAddress = path.split('/').map(encodeURIComponent).join('/')
  if (xetHash !== undefined) return await downloadFile({ repo, path: inAddress, revision: sha, ...access })
  const folder = repo.type === 'dataset' ? 'datasets/' : ''
  const url = `${access.hubUrl}/${folder}${repo.name}/resolve/${sha}/${inAddress}`
  const response = await access.fetch(url)
  if (response.ok) return { stream: () => response.body ?? new Blob([]).stream() } // 204 has no body
  await response.body?.cancel()
  if (response.status === 404) return null
  const { status: statusCode } = response
  throw Object.assign(new Error(`the answer for ${path} has status ${statusCode}`), { statusCode })
}

/** Codes of a disk that is full or a folder that cannot be written. Those of the network are in the error's cause. */
const CANNOT_KEEP = ['EACCES', 'EPERM', 'EROFS', 'ENOSPC', 'EDQUOT']

/** Says why a `what` could not be downloaded, for someone who does not know HTTP's status codes. */
export function hubFailure(error: unknown, what: string): string {
  const status = (error as { statusCode?: unknown }).statusCode
  if (status === 401 || status === 403) return 'it does not exist, or needs a token (set HF_TOKEN) whose owner was given access'
  if (status === 404) return `there is no ${what} of this name or revision`
  if (status === 429)
    return 'the server has had too many requests for now (status 429). Try again in some minutes, or set HF_TOKEN: a token may ask more often'
  if (Number(status) >= 500)
    return `the server has failed (status ${Number(status)}). Try again later: files that are complete are kept`
  if (CANNOT_KEEP.includes(String((error as NodeJS.ErrnoException).code)))
    return `it cannot be kept in the cache ${hubCache()} (${messageOf(error)}). Make room there, or name another folder in HF_HUB_CACHE`
  if (!(error instanceof Error && error.cause)) return messageOf(error)
  const proxy = proxyVariable()
  const mend = proxy && !usesProxies ? `; ${proxy} is set, but Node uses it only with NODE_USE_ENV_PROXY=1` : ''
  return `${messageOf(error)} (${messageOf(error.cause)}${mend})`
}
