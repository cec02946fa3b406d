/** What a request may ask of the draw: each against a plain reference on the model's own logits, alone, in a batch, replayed or not, a step ahead or not. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type {
  GenerationRequest,
  GenerationResult,
  LogprobsRequest,
  SampledToken,
  SamplingParams,
  TokenConstraint,
} from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { Sampler, type Draw } from '../../src/inference/sampler.ts'
import { Sequence } from '../../src/inference/sequence.ts'
import { StopWatch } from '../../src/inference/stop-watch.ts'
import { gatherRows } from '../../src/kernels/rows/rows.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { engineOf, expectTrainersBits, goldenDecoder, goldenSequences, letters, sampling } from './helpers.ts'
import { expectChoice, hiddenOf, logitsOf, logSoftmax, ranked } from './reference.ts'

const gpu = await Gpu.open({ checks: true })
const sequences = goldenSequences('llama')
const prompts = [sequences[0].slice(0, 9), sequences[0].slice(3, 17), sequences[2].slice(0, 5)]
const vocabulary = 512
const eos = [7, 300]

let decoder: Decoder
beforeAll(async () => {
  decoder = await goldenDecoder(gpu, 'llama')
})
afterAll(() => {
  decoder.release()
  gpu.close()
})

/** A constraint that lets those through that `allows`, by the number of tokens before. */
function lets(allows: (token: number, before: number[]) => boolean): TokenConstraint & { taken: number[] } {
  const taken: number[] = []
  return {
    taken,
    fill(mask) {
      mask.fill(0)
      for (let id = 0; id < mask.length * 32; id++) if (allows(id, taken)) mask[id >> 5] |= 1 << (id & 31)
    },
    accept: (token) => void taken.push(token),
  }
}
const even = () => lets((id) => id % 2 === 0)

interface Kind {
  sampling?: Partial<SamplingParams>
  logprobs?: LogprobsRequest
  constraint?: () => TokenConstraint
}
const kinds: Kind[] = [
  {},
  { sampling: { temperature: 0 }, logprobs: { top: 20 } },
  { sampling: { min_tokens: 6, max_tokens: 9 } },
  { sampling: { min_tokens: 3, stop_token_ids: [1, 2, 3], ignore_eos: true }, logprobs: { top: 3, mode: 'raw' } },
  { sampling: { logit_bias: { 5: 8, 6: 7.5, 100: -50 }, temperature: 1 }, logprobs: { mode: 'processed', top: 4 } },
  { sampling: { allowed_token_ids: [3, 4, 5, 200, 511] }, logprobs: { mode: 'processed', top: 8 } },
  { sampling: { allowed_token_ids: [0, 31, 32, 511], temperature: 0 }, logprobs: { mode: 'processed' } },
  { sampling: { top_k: 5, temperature: 1.3 }, logprobs: { mode: 'processed', top: 20 } },
  { sampling: { top_p: 0.7, min_p: 0.02 }, logprobs: { mode: 'raw' } },
  { sampling: { top_p: 0.7, min_p: 0.02 }, logprobs: { mode: 'processed', top: 0 } },
  { sampling: { min_p: 0.02 }, logprobs: { mode: 'processed' } },
  {
    // There is no penalty for a token that has only a bias.
    sampling: { repetition_penalty: 1.4, presence_penalty: 0.5, frequency_penalty: 0.3, logit_bias: { 201: 6 }, top_k: 40 },
    logprobs: { mode: 'processed', top: 2 },
  },
  { sampling: { repetition_penalty: 1.4, logit_bias: { 8: 3 } }, logprobs: { top: 5 } },
  { constraint: even },
  {
    sampling: { allowed_token_ids: [2, 3, 4, 5, 6, 7], min_tokens: 4, top_k: 2 },
    logprobs: { mode: 'processed', top: 3 },
    constraint: even,
  },
  { sampling: { temperature: 1.7 }, logprobs: { mode: 'processed', top: 1 } },
  {},
]

