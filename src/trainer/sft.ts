/** Supervised fine-tuning on completions: turning examples into tokens, their order, and the training loop. */
import { messageOf, UserError } from '../common/errors.ts'
import { saveAfter } from '../common/faults.ts'
import { jsonOfTools } from '../common/json-floats.ts'
import { EpochOrder } from '../common/random.ts'
import { variablesOf } from '../common/template-variables.ts'
import { toolCallsOf } from '../common/tool-calls.ts'
import type { Message, Metrics, ToolCall, ToolDefinition, TrainingBatch, TrainingSample } from '../common/types.ts'
import { batchOf, untrained } from '../model/decoder/packed.ts'
import { closingOf, type Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { scoreSamples } from './gradients.ts'
import type { StepHooks, Trainer } from './trainer.ts'

/** Messages, of which the assistant's in `completion` are trained on; or plain text, for a tokenizer without a chat template. */
type SftExample = SftChat | { text: { prompt: string; completion: string } }

interface SftChat {
  prompt: Message[]
  completion: Message[]
  /** The tools that the chat template describes to the model. */
  tools?: readonly ToolDefinition[]
  /** The example's own variables for the chat template. */
  variables?: Record<string, unknown>
}

/** The parts of a tokenizer that examples need. */
export type SftTokenizer = Pick<Tokenizer, 'encode' | 'decode' | 'eosTokenIds' | 'renderChat'>

const ROLES = ['system', 'user', 'assistant', 'tool']

/**
 * Makes an example from the columns of a data file: `messages`, in which all answers of the assistant are trained on; or `prompt` and `completion`,
 * both messages or both text. With a chat template, text becomes one user message and one answer. `tools`, beside messages, is a list of definitions
 * in OpenAI's format, or that list as JSON text; `chat_template_kwargs` are variables for the chat template.
 * @param where names the row in error messages
 * @throws UserError that names the row and what is wrong with its columns
 */
export function exampleOf(columns: Record<string, unknown>, where: string, hasChatTemplate: boolean): SftExample {
  const { messages, prompt, completion } = columns
  const more = { ...toolsOf(columns.tools, where), ...variablesOf(columns.chat_template_kwargs, where) }
  if (messages !== undefined && messages !== null) {
    return { prompt: [], completion: messagesOf(messages, 'messages', where), ...more }
  }
  if (prompt === undefined || completion === undefined || prompt === null || completion === null) {
    const found = Object.keys(columns).join(', ') || 'none'
    throw new UserError(
      `${where} has neither messages nor a prompt and a completion (columns found: ${found}). Rename the columns that hold them.`,
    )
  }
  if (typeof prompt === 'string' && typeof completion === 'string' && !hasChatTemplate) return { text: { prompt, completion } }
  const asMessages = (value: unknown, name: string, role: 'user' | 'assistant'): Message[] =>
    typeof value === 'string' ? [{ role, content: value }] : messagesOf(value, name, where)
  return { prompt: asMessages(prompt, 'prompt', 'user'), completion: asMessages(completion, 'completion', 'assistant'), ...more }
}

function toolsOf(value: unknown, where: string): { tools?: ToolDefinition[] } {
  const given = typeof value === 'string' ? toolsIn(value, where) : value
  if (given === undefined || given === null) return {}
  const isTool = (one: Partial<ToolDefinition> | null) => typeof one?.function?.name === 'string'
  if (Array.isArray(given) && given.every(isTool)) return { tools: given as ToolDefinition[] }
  throw new UserError(`${where}: its tools must be a list of {type: "function", function: {name, parameters}}.`)
}

/** Tools as JSON text, which many datasets have since the schemas of different tools do not fit one column type. Empty text: no tools. */
function toolsIn(text: string, where: string): unknown {
  if (text.trim() === '') return null
  try {
    return jsonOfTools(text)
  } catch (error) {
    throw new UserError(`${where}: its tools are text but not JSON (${messageOf(error)}).`)
  }
}

function messagesOf(value: unknown, column: string, where: string): Message[] {
  if (!Array.isArray(value) || value.length === 0) {
    const what = column === 'messages' ? 'a list of messages' : 'text or a list of messages'
    throw new UserError(`${where}: its ${column} must be ${what}.`)
  }
  return value.map((message: Partial<Message> | null, i) => {
    const { role, tool_calls, tool_call_id, name } = message ?? {}
    // An answer that only calls tools has no text; most files have null there.
    const content = message?.content ?? (tool_calls ? '' : undefined)
    if (!ROLES.includes(role ?? '') || typeof content !== 'string') {
      throw new UserError(`${where}: message ${i} of its ${column} must be {role: ${ROLES.join('|')}, content: text}.`)
    }
    const calls = tool_calls && { tool_calls: callsOf(tool_calls, `${where}: message ${i} of its ${column}`) }
    const thoughts = thoughtsOf(message)
    const known = thoughts === undefined ? {} : { reasoning: thoughts, reasoning_content: thoughts }
    const weight = weightOf(message) ?? 1
    if (weight !== 0 && weight !== 1) throw new UserError(`${where}: the weight of message ${i} of its ${column} must be 0 or 1.`)
    const learned = weight === 0 ? { weight } : {}
    return { role: role!, content, ...calls, ...(tool_call_id && { tool_call_id }), ...(name && { name }), ...known, ...learned }
  })
}

/** OpenAI's `weight` of a message: an answer of weight 0 is not trained on. */
const weightOf = (message: object | null): unknown => (message as { weight?: unknown } | null)?.weight

/** The reasoning before an answer. Chat templates use either name. */
function thoughtsOf(message: Partial<Message> | null): string | undefined {
  const { reasoning, reasoning_content: content } = (message ?? {}) as Record<string, unknown>
  const thoughts = content ?? reasoning
  return typeof thoughts === 'string' && thoughts.trim() !== '' ? thoughts : undefined
}

/** The reasoning inside an answer's text, which some chat templates (such as DeepSeek-R1's) leave out. */
const thoughtsIn = (content: string): string =>
  content.slice(0, Math.max(0, content.lastIndexOf('</think>'))).replace(/^\s*<think>/u, '')

/** Text without white space, which chat templates change in various ways. */
const dense = (text: string): string => text.replace(/\s+/gu, '')

const callsOf = (calls: unknown, where: string): ToolCall[] =>
  toolCallsOf(calls, () => new UserError(`${where} must have tool_calls as a list of {function: {name, arguments}}.`))

/**
 * Tokens and loss mask of an example. Prompts are encoded exactly as for sampling. The loss covers an answer up to and including the token that ends
 * it.
 * @throws UserError for an example without an answer, or if the chat template rewrites earlier turns or leaves out part of an answer
 */
export function sampleOf(example: SftExample, tokenizer: SftTokenizer, where: string): TrainingSample {
  const ids: number[] = []
  const mask: number[] = []
  const put = (tokens: number[], learned: 0 | 1) => {
    for (const id of tokens) {
      ids.push(id)
      mask.push(learned)
    }
  }
  let before = ''
  const goOn = (text: string): number[] => {
    const tokens = encodeAfter(tokenizer, before, text)
    before = text
    return tokens
  }
  const answer = (text: string) => {
    const tokens = goOn(text)
    const end = tokens.findIndex((id) => tokenizer.eosTokenIds.includes(id))
    if (end >= 0) {
      put(tokens.slice(0, end + 1), 1)
      put(tokens.slice(end + 1), 0)
      return
    }
    const eos = tokenizer.eosTokenIds.slice(0, 1)
    put([...tokens, ...eos], 1)
    before += tokenizer.decode(eos)
  }
  if ('text' in example) {
    put(tokenizer.encode(example.text.prompt), 0)
    before = example.text.prompt
    answer(example.text.completion)
  } else encodeChat(example, tokenizer, where, (text) => put(goOn(text), 0), answer)
  // Tokens after the last answer are not needed to predict any token with loss.
  const length = mask.lastIndexOf(1) + 1
  if (length === 0) throw new UserError(`${where} has no assistant message to train on.`)
  // A step of such examples alone would have no loss.
  if (length === 1)
    throw new UserError(`${where} has only one token, which nothing predicts, so there is nothing to train on. Remove it.`)
  const lossMask = Uint8Array.from(mask.slice(0, length))
  lossMask[0] = 0
  return { ...untrained(Int32Array.from(ids.slice(0, length))), lossMask, advantages: Float32Array.from(lossMask) }
}

/** This many preceding characters suffice to encode a text as if all of the preceding text were there. */
const NEAR = 64

/** Encodes text that follows other text. SentencePiece would start a separate text with a space, which an answer after a prompt does not have. */
function encodeAfter(tokenizer: SftTokenizer, before: string, text: string): number[] {
  const encode = (part: string) => tokenizer.encode(part, { addSpecialTokens: false })
  if (before === '') return encode(text)
  // If a token would span the border, the prompt keeps the tokens that it has in sampling, and the text is encoded as after a line break.
  for (const near of [before.slice(-NEAR), '\n']) {
    const [own, both] = [encode(near), encode(near + text)]
    if (own.every((id, i) => both[i] === id)) return both.slice(own.length)
  }
  return encode(text)
}

function encodeChat(
  { prompt, completion, tools, variables }: SftChat,
  tokenizer: SftTokenizer,
  where: string,
  context: (text: string) => void,
  answer: (text: string) => void,
): void {
  const messages = [...prompt, ...completion]
  const learned = messages.flatMap((m, i) => (i < prompt.length || m.role !== 'assistant' || weightOf(m) === 0 ? [] : [i]))
  const prompted = learned.map((i) => tokenizer.renderChat(messages.slice(0, i), { addGenerationPrompt: true, tools, variables }))
  let done = ''
  const ends = tokenizer.eosTokenIds.map((id) => tokenizer.decode([id]))
  /** What a template that ends answers with text writes behind this one: as in rollouts, the end of sequence stands before it. */
  const closingIn = (text: string, earlier: Message[]): string => {
    if (ends.length === 0 || ends.some((end) => text.includes(end))) return ''
    const closing = closingOf(tokenizer, earlier, { tools, variables })
    return text.endsWith(closing) ? closing : ''
  }
  for (const [turn, i] of learned.entries()) {
    const before = prompted[turn]
    const whole = tokenizer.renderChat(messages.slice(0, i + 1), { addGenerationPrompt: false, tools, variables })
    const after = goesOn(whole, prompted[turn + 1], tokenizer)
    if (before.startsWith(done) && !after.startsWith(before)) {
      const bare = tokenizer.renderChat(messages.slice(0, i), { addGenerationPrompt: false, tools, variables })
      if (after.startsWith(bare))
        throw new UserError(
          `${where}: the chat template opens an answer with ${JSON.stringify(before.slice(bare.length))} but writes message ${i} differently, so the model would never be trained on the opening that it is given later. Put a chat_template.jinja beside the model that writes both the same way.`,
        )
    }
    if (!before.startsWith(done) || !after.startsWith(before)) {
      throw new UserError(
        `${where}: the chat template writes earlier turns differently once message ${i} follows, so they cannot be trained on together. Make a separate row for each answer.`,
      )
    }
    const written = dense(after.slice(done.length))
    if (!written.includes(dense(thoughtsOf(messages[i]) ?? ''))) {
      throw new UserError(
        `${where}: the chat template does not write the reasoning_content of message ${i}. Put it into the content in the form in which the model should write it, or remove it.`,
      )
    }
    if (!written.includes(dense(thoughtsIn(messages[i].content)))) {
      throw new UserError(
        `${where}: the chat template leaves out the reasoning in the content of message ${i}, up to its </think>. Put a chat_template.jinja that keeps it beside the model, or remove the reasoning.`,
      )
    }
    const silent = (messages[i].tool_calls ?? []).find((call) => !after.slice(before.length).includes(call.function.name))
    if (silent) {
      throw new UserError(
        `${where}: the chat template does not write the call of ${silent.function.name} in message ${i}. Put it into the content in the form in which the model should write it, or remove it.`,
      )
    }
    context(before.slice(done.length))
    done = after.slice(0, after.length - closingIn(after.slice(before.length), messages.slice(0, i)).length)
    answer(done.slice(before.length))
  }
}

/** A conversation without the end of sequence that a template writes behind its last message only, as Phi-3's does, where `next` goes on from it. */
function goesOn(whole: string, next: string | undefined, tokenizer: SftTokenizer): string {
  if (next === undefined || next.startsWith(whole)) return whole
  const ends = tokenizer.eosTokenIds.map((id) => tokenizer.decode([id])).filter((end) => end !== '' && whole.endsWith(end))
  return ends.map((end) => whole.slice(0, -end.length)).find((text) => next.startsWith(text)) ?? whole
}

/** The training examples, in an order that depends only on the seed and the position; with `shuffle` false in the order of the rows. */
export class SftData {
  readonly samples: readonly TrainingSample[]
  readonly #batchSize: number
  readonly #order: EpochOrder
  readonly #done: { step: number; examples: number }

  /** `done`: in a resumed run, the steps already done and the number of their examples (their batch size may have been different). */
  constructor(
    samples: readonly TrainingSample[],
    options: { batchSize: number; seed: number; shuffle?: boolean; done?: { step: number; examples: number } },
  ) {
    this.samples = withSharedStart(samples)
    this.#batchSize = options.batchSize
    this.#order = new EpochOrder(samples.length, options.seed, options)
    this.#done = options.done ?? { step: 0, examples: 0 }
  }

  /** The number of examples in all steps before this one, which is the step's position in the data. */
  examplesBefore(step: number): number {
    return this.#done.examples + (step - 1 - this.#done.step) * this.#batchSize
  }

  /** The batch of a step. Steps count from 1. */
  batch(step: number): TrainingBatch {
    const first = this.examplesBefore(step)
    const samples = Array.from({ length: this.#batchSize }, (_, i) => this.samples[this.#order.at(first + i)])
    return batchOf(step, samples)
  }
}

/** Marks the tokens with which all samples begin (a system prompt, an instruction), so that each micro-batch computes them once. */
export function withSharedStart(samples: readonly TrainingSample[]): TrainingSample[] {
  const [first, ...others] = samples
  // Not Math.min(...): a call takes at most about 120,000 arguments, and a data file may have more rows.
  let shared = samples.reduce((least, s) => Math.min(least, s.lossMask.indexOf(1)), Infinity)
  for (const { ids } of others) {
    let same = 0
    while (same < shared && ids[same] === first.ids[same]) same++
    shared = same
  }
  return samples.map((s) => (shared > 0 ? { ...s, promptKey: 'start', promptLength: shared } : s))
}

/**
 * Mean loss over the samples' loss tokens, in nats, at the trainer's temperature and without gradients. Like a step, it uses smaller micro-batches if
 * memory does not suffice.
 * @param warn told once what was changed
 */
export async function meanLoss(
  trainer: Trainer,
  samples: readonly TrainingSample[],
  warn?: (line: string) => void,
): Promise<number> {
  const whole = batchOf(trainer.step, [...samples])
  const score = () => scoreSamples(trainer.decoder, whole.samples, { ...trainer.options, ...trainer.fitting.size })
  const results = await trainer.fitting.run(whole, score, warn)
  let [sum, count] = [0, 0]
  samples.forEach(({ lossMask }, i) =>
    lossMask.forEach((learned, t) => {
      sum -= learned ? results[i].logprobs[t] : 0
      count += learned
    }),
  )
  return sum / count
}

interface SftLoopOptions {
  maxSteps: number
  /** Steps between two checkpoints; 0: save only at the end. */
  saveSteps: number
  /** `row`: the metrics of the step; undefined if they could not be written. */
  save: (row: Metrics | undefined) => Promise<void>
  /** Called before the step is saved, so that a checkpoint's row of metrics always exists. */
  onStep: (step: number, metrics: Metrics) => unknown
  stopRequested: () => boolean
  /** Wraps a step: calls `work` with a callback for the progress of its micro-batches. */
  around?: <T>(step: number, work: (progress?: StepHooks['progress']) => Promise<T>) => Promise<T>
  /** Called with a sentence when a step deviates from the config, for example by smaller micro-batches. */
  warn?: (line: string) => void
}

/**
 * Trains from the trainer's step to `maxSteps`, or to the end of the step during which `stopRequested` becomes true; then saves.
 * @throws the error that stopped the run, after saving the last finished step
 */
export async function trainSft(trainer: Trainer, data: SftData, options: SftLoopOptions): Promise<void> {
  const reached: Reached = { done: trainer.step, saved: trainer.step }
  try {
    await steps(trainer, data, options, reached)
  } catch (error) {
    // Nothing can be read from a lost device.
    if (trainer.decoder.gpu.lost || reached.done === reached.saved) throw error
    // A step that did not finish does not count.
    trainer.step = reached.done
    await saveAfter(reached.done, () => options.save(reached.row), options.warn)
    throw error
  }
}

/** The last step that was finished, its row of metrics once it is written, and the last step that was saved. */
interface Reached {
  done: number
  row?: Metrics
  saved: number
}

/** Runs the steps. `reached` is kept up to date for the caller. */
async function steps(trainer: Trainer, data: SftData, options: SftLoopOptions, reached: Reached): Promise<void> {
  const { maxSteps, saveSteps, save, onStep, stopRequested, warn, around = (_, work) => work() } = options
  let saved: number | undefined
  // Checked before each step as well: the user may ask to stop during a save, or before the first step.
  while (trainer.step < maxSteps && !stopRequested()) {
    const step = trainer.step + 1
    const begin = performance.now()
    const { metrics } = await around(step, (progress) => trainer.trainStep(data.batch(step), { warn, progress }))
    const row: Metrics = {
      ...metrics,
      'time/step': (performance.now() - begin) / 1000,
      ...(saved !== undefined && { 'time/save_ckpt': saved }),
    }
    saved = undefined
    // From here on the weights are those of this step, even if writing its row of metrics fails.
    Object.assign(reached, { done: step, row: undefined })
    await onStep(step, row)
    reached.row = row
    if (saveSteps <= 0 || step % saveSteps !== 0) continue
    const start = performance.now()
    await save(row)
    reached.saved = step
    saved = (performance.now() - start) / 1000
  }
  // The last step, or the one during which the user asked to stop.
  if (reached.done > reached.saved) {
    await save(reached.row)
    reached.saved = reached.done
  }
}
