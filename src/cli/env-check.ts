/**
 * What `env check` prints about an environment. A few given answers are played as real rollouts (template, tokenizer, tools, rewards);
 * the sampler returns these answers in place of a model.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { messageOf, sentenceOf, strayError, UserError } from '../common/errors.ts'
import { neutralSampling } from '../common/sampling.ts'
import type { GenerationResult, Generator, Message, Rollout } from '../common/types.ts'
import { templateProblem } from '../config/problems.ts'
import {
  ChatTemplate,
  loadEnvironment,
  PolicyClient,
  runRollout,
  scoreGroup,
  type Environment,
  type Row,
} from '../environments/index.ts'
import { PythonEnv } from '../environments/python/environment.ts'
import { openModel } from '../model/files/open.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { firstPrompt } from './first-prompt.ts'
import { jsonObject } from './options.ts'
import { exitOnSignal, onStrays } from './stop.ts'
import { toolCallParser } from './tool-calls.ts'

/** Limit in seconds of an answer, of the environment's part of a turn, and of a reward. */
const LIMIT = 30

export interface CheckOptions {
  /** JSON. */
  args: string
  /** JSON. */
  chatTemplateKwargs?: string
  model: string
  pythonPath?: string
}

/** Prints what it finds; throws UserError for an environment that cannot be loaded, and at the end where something is wrong. */
export async function checkEnvironment(id: string, options: CheckOptions, print: (line: string) => void): Promise<void> {
  const variables = jsonObject('env check', '--chat-template-kwargs', options.chatTemplateKwargs ?? '{}')
  const mistake = templateProblem(variables)
  if (mistake) throw new UserError(mistake)
  const env = await loadEnvironment(id, jsonObject('env check', '--args', options.args), { python: options.pythonPath })
  const model = await openModel(options.model)
  const logs = logsFor(env)
  let fine = false
  try {
    const tokenizer = await model.tokenizer()
    const template = new ChatTemplate(tokenizer, variables)
    const wrong: string[] = []
    const open = (one: Environment) => one.open?.({ logs: logs!.path, name: one.id, warn: (line) => wrong.push(line) })
    const release = onStrays((error) => wrong.push(messageOf(strayError(error))))
    try {
      if (env.members) {
        print(`${env.id}: a group of ${env.members.map(weighted).join(', ')}`)
        await open(env)
      }
      // As in a run, each member of a group by itself.
      const parts = env.members?.map((one) => ({ name: `${env.id}/${one.name}`, env: one.env })) ?? [{ name: env.id, env }]
      for (const { name, env: part } of parts) {
        if (env.members) print('')
        const found: string[] = []
        printRows(name, part, template, print, found)
        print(`\nAs ${options.model} sees it:`)
        const whole = { lines: Infinity, width: Infinity }
        for (const line of firstPrompt({ name, env: part }, { tokenizer, template }, whole)) print(line)
        await open(part)
        await printAnswers(part, tokenizer, template, print, found)
        wrong.push(...found.map((line) => (env.members ? `${name}: ${line}` : line)))
      }
      // Rejections that nothing awaits are told after this turn of the event loop.
      await setImmediate()
    } finally {
      release()
    }
    for (const line of wrong) print(`! ${line}`)
    if (wrong.length > 0)
      throw new UserError(
        `env check: ${id} has ${wrong.length} problem${wrong.length > 1 ? 's' : ''}; see the lines with ! above.`,
      )
    print(`\n${id} is in order.`)
    fine = true
  } finally {
    model.close()
    await env.close?.()
    // A problem's sentence may name a log.
    logs?.release(!fine)
  }
}

/** A folder for the logs of environments with a process of their own, which is removed if this process ends before `release`. */
function logsFor(env: Environment): { path: string; release(keep: boolean): void } | undefined {
  const parts = env.members?.map((one) => one.env) ?? [env]
  if ([env, ...parts].every((one) => one.open === undefined)) return undefined
  const path = mkdtempSync(join(tmpdir(), 'dawn-rl-env-check-'))
  const remove = () => rmSync(path, { recursive: true, force: true })
  process.once('exit', remove)
  const ignore = parts.every((part) => part instanceof PythonEnv) ? exitOnSignal() : undefined
  return {
    path,
    release(keep) {
      ignore?.()
      process.off('exit', remove)
      if (!keep || readdirSync(path).length === 0) remove()
    },
  }
}