/** Requests of every kind side by side; anew each time, as constraints keep what they took. */
const requests = (): GenerationRequest[] =>
  kinds.map((kind, i) => ({
    promptIds: prompts[i % 3],
    sampling: sampling({ seed: i, ...kind.sampling }),
    logprobs: kind.logprobs,
    constraint: kind.constraint?.(),
  }))

/** Whether another request's keys and values were found is not what is compared. */
const drawnOf = (result: GenerationResult): GenerationResult => ({ ...result, cachedTokens: 0 })

describe('what a request asks of the draw', () => {
  let together: GenerationResult[]
  it('is what the reference draws, with its log-probabilities, most likely tokens and rank', async () => {
    const engine = engineOf(decoder, { maxSequences: 16, eosTokenIds: eos })
    const asked = requests()
    together = (await Promise.all(asked.map((request) => engine.generate(request)))).map(drawnOf)
    await engine.close()
    for (const [i, result] of together.entries()) await expectChoice(decoder, asked[i], result, { eos, name: `request ${i}` })
    // Of the policy's log-probability, not a bit changes.
    const policy = asked.flatMap((request, i) => {
      const {
        logprobs: { mode = 'policy' } = {},
        sampling: { temperature },
      } = request
      return mode === 'policy' && temperature === 0.8 ? [{ request, result: together[i] }] : []
    })
    expect(policy.length).toBeGreaterThan(4)
    await expectTrainersBits(decoder, policy)
  })

  it.each([
    { plans: false, ahead: false },
    { plans: true, ahead: true },
    { plans: false, ahead: true },
    { plans: true, ahead: true, readBlock: 4 },
  ])('has the same bits with %j', async (options) => {
    const engine = engineOf(decoder, { maxSequences: 16, eosTokenIds: eos, ...options })
    expect((await Promise.all(requests().map((request) => engine.generate(request)))).map(drawnOf)).toEqual(together)
    await engine.close()
  })

  it.each([false, true])('has the bits that each request has alone (ahead: %s)', async (ahead) => {
    const engine = engineOf(decoder, { maxSequences: 3, eosTokenIds: eos, ahead })
    for (const [i, request] of requests().entries()) {
      expect(drawnOf(await engine.generate(request)), `request ${i}`).toEqual(together[i])
    }
    await engine.close()
  })

  it('is that of its own row, also where the logits of a step are computed in parts', async () => {
    const { limits } = gpu.facts
    const { maxBinding } = limits
    limits.maxBinding = 64 * vocabulary * 4
    const engine = engineOf(decoder, { maxSequences: 80, maxPrefillRows: 64 })
    limits.maxBinding = maxBinding
    const ids = Array.from({ length: 80 }, (_, i) => 20 + i)
    const drawn = ids.map((id) =>
      engine.generate({ promptIds: prompts[2], sampling: sampling({ allowed_token_ids: [id], max_tokens: 2 }) }),
    )
    expect((await Promise.all(drawn)).map((result) => result.ids)).toEqual(ids.map((id) => [id, id]))
    await engine.close()
  })

  it('adds no dispatch to a step in which no row asks', async () => {
    const engine = engineOf(decoder, { ahead: false })
    const pair = async (more: Partial<GenerationRequest>, changes = {}) => {
      const before = gpu.dispatches
      const results = await Promise.all([
        engine.generate({ promptIds: prompts[0], sampling: sampling() }),
        engine.generate({ promptIds: prompts[1], sampling: sampling({ ...changes }), ...more }),
      ])
      return { results, dispatches: gpu.dispatches - before }
    }
    // The engine makes its plans while the first steps run.
    for (let i = 0; i < 6; i++) await pair({})
    const plain = await pair({})
    // 'raw' is another temperature of the same draw; min_tokens is a mask on two draws, one kernel each.
    const raw = await pair({ logprobs: { mode: 'raw' } })
    const early = await pair({}, { min_tokens: 2, stop_token_ids: [0] })
    expect(raw.dispatches).toBe(plain.dispatches)
    expect(early.dispatches).toBe(plain.dispatches + 2)
    for (const { results } of [raw, early]) expect(drawnOf(results[0])).toEqual(drawnOf(plain.results[0]))
    expect(raw.results[1].ids).toEqual(plain.results[1].ids)
    expect(raw.results[1].logprobs).not.toEqual(plain.results[1].logprobs)
    await engine.close()
  })
})

