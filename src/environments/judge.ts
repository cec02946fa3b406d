/**
 * A model that judges answers (LLM as a judge), behind any OpenAI-compatible endpoint (`/chat/completions`): dawn-rl's own, vLLM's, a provider's.
 * Replies are cached by content (on disk if wanted), so the same question is asked only once. Concurrency and the total number of requests are
 * limited, and each request has a time limit and retries. An error never becomes a reward of 0: it fails the rollout, with a sentence that says where
 * and what to do.
 */
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { appendFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { OpenAI } from 'openai'
import { makeFolder } from '../common/folders.ts'
import { causeOf, messageOf, UserError } from '../common/errors.ts'
import { isFullDisk } from '../common/faults.ts'
import { fetchWhole } from '../common/patient-fetch.ts'
import { MOST_MS } from '../common/timers.ts'
import type { Message } from '../common/types.ts'
import type { Parser } from './parsers.ts'
import { type KeysOf, refuseUnknown } from './known-options.ts'
import { type GroupRewardSpec, type RewardSpec, Rubric } from './rubric.ts'
import { load } from './packages.ts'
import type { RewardArgs, RewardValue } from './types.ts'

export interface JudgeOptions {
  model: string
  /** URL including its path: `http://127.0.0.1:8000/v1`. Default: OPENAI_BASE_URL, else OpenAI's. */
  baseURL?: string
  /** Name of the environment variable that holds the API key. Default OPENAI_API_KEY. A local endpoint may need none. */
  apiKeyVar?: string
  /**
   * Template with the placeholders `{question}`, `{answer}` and `{response}`. The default asks for `yes` or `no`: does the response agree with the
   * answer?
   */
  prompt?: string
  /** Additional fields of the request, named as the endpoint names them. Default: `temperature` 0. */
  sampling?: Record<string, unknown>
  /** Maximum number of concurrent requests. Default 16. */
  concurrency?: number
  /** Retries of a request after a temporary error (connection, 408, 409, 429, 5xx), with growing pauses. Default 4. */
  retries?: number
  /** Time limit of one attempt in seconds. Default 60. */
  timeoutSeconds?: number
  /** Maximum number of requests in this process, to limit costs. Cached answers and retries do not count. Default: no limit. */
  maxRequests?: number
  /** A JSON Lines file that keeps replies for later runs. Default: none, replies are kept in memory only. */
  cacheFile?: string
}

const judgeKeys: KeysOf<JudgeOptions> = {
  model: true,
  baseURL: true,
  apiKeyVar: true,
  prompt: true,
  sampling: true,
  concurrency: true,
  retries: true,
  timeoutSeconds: true,
  maxRequests: true,
  cacheFile: true,
}

/** The parts of a question to the judge. */
type JudgeQuestion = Pick<RewardArgs, 'prompt' | 'answer'> & { text: string; signal?: AbortSignal }

const defaultJudgePrompt = `Compare a response to a question with the reference answer. Style and length do not count; only whether it says the same.

Question:
{question}

Reference answer:
{answer}

Response:
{response}

Does the response agree with the reference answer? Reply with one word: yes or no.`

class Aborted extends Error {}

/** Asks the judge. Several rubrics can use one Judge, and then share its cache and limits. */
export class Judge {
  readonly #options: JudgeOptions
  readonly #answers = new Map<string, Promise<string>>()
  readonly #waiting: (() => void)[] = []
  #client: Promise<OpenAI> | undefined
  #kept: Promise<void> | undefined
  #running = 0
  #requests = 0

  constructor(options: JudgeOptions) {
    this.#options = options
    refuseUnknown('judge', options, judgeKeys)
    const { concurrency = 16, retries = 4, timeoutSeconds = 60, maxRequests = 1 } = options
    if (!options.model) throw new UserError('judge: no model is given. Set model to the name under which the endpoint serves it.')
    // Without {response}, perhaps because of a typo, every answer would get the verdict on the first one.
    if (options.prompt !== undefined && !options.prompt.includes('{response}'))
      throw new UserError(
        'judge: its prompt has no {response}, so it would judge all answers alike. Write {response} where the answer belongs.',
      )
    if (!(concurrency >= 1 && retries >= 0 && timeoutSeconds > 0 && maxRequests >= 0)) {
      throw new UserError('judge: concurrency must be 1 or more, retries and maxRequests 0 or more, timeoutSeconds above 0.')
    }
  }

  /** Number of requests sent so far, without retries. */
  get requests(): number {
    return this.#requests
  }

  /** Fills a rollout's question, reference answer and response into the prompt, and returns the judge's reply. */
  async ask({ prompt, answer, text, signal }: JudgeQuestion): Promise<string> {
    const fields: Record<string, string> = { question: questionOf(prompt), answer, response: text }
    // All placeholders are replaced in one pass, so that braces in the filled-in texts are left alone.
    const content = (this.#options.prompt ?? defaultJudgePrompt).replace(
      /\{(question|answer|response)\}/gu,
      (_, name: string) => fields[name],
    )
    return await this.complete([{ role: 'user', content }], signal)
  }

  /** Returns the judge's reply to messages. Throws an Error that names the cause. */
  async complete(messages: readonly Pick<Message, 'role' | 'content'>[], signal?: AbortSignal): Promise<string> {
    await (this.#kept ??= this.#readCache())
    const body = {
      temperature: 0,
      ...this.#options.sampling,
      model: this.#options.model,
      messages: messages.map(({ role, content }) => ({ role, content })),
    }
    const key = createHash('sha256').update(JSON.stringify([this.#options.baseURL ?? process.env.OPENAI_BASE_URL ?? '', body])).digest('hex') // prettier-ignore
    for (let known = this.#answers.get(key); known; known = this.#answers.get(key)) {
      try {
        return await known
      } catch (error) {
        // The caller that sent the request was aborted, but this one still wants a reply.
        if (!(error instanceof Aborted) || signal?.aborted) throw error
      }
    }
    const reply = this.#request(body, signal)
    // Callers with the same question share one reply. Failures are not cached.
    this.#answers.set(key, reply)
    try {
      const text = await reply
      await this.#keep(key, text)
      return text
    } catch (error) {
      this.#answers.delete(key)
      throw error
    }
  }

  async #request(body: Record<string, unknown>, signal?: AbortSignal): Promise<string> {
    const { maxRequests = Infinity, concurrency = 16, model } = this.#options
    if (this.#running >= concurrency) await new Promise<void>((resolve) => this.#waiting.push(resolve))
    else this.#running++
    try {
      if (signal?.aborted) throw new Aborted('judge: the request was aborted')
      if (this.#requests >= maxRequests) throw new Error(`judge: its limit of ${maxRequests} requests is used up (maxRequests)`)
      this.#requests++
      const client = await (this.#client ??= this.#connect())
      const response = await client.chat.completions.create(body as never, { signal }).catch((error: unknown) => {
        const words = this.#explain(client, error)
        throw signal?.aborted ? new Aborted(words) : new Error(words, { cause: error })
      })
      // Proxies may answer with a web page, or with nothing.
      const reply = response as (Partial<OpenAI.ChatCompletion> & { error?: unknown }) | null | undefined
      const choice = reply?.choices?.[0]
      const text = replyText(choice?.message?.content)
      if (text.trim() === '') {
        const why = choice?.finish_reason
        // Some providers report a failure with status 200.
        const failed = reply?.error ?? (choice ? undefined : reply)
        const said = failed ? `: ${JSON.stringify(failed).slice(0, 300)}` : why ? ` (finish_reason ${why})` : ''
        throw new Error(`judge ${model} at ${client.baseURL} replied without text${said}`)
      }
      return text
    } finally {
      // The next caller in line gets the slot.
      const next = this.#waiting.shift()
      if (next) next()
      else this.#running--
    }
  }

  async #connect(): Promise<OpenAI> {
    const { OpenAI: Client } = await load('openai', () => import('openai'))
    const { baseURL, apiKeyVar = 'OPENAI_API_KEY', retries = 4, timeoutSeconds = 60 } = this.#options
    const apiKey = process.env[apiKeyVar]
    if (!apiKey && baseURL === undefined && !process.env.OPENAI_BASE_URL) {
      throw new UserError(
        `judge: the environment variable ${apiKeyVar}, the API key for the default endpoint, is not set. Set it, or give a baseURL.`,
      )
    }
    return new Client({
      apiKey: apiKey ?? 'none',
      ...(baseURL ? { baseURL } : {}),
      maxRetries: retries,
      timeout: Math.min(timeoutSeconds * 1000, MOST_MS),
      fetch: fetchWhole,
    })
  }

  /** Describes an error in one sentence: what went wrong, where, and what to do. */
  #explain(client: OpenAI, error: unknown): string {
    const { model, apiKeyVar = 'OPENAI_API_KEY', retries = 4, timeoutSeconds = 60 } = this.#options
    const where = `judge ${model} at ${client.baseURL}`
    const { status, name = '' } = error as { status?: number; name?: string }
    const kind = (error as object).constructor?.name ?? name
    if (kind === 'APIUserAbortError') return `${where}: the request was aborted`
    if (kind === 'APIConnectionTimeoutError')
      return `${where} did not reply within ${timeoutSeconds} s, in ${retries + 1} attempts`
    if (error instanceof SyntaxError) return `${where} replied with something that is not JSON: ${messageOf(error)}`
    if (status === undefined) return `${where} cannot be reached (${causeOf(error)}). Is it running, and is baseURL right?`
    const said = messageOf(error).slice(0, 300)
    if (status === 401 || status === 403) return `${where} rejects the API key in ${apiKeyVar}: ${said}`
    if (status === 404) return `${where} has no such model or path: ${said}`
    if (status === 429) return `${where} still limits the rate of requests after ${retries} retries: ${said}. Lower concurrency`
    return `${where} failed: ${said}`
  }

  async #readCache(): Promise<void> {
    const file = this.#options.cacheFile
    if (!file || !existsSync(file)) return
    for (const line of readFileSync(file, 'utf8').split('\n')) {
      try {
        const { key, text } = JSON.parse(line) as { key: string; text: string }
        if (typeof key === 'string' && typeof text === 'string') this.#answers.set(key, Promise.resolve(text))
      } catch {
        // The last line may be incomplete if a run was killed. That question is asked again.
      }
    }
  }

  async #keep(key: string, text: string): Promise<void> {
    const file = this.#options.cacheFile
    if (!file) return
    try {
      makeFolder(dirname(file))
      // The leading newline ends a line that a killed run may have left incomplete.
      await appendFile(file, `\n${JSON.stringify({ key, text })}`)
    } catch (error) {
      // If the disk is full, the reply is used but not saved.
      if (!isFullDisk(error)) throw error
    }
  }
}

/** The text of a reply's content. Some providers send it in parts: Mistral has separate parts for thoughts. */
export function replyText(content: unknown): string {
  if (!Array.isArray(content)) return typeof content === 'string' ? content : ''
  return content.map((part: { text?: unknown } | null) => (typeof part?.text === 'string' ? part.text : '')).join('')
}

/** The conversation before the answer, as text. A single user message is returned as it is. */
function questionOf(prompt: readonly Message[]): string {
  const asked = prompt.filter((message) => message.role !== 'system')
  return asked.length === 1 ? asked[0].content : asked.map((message) => `${message.role}: ${message.content}`).join('\n\n')
}

/**
 * Returns 1 if a reply says yes and 0 if it says no. The verdict is the first word of the reply, or the only word of its last line, of its last
 * sentence or after its last colon. Throws for a reply that says neither or both ("so the answer is not yes" says neither).
 */
export function yesOrNo(reply: string): number {
  // Thoughts are not a verdict. Their opening tag may be part of the prompt, and max_tokens may have cut off the closing tag.
  const [said] = reply.split('</think>').at(-1)!.split('<think>')
  const text = said.toLowerCase().trim()
  const ends = /(?:[\n:.!?]|^)[^a-z\n]*([a-z]+)[^a-z]*$/u.exec(text)
  const words = [/[a-z]+/u.exec(text)?.[0], ends?.[1]].filter((word) => word === 'yes' || word === 'no')
  if (new Set(words).size !== 1) {
    const what = words.length === 0 ? 'neither yes nor no' : 'both yes and no'
    throw new Error(`the judge said ${what}: ${JSON.stringify(reply.slice(0, 120))}`)
  }
  return words[0] === 'yes' ? 1 : 0
}

/** A reward function that may ask the judge: `judge.ask(args)` returns its reply to the prompt, `judge.complete` its reply to messages. */
export type JudgeRewardFunction = (args: RewardArgs, judge: Judge) => RewardValue | Promise<RewardValue>

export interface JudgeRubricOptions {
  judge: JudgeOptions | Judge
  /** Reward functions that ask the judge, by name. Default: `judge_reward`, which is 1 if it replies yes. */
  judged?: Record<string, JudgeRewardFunction | { reward: JudgeRewardFunction; weight?: number; timeoutSeconds?: number }>
  /** Reward functions that do not ask the judge. */
  functions?: Record<string, RewardSpec>
  group?: Record<string, GroupRewardSpec>
  parser?: Parser
}

const rubricKeys: KeysOf<JudgeRubricOptions> = { judge: true, judged: true, functions: true, group: true, parser: true }

/**
 * A rubric with a judge.
 *
 *     new JudgeRubric({ judge: { model: 'judge', baseURL: 'http://127.0.0.1:8000/v1' } })
 *     new JudgeRubric({ judge, judged: { kind: async (args, judge) => Number(await judge.ask(args)) / 10 } })
 */
export class JudgeRubric extends Rubric {
  readonly judge: Judge
  constructor(options: JudgeRubricOptions) {
    refuseUnknown('judge rubric', options, rubricKeys)
    const judge = options.judge instanceof Judge ? options.judge : new Judge(options.judge)
    const judged = options.judged ?? { judge_reward: async (args) => yesOrNo(await judge.ask(args)) }
    const functions = Object.fromEntries(
      Object.entries(judged).map(([name, spec]) => {
        const given = typeof spec === 'function' ? { reward: spec } : spec
        // Requests may wait in a queue and are retried. Each attempt has its own time limit; this one covers them all.
        return [name, { timeoutSeconds: 1800, ...given, reward: (args: RewardArgs) => given.reward(args, judge) }]
      }),
    )
    super({ ...functions, ...options.functions }, { parser: options.parser, group: options.group })
    this.judge = judge
  }
}