const weighted = ({ name, weight }: { name: string; weight: number }): string => `${name} (weight ${weight})`

function printRows(name: string, env: Environment, template: ChatTemplate, print: (line: string) => void, wrong: string[]): void {
  const { dataset, evalDataset, tools = [], maxTurns = 1 } = env
  print(`${name}: ${dataset.length} rows to train on, ${evalDataset.length} held out`)
  print(`turns     ${maxTurns === -1 ? 'no limit but max_seq_len' : maxTurns}`)
  if (tools.length > 0) {
    print(`tools     ${tools.map((tool) => tool.function.name).join(', ')}`)
    if (!template.showsTools) print('          the chat template does not render tools: they are described in the system message')
  }
  const functions = Object.entries(env.rubric.weights).map(([func, weight]) => weighted({ name: func, weight }))
  print(`rewards   ${functions.join(', ')}`)
  // Two rows that differ only in info (an id, a date) are the same task; without answers, info alone may tell tasks apart.
  const key = ({ prompt, answer, info }: Row) => JSON.stringify([prompt, answer === '' ? info : answer])
  const train = new Set(dataset.map(key))
  const shared = evalDataset.filter((row) => train.has(key(row))).length
  if (shared > 0) wrong.push(`${shared} held-out ${shared === 1 ? 'task is' : 'tasks are'} in the training rows too.`)
  const answered = dataset.filter(({ prompt }) => prompt.at(-1)?.role === 'assistant').length
  if (answered > 0)
    wrong.push(
      `${answered} of the ${dataset.length} prompts end with an assistant message, after which the model is asked for another one. Remove that message; if it is the right answer, put it into the column answer.`,
    )
  const lengths = dataset
    .slice(0, 200)
    .map((row) => template.with(row.variables).prompt(row.prompt, tools).ids.length)
    .toSorted((a, b) => a - b)
  const [middle, most] = [lengths[Math.floor(lengths.length / 2)], lengths.at(-1)]
  print(`prompts   ${middle} tokens (median), ${most} at most, among the first ${lengths.length}`)
}

/** What the fake policy says: one text for each turn; the last one is repeated. */
interface Canned {
  name: string
  text: string | string[]
  cut?: boolean
}

async function printAnswers(
  env: Environment,
  tokenizer: Tokenizer,
  template: ChatTemplate,
  print: (line: string) => void,
  wrong: string[],
): Promise<void> {
  const [row] = env.dataset
  const own = answersOf(env, row, template.with(row.variables), tokenizer)
  const isPython = env instanceof PythonEnv
  const canned: Canned[] = [
    ...(own.length === 0 ? [] : [{ name: isPython ? "its row's answer" : 'its own answer', text: own }]),
    // verifiers fails every rollout with an empty answer, whatever the environment.
    ...(isPython ? [] : [{ name: 'nothing', text: '' }]),
    { name: '"I do not know."', text: 'I do not know.' },
    { name: 'a text that is cut off', text: 'and so on '.repeat(20), cut: true },
    ...(env.tools?.length
      ? [
          {
            name: 'a call that is broken',
            text: `<tool_call>\n{"name": "${env.tools[0].function.name}", "arguments": {\n</tool_call>`,
          },
        ]
      : []),
  ]
  print('\nWhat answers earn (the same in each turn):')
  const play = async (one: Canned, index: number): Promise<Rollout> => {
    const parseTools = toolCallParser(String(one.text).includes('<tool_call>') ? 'hermes' : 'auto', tokenizer, template)
    const client = new PolicyClient(new Parrot(one, tokenizer), template, { maxSeqTokens: 1e5, parseTools })
    const limits = { generationTimeoutSeconds: LIMIT, rewardTimeoutSeconds: LIMIT }
    return await runRollout(env, row, { client, sampling, group: 'check', index, size: canned.length, ...limits })
  }
  // At the same time: an environment may compare the rollouts of a task.
  const played = await Promise.all(canned.map(play))
  const scored = await scoreGroup(env, played, { rewardTimeoutSeconds: LIMIT })
  for (const [i, rollout] of scored.entries()) {
    print(`  ${canned[i].name.padEnd(24)} ${line(rollout)}`)
    if (rollout.error !== null) wrong.push(`${canned[i].name}: ${sentenceOf(rollout.error)}`)
  }
  const longest = scored.toSorted((a, b) => b.completion.length - a.completion.length)[0]
  if (longest.completion.length > 1) {
    print('\nThe longest of these conversations:')
    for (const message of longest.completion) print(`  ${said(message)}`)
  }
  const rewards = scored.flatMap((r) => r.reward ?? [])
  const same = rewards.length > 1 && rewards.every((reward) => reward === rewards[0])
  // Without answers in the rows, or with a Python environment's, which may be anything, none of these need earn a reward.
  if (same && (own.length === 0 || isPython))
    print(`  (each earns ${rewards[0]}: fine if none of them is right, else the reward does not tell answers apart)`)
  else if (same) wrong.push(`every answer earns ${rewards[0]}: a reward that does not tell answers apart teaches nothing.`)
  const others = scored.slice(1).flatMap((r) => r.reward ?? [])
  if (!same && own.length > 0 && scored[0].reward !== null && scored[0].reward <= Math.max(...others))
    print(`  (its own answer earns no more than another: fine if the column answer is only a part of a right answer)`)
}