describe('min_tokens and ignore_eos', () => {
  it('keep ends from being drawn, or from ending; a stop string is not looked for before', async () => {
    const free = engineOf(decoder)
    const ask = (engine: typeof free, changes: object) =>
      engine.generate({ promptIds: prompts[1], sampling: sampling({ temperature: 0, ...changes }) })
    const { ids } = await ask(free, {})
    await free.close()
    const engine = engineOf(decoder, { eosTokenIds: [ids[0]] })
    expect(await ask(engine, {})).toMatchObject({ ids: [ids[0]], stopCondition: 'eos' })
    const late = await ask(engine, { min_tokens: 5 })
    expect(late.ids.length).toBeGreaterThan(4)
    expect(late.ids.slice(0, 5)).not.toContain(ids[0])
    const ignored = await ask(engine, { ignore_eos: true })
    expect(ignored).toMatchObject({ ids, stopCondition: 'max_tokens', text: letters(ids) })
    const stopped = await ask(engine, { ignore_eos: true, stop_token_ids: [ids[1]] })
    expect(stopped).toMatchObject({
      stopCondition: ids[0] === ids[1] ? `stop: token ${ids[0]}` : expect.stringContaining('token'),
    })
    // Strings that are whole within the first tokens, the last of them too, or that end right behind them.
    const stop = [0, 3, 4].map((i) => letters(late.ids.slice(i, i + 2)))
    const strings = await ask(engine, { min_tokens: 5, stop })
    const at = late.ids.findIndex((_, i) => i >= 5 && stop.some((text) => letters(late.ids.slice(0, i + 1)).endsWith(text)))
    expect(at).toBeGreaterThan(4)
    expect(strings.ids).toEqual(late.ids.slice(0, at + 1))
    expect(strings.stopCondition).toMatch(/^stop: /)
    await engine.close()
  })
})

describe.each([false, true])('a constraint (ahead: %s)', (ahead) => {
  it('takes every token after which one follows, and its mask is obeyed at any temperature', async () => {
    const engine = engineOf(decoder, { maxSequences: 4, ahead })
    const fixed = [500, 3, 3, 77, 0, 511]
    const made = [0, 2.5].map((temperature) => ({
      temperature,
      constraint: lets((id, { length }) => id === fixed[length]),
    }))
    const results = await Promise.all(
      made.map(({ temperature, constraint }) =>
        engine.generate({ promptIds: prompts[0], sampling: sampling({ temperature, max_tokens: 6 }), constraint }),
      ),
    )
    for (const [i, { ids }] of results.entries()) {
      expect(ids).toEqual(fixed)
      expect(made[i].constraint.taken).toEqual(fixed.slice(0, -1))
    }
    const evens = await engine.generate({
      promptIds: prompts[0],
      sampling: sampling({ temperature: 3, max_tokens: 20 }),
      constraint: even(),
    })
    expect(evens.ids.every((id) => id % 2 === 0)).toBe(true)
    // Where only an end is left, it comes, whatever min_tokens says.
    await engine.close()
    const ending = engineOf(decoder, { eosTokenIds: [9], ahead })
    const complete = lets((id, { length }) => id === [50, 9][length])
    const ended = await ending.generate({ promptIds: prompts[0], sampling: sampling({ min_tokens: 8 }), constraint: complete })
    expect(ended).toMatchObject({ ids: [50, 9], stopCondition: 'eos' })
    await ending.close()
  })

  it('that throws, or allows nothing, fails its request alone', async () => {
    const engine = engineOf(decoder, { ahead })
    const other = engine.generate({ promptIds: prompts[0], sampling: sampling() })
    const ask = (constraint: TokenConstraint, changes = {}) =>
      engine.generate({ promptIds: prompts[0], sampling: sampling(changes), constraint })
    await expect(ask(lets((_, { length }) => length < 3))).rejects.toThrow('allows no token')
    await expect(ask(even(), { allowed_token_ids: [1, 3] })).rejects.toThrow('allows no token of allowed_token_ids')
    const broken = { ...even(), accept: () => { throw new Error('not of this grammar') } } // prettier-ignore
    await expect(ask(broken)).rejects.toThrow('not of this grammar')
    expect((await other).ids).toHaveLength(12)
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, failed: 2 })
    await engine.close()
  })
})

describe.each([{ ahead: false }, { ahead: true }, { ahead: true, readBlock: 4 }])('onToken (%j)', (way) => {
  it('is called with each token in turn; what it throws fails that request alone; it may abort', async () => {
    const engine = engineOf(decoder, way)
    const tokens: SampledToken[] = []
    const control = new AbortController()
    const ask = (onToken: (token: SampledToken) => void, signal?: AbortSignal) =>
      engine.generate({ promptIds: prompts[0], sampling: sampling(), logprobs: { top: 2 }, onToken, signal })
    const good = ask((token) => tokens.push(token))
    let calls = 0
    const bad = ask(() => {
      if (++calls === 3) throw new Error('the listener is gone')
    })
    const aborted = ask((token) => token.id >= 0 && control.abort(), control.signal)
    await expect(bad).rejects.toThrow('the listener is gone')
    expect(calls).toBe(3)
    const result = await good
    expect(tokens).toEqual(
      result.ids.map((id, i) => ({ id, logprob: result.logprobs[i], version: result.versions[i], top: result.top![i] })),
    )
    expect(await aborted).toMatchObject({ finishReason: 'abort', ids: [result.ids[0]] })
    expect(engine.stats()).toMatchObject({ finished: 1, failed: 1, aborted: 1, running: 0 })
    await engine.close()
  })
})

describe("log-probabilities of a prompt's tokens", () => {
  it('come from the sampler, of the token that stands there, beside rows that draw', async () => {
    const sampler = new Sampler(decoder, 40)
    const ids = sequences[2].slice(0, 30)
    const last = ids.length - 1
    const logits = await logitsOf(decoder, ids)
    const rules = { eosTokenIds: new Set<number>(), decode: letters, vocabulary }
    const settle = { resolve: () => {}, reject: () => {}, abort: () => {} }
    const sequence = (logprobs: LogprobsRequest, changes = {}) =>
      new Sequence({ promptIds: ids, sampling: sampling(changes), logprobs }, rules, settle)
    const modes = [{ prompt: 4 }, { prompt: 0, mode: 'raw' }, { prompt: 20, mode: 'processed' }] satisfies LogprobsRequest[]
    const scored = modes.map((mode) => sequence(mode, { top_k: 2, repetition_penalty: 2, allowed_token_ids: [1] }))
    const drawing = sequence({ top: 1 })
    const draws: Draw[] = ids.slice(1).map((target, i) => ({ sequence: scored[i % 3], row: i, target, position: i + 1 }))
    draws.push({ sequence: drawing, row: last })
    const hidden = await hiddenOf(decoder, ids)
    sampler.write(draws)
    gatherRows(gpu, hidden.buffer, sampler.index, sampler.hidden, 32, hidden.columns)
    sampler.draw(32, draws)
    const { tokens, logprobs, tops } = await sampler.read(ids.length, 32)
    draws.slice(0, -1).forEach(({ target }, i) => {
      const { prompt, mode } = { mode: 'policy', ...modes[i % 3] }
      // Nothing was drawn of the prompt: 'processed' asks nothing of it.
      const expected = logSoftmax(logits[i].map((z) => z / (mode === 'policy' ? Math.fround(0.8) : 1)))
      expect(tokens[i]).toBe(target)
      expect(Math.abs(logprobs[i] - expected[target!])).toBeLessThan(2e-5)
      expect(tops[i]!.ids).toEqual(ranked(expected).slice(0, prompt))
      expect(tops[i]!.rank).toBe(1 + expected.filter((l) => l > expected[target!]).length)
      scored[i % 3].takePrompt(i + 1, logprobs[i], tops[i]!)
    })
    expect(tops[last]).toMatchObject({ rank: expect.any(Number), ids: [ranked(logits[last])[0]] })
    // As the engine draws this one.
    const engine = engineOf(decoder)
    const {
      ids: alone,
      logprobs: own,
      top,
    } = await engine.generate({ promptIds: ids, sampling: sampling({ max_tokens: 1 }), logprobs: { top: 1 } })
    expect([tokens[last], logprobs[last], tops[last]]).toEqual([alone[0], own[0], top![0]])
    await engine.close()
    hidden.buffer.release()
    sampler.release()
  })
})