/** The environment's own answer, written as the policy would write it: one text, or one for each turn. */
function answersOf(env: Environment, row: Row, template: ChatTemplate, tokenizer: Tokenizer): string | string[] {
  const given = env.sftCompletion?.(row) ?? row.answer
  if (typeof given === 'string') return given
  const messages = [...row.prompt, ...given]
  const ends = tokenizer.eosTokenIds.map((id) => tokenizer.decode([id]))
  return messages.flatMap(({ role }, i) => {
    if (role !== 'assistant' || i < row.prompt.length) return []
    const before = template.text(messages.slice(0, i), env.tools)
    const text = template.render(messages.slice(0, i + 1), env.tools, false).slice(before.length)
    const end = ends.map((one) => text.indexOf(one)).find((at) => at >= 0)
    return text.slice(0, end)
  })
}

function line({ reward, metrics, turns, stopCondition, error }: Rollout): string {
  if (error !== null) return `failed: ${error}`
  const numbers = Object.entries(metrics).map(([name, value]) => `${name} ${value === null ? 'null' : Number(value.toFixed(3))}`)
  const count = turns && turns.length > 1 ? `, ${turns.length} turns` : ''
  return `reward ${reward!.toFixed(3)} (${numbers.join(', ')}${count}, ${stopCondition})`
}

function said({ role, content, tool_calls }: Message): string {
  const calls = tool_calls?.map((call) => `-> ${call.function.name}(${call.function.arguments})`) ?? []
  const parts = [content, ...calls].filter((part) => part !== '')
  const text = parts.join(' ').replace(/\s+/gu, ' ')
  return `${role}: ${text.length > 160 ? `${text.slice(0, 160)}...` : text}`
}

const sampling = { ...neutralSampling, max_tokens: 4096 }

/** A generator that always samples the given text. */
class Parrot implements Generator {
  readonly version = 0
  readonly #says: Canned
  readonly #tokenizer: Tokenizer
  #turn = 0

  constructor(says: Canned, tokenizer: Tokenizer) {
    this.#says = says
    this.#tokenizer = tokenizer
  }

  generate(): Promise<GenerationResult> {
    const { text: texts, cut = false } = this.#says
    const text = typeof texts === 'string' ? texts : texts[Math.min(this.#turn++, texts.length - 1)]
    const said = this.#tokenizer.encode(text, { addSpecialTokens: false })
    const ids = cut ? said : [...said, this.#tokenizer.eosTokenIds[0]]
    const zeros = ids.map(() => 0)
    const how = cut
      ? { finishReason: 'length' as const, stopCondition: 'max_tokens' }
      : { finishReason: 'stop' as const, stopCondition: 'eos' }
    return Promise.resolve({ text, ids, logprobs: zeros, versions: zeros, ...how })
  }
}