describe('a request that can not be', () => {
  it.each([
    [{ min_tokens: 13 }, /min_tokens is 13; .* max_tokens, which is 12/],
    [{ min_tokens: -1 }, /min_tokens is -1/],
    [{ ignore_eos: 1 }, /ignore_eos is 1; it must be true or false/],
    [{ logit_bias: { 512: 1 } }, /logit_bias names token 512, .* 512 tokens/],
    [{ logit_bias: { x: 1 } }, /logit_bias names token NaN/],
    [{ logit_bias: { 5: Infinity } }, /logit_bias of token 5 is Infinity/],
    [{ allowed_token_ids: [] }, /allowed_token_ids is empty/],
    [{ allowed_token_ids: [1, 512] }, /allowed_token_ids names token 512/],
    [{ stop_token_ids: [-1] }, /stop_token_ids names token -1/],
    [{ stop: 'x' }, /stop must be a list/],
    [{ top_k: 1.5 }, /top_k is 1.5; it must be a whole number/],
    [{ seed: 0.5 }, /seed is 0.5/],
    [{}, /logprobs.top is 21; .* 0 to 20/, { logprobs: { top: 21 } }],
    [{}, /logprobs.top is -1/, { logprobs: { top: -1 } }],
    [{}, /logprobs.prompt is 0.5/, { logprobs: { prompt: 0.5 } }],
    [{}, /logprobs.mode is odd; it must be one of policy, raw, processed/, { logprobs: { mode: 'odd' } }],
    [{}, /constraint must have/, { constraint: {} }],
    [{}, /onToken must be a function/, { onToken: 1 }],
  ])('%j: %s', async (changes, words, more: object = {}) => {
    const engine = engineOf(decoder)
    const request = { promptIds: prompts[0], sampling: { ...sampling(), ...changes }, ...more } as GenerationRequest
    await expect(engine.generate(request)).rejects.toThrow(UserError)
    await expect(engine.generate(request)).rejects.toThrow(words)
    await engine.close()
  })
})

const decode = (ids: readonly number[]) => new TextDecoder().decode(Uint8Array.from(ids))

it('a stop watch that does not look finds nothing later that was whole by then', () => {
  const run = (text: string, stop: string[], from: number) => {
    const watch = new StopWatch(decode, stop)
    for (const [i, byte] of [...new TextEncoder().encode(text)].entries()) {
      const found = watch.push(byte, i >= from)
      if (found) return { ...found, tokens: i + 1 }
    }
    return undefined
  }
  expect(run('ab ab', ['ab'], 0)).toEqual({ stop: 'ab', text: '', tokens: 2 })
  expect(run('ab ab', ['ab'], 2)).toEqual({ stop: 'ab', text: 'ab ', tokens: 5 })
  expect(run('ab ab', ['ab'], 1)).toEqual({ stop: 'ab', text: '', tokens: 2 })
  // Within the reach of a longer one, and before a character that is not whole yet.
  expect(run('ab longer', ['ab', 'longest'], 2)).toBeUndefined()
  expect(run('abé!', ['ab'], 3)).toBeUndefined()
  expect(run('abé!', ['bé'], 3)).toEqual({ stop: 'bé', text: 'a', tokens: 4 })
})
