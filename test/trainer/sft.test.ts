/** Supervised training: which tokens are learned, in which order, and a new model that learns. */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { NotFiniteError } from '../../src/trainer/bad-step.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { makeTokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import { openModel } from '../../src/model/files/open.ts'
import { byteTokenizer, BYTE_END } from '../../src/trainer/byte-tokenizer.ts'
import { writeWeights } from '../../src/trainer/checkpoint.ts'
import { accumulateGradients, scoreSamples } from '../../src/trainer/gradients.ts'
import { negativeLogLikelihood } from '../../src/trainer/losses/index.ts'
import { newModel, type NewModelOptions } from '../../src/trainer/new-model.ts'
import { exampleOf, meanLoss, sampleOf, SftData, trainSft, withSharedStart } from '../../src/trainer/sft.ts'
import type { Metrics } from '../../src/common/types.ts'
import { batchOf, openGpu, readAll, tempFolder, trainerOptions, withTrainer, worst } from './helpers.ts'

const { gpu } = openGpu()
const folder = tempFolder()
const tokenizer = byteTokenizer(256)
const user = (content: string) => ({ role: 'user' as const, content })
const assistant = (content: string) => ({ role: 'assistant' as const, content })
/** The text of the learned tokens. */
const learned = (s: { ids: Int32Array; lossMask: Uint8Array }) => tokenizer.decode(s.ids.filter((_, t) => s.lossMask[t]))

const sizes: NewModelOptions = {
  family: 'qwen3', hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16,
  tie_word_embeddings: true, rope_theta: 10_000, rms_norm_eps: 1e-6, max_position_embeddings: 128, initializer_range: 0.05,
} // prettier-ignore

describe('the byte tokenizer', () => {
  test('every byte is its own id, and texts come back', () => {
    for (const text of ['Reverse: abc', 'naïve — 日本語 🙂', ' \n\t\u0000\u007f', '<|user|>hi<|end|>']) {
      const ids = tokenizer.encode(text)
      expect(tokenizer.decode(ids)).toBe(text)
      if (!text.includes('<|')) expect(ids).toEqual([...Buffer.from(text)])
    }
    expect(tokenizer.vocabSize).toBe(262)
  })
  test('a chat costs two tokens a message', () => {
    expect(tokenizer.encodeChat([user('ab')])).toEqual([259, 97, 98, 257, 260])
  })
})

describe('what is learned', () => {
  test('the answer and the token that ends it', () => {
    const s = sampleOf({ prompt: [user('abc')], completion: [assistant('cba')] }, tokenizer, 'row')
    expect(learned(s)).toBe('cba<|end|>')
    expect([...s.ids]).toEqual([...tokenizer.encodeChat([user('abc')]), ...tokenizer.encode('cba'), BYTE_END])
    expect(s.advantages).toEqual(Float32Array.from(s.lossMask))
  })
  test('every answer of a chat', () => {
    const messages = [{ role: 'system' as const, content: 's' }, user('a'), assistant('b'), user('c'), assistant('d'), user('e')]
    const s = sampleOf(exampleOf({ messages }, 'row', true), tokenizer, 'row')
    expect(learned(s)).toBe('b<|end|>d<|end|>')
    expect(tokenizer.decode(s.ids)).toBe(
      '<|system|>s<|end|><|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>d<|end|>',
    )
  })
  test('prompt and completion as text are a question and an answer; as messages they are what they say', () => {
    const text = sampleOf(exampleOf({ prompt: 'a', completion: 'b' }, 'row', true), tokenizer, 'row')
    const chat = sampleOf(exampleOf({ prompt: [user('a')], completion: [assistant('b')] }, 'row', true), tokenizer, 'row')
    expect(text).toEqual(chat)
    // An answer in the prompt is an example to follow, and is not learned.
    const shot = sampleOf(
      exampleOf({ prompt: [user('a'), assistant('A'), user('b')], completion: 'B' }, 'row', true),
      tokenizer,
      'row',
    )
    expect(learned(shot)).toBe('B<|end|>')
  })
  test('an answer of weight 0 is read and not learned', () => {
    const messages = [user('a'), { ...assistant('B'), weight: 0 }, user('c'), { ...assistant('D'), weight: 1 }]
    const s = sampleOf(exampleOf({ messages }, 'row', true), tokenizer, 'row')
    expect(learned(s)).toBe('D<|end|>')
    const plain = messages.map(({ role, content }) => ({ role, content }))
    expect([...s.ids]).toEqual([...sampleOf(exampleOf({ messages: plain }, 'row', true), tokenizer, 'row').ids])
  })
  test('every answer of a chat whose template ends the last one twice, as Phi-3 does', () => {
    const [end, last] = [BYTE_END, tokenizer.encode('<|pad|>')[0]]
    const phi = {
      encode: tokenizer.encode.bind(tokenizer),
      decode: tokenizer.decode.bind(tokenizer),
      eosTokenIds: [last, end],
      renderChat: (messages: readonly { role: string; content: string }[], options: { addGenerationPrompt?: boolean } = {}) =>
        messages.map((m) => `<|${m.role}|>\n${m.content}<|end|>\n`).join('') +
        (options.addGenerationPrompt ? '<|assistant|>\n' : '<|pad|>'),
    }
    const s = sampleOf(exampleOf({ messages: [user('a'), assistant('b'), user('c'), assistant('d')] }, 'row', true), phi, 'row')
    expect(learned(s)).toBe('b<|end|>d<|end|>')
    expect(tokenizer.decode(s.ids)).toBe(
      '<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|user|>\nc<|end|>\n<|assistant|>\nd<|end|>',
    )
  })
  test('thoughts beside an answer are learned where the template writes them, and refused where it does not', () => {
    const row = (name: string) => ({ messages: [user('a'), { ...assistant('b'), [name]: 'hm' }] })
    const thinking = {
      encode: tokenizer.encode.bind(tokenizer),
      decode: tokenizer.decode.bind(tokenizer),
      eosTokenIds: tokenizer.eosTokenIds,
      renderChat: (messages: readonly object[], options: { addGenerationPrompt?: boolean } = {}) =>
        (messages as Record<string, string>[])
          .map((m) => `<|${m.role}|>${m.reasoning_content ? `<think>${m.reasoning_content}</think>` : ''}${m.content}<|end|>`)
          .join('') + (options.addGenerationPrompt ? '<|assistant|>' : ''),
    }
    for (const name of ['reasoning_content', 'reasoning'])
      expect(learned(sampleOf(exampleOf(row(name), 'row', true), thinking, 'row'))).toBe('<think>hm</think>b<|end|>')
    const none = exampleOf(row('reasoning_content'), 'row', true)
    expect(() => sampleOf(none, tokenizer, 'd.jsonl:3')).toThrow(
      'd.jsonl:3: the chat template does not write the reasoning_content of message 1. Put it into the content',
    )
  })
  test('thoughts in an answer that the template leaves out are refused, and so is an answer that it opens otherwise', () => {
    const opening = (written: string) => ({
      encode: tokenizer.encode.bind(tokenizer),
      decode: tokenizer.decode.bind(tokenizer),
      eosTokenIds: tokenizer.eosTokenIds,
      // As DeepSeek-R1's distilled models have it.
      renderChat: (messages: readonly { role: string; content: string }[], options: { addGenerationPrompt?: boolean } = {}) =>
        messages.map((m) => `<|${m.role}|>${m.content.split('</think>').at(-1)}<|end|>`).join('') +
        (options.addGenerationPrompt ? written : ''),
    })
    const row = (content: string) => exampleOf({ messages: [user('a'), assistant(content)] }, 'row', true)
    expect(learned(sampleOf(row('b'), opening('<|assistant|>'), 'row'))).toBe('b<|end|>')
    expect(() => sampleOf(row('<think>\nhm</think>b'), opening('<|assistant|>'), 'd.jsonl:3')).toThrow(
      'd.jsonl:3: the chat template leaves out the reasoning in the content of message 1, up to its </think>. Put a chat_template',
    )
    expect(() => sampleOf(row('b'), opening('<|assistant|><think>'), 'd.jsonl:3')).toThrow(
      'd.jsonl:3: the chat template opens an answer with "<|assistant|><think>" but writes message 1 differently',
    )
    expect(learned(sampleOf(row('<think>\nhm</think>b'), tokenizer, 'row'))).toBe('<think>\nhm</think>b<|end|>')
  })
  test('an answer whose call the chat template leaves out is refused', () => {
    const answer = { role: 'assistant', content: null, tool_calls: [{ function: { name: 'look', arguments: {} } }] }
    const row = exampleOf({ messages: [user('look'), answer] }, 'row', true)
    expect(() => sampleOf(row, tokenizer, 'd.jsonl:3')).toThrow(
      'd.jsonl:3: the chat template does not write the call of look in message 1. Put it into the content',
    )
  })
  test('of SentencePiece, whose texts begin with a space, the tokens of the conversation as a whole', () => {
    const tokens = ['<unk>', '<s>', '</s>', '\u2581', ...Array.from('hiyou[]/\n'), '\u2581\u2581', '\u2581h', '\u2581hi']
    const special = (id: number) => ({ id, content: tokens[id], special: true, single_word: false, lstrip: false, rstrip: false, normalized: false }) // prettier-ignore
    const replaced = { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' }
    const pieces = (chatTemplate: string | null) =>
      makeTokenizer({
        label: 'pieces', tokenizerConfig: {}, chatTemplate, eosTokenIds: [2],
        tokenizerJson: {
          added_tokens: [0, 1, 2].map(special),
          normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '\u2581' }, replaced] },
          decoder: { type: 'Fuse' },
          model: { type: 'BPE', unk_token: '<unk>', fuse_unk: true, vocab: Object.fromEntries(tokens.map((token, id) => [token, id])), merges: ['\u2581 \u2581', '\u2581 h', '\u2581h i'] },
        },
      }) // prettier-ignore
    const messages = [user('hi'), assistant('hi you'), user('you'), assistant('hi')]
    const templates = {
      llama: "<s>{% for m in messages %}{% if m.role == 'user' %}[i] {{ m.content }} [/i]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
      zephyr: '{% for m in messages %}[{{ m.role[0] }}]\n{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}[a]\n{% endif %}',
    } // prettier-ignore
    for (const [name, template] of Object.entries(templates)) {
      const own = pieces(template)
      const s = sampleOf(exampleOf({ messages }, 'row', true), own, 'row')
      expect([...s.ids], name).toEqual(own.encodeChat(messages, { addGenerationPrompt: false }).slice(0, s.ids.length))
    }
    const plain = pieces(null)
    const s = sampleOf(exampleOf({ prompt: 'you', completion: ' hi' }, 'row', false), plain, 'row')
    expect([...s.ids]).toEqual([...plain.encode('you hi', { addSpecialTokens: false }), 2])
    // In the whole text a token spans the space between them: the prompt keeps its tokens, and the answer gets no second space.
    const apart = sampleOf(exampleOf({ prompt: 'you ', completion: 'hi' }, 'row', false), plain, 'row')
    expect([...apart.ids]).toEqual([...plain.encode('you '), ...['h', 'i'].map((sign) => tokens.indexOf(sign)), 2])
    expect([...apart.lossMask]).toEqual([...plain.encode('you ').map(() => 0), 1, 1, 1])
  })
  test('without a chat template it is plain text', () => {
    const s = sampleOf(exampleOf({ prompt: 'a', completion: 'b' }, 'row', false), tokenizer, 'row')
    expect([...s.ids]).toEqual([97, 98, BYTE_END])
    expect([...s.lossMask]).toEqual([0, 1, 1])
    const empty = () => sampleOf(exampleOf({ prompt: '', completion: '' }, 'row 3', false), tokenizer, 'row 3')
    expect(empty).toThrow(/row 3 has only one token, which nothing predicts/)
    // Nothing predicts the first token of all.
    expect([...sampleOf(exampleOf({ prompt: '', completion: 'b' }, 'row', false), tokenizer, 'row').lossMask]).toEqual([0, 1])
  })
  test.each([
    [
      'neither',
      { question: 'a' },
      /row 3 has neither messages nor a prompt and a completion \(columns found: question\)\. Rename/,
    ],
    ['no answer', { messages: [user('a')] }, /row 3 has no assistant message/],
    ['a role', { messages: [{ role: 'bot', content: 'a' }] }, /message 0 of its messages must be/],
    [
      'a weight',
      { messages: [user('a'), { ...assistant('b'), weight: 0.5 }] },
      /row 3: the weight of message 1 of its messages must be 0 or 1/,
    ],
    ['no list', { messages: [] }, /its messages must be a list/],
    ['a number', { prompt: 'a', completion: 5 }, /row 3: its completion must be text or a list of messages/],
  ])('refused: %s', (_name, columns, message) => {
    const make = () => sampleOf(exampleOf(columns, 'row 3', true), tokenizer, 'row 3')
    expect(make).toThrow(message)
    expect(make).toThrow(UserError)
  })
})

describe('the order of examples', () => {
  const samples = Array.from({ length: 7 }, (_, i) =>
    sampleOf({ prompt: [user('x')], completion: [assistant(`${i}`)] }, tokenizer, 'row'),
  )
  const texts = (data: SftData, step: number) => data.batch(step).samples.map((s) => learned(s)[0])
  test('each epoch holds every example once, another order each time', () => {
    const data = new SftData(samples, { batchSize: 7, seed: 1 })
    expect(texts(data, 1).toSorted().join('')).toBe('0123456')
    expect(texts(data, 2).toSorted().join('')).toBe('0123456')
    expect(texts(data, 1)).not.toEqual(texts(data, 2))
  })
  test('a step depends on seed and number alone', () => {
    const [a, b] = [new SftData(samples, { batchSize: 3, seed: 1 }), new SftData(samples, { batchSize: 3, seed: 1 })]
    const forward = [1, 2, 3, 4, 5].map((step) => texts(a, step))
    const backward = [5, 4, 3, 2, 1].map((step) => texts(b, step)).toReversed()
    expect(forward).toEqual(backward)
    expect(texts(new SftData(samples, { batchSize: 3, seed: 2 }), 1)).not.toEqual(forward[0])
  })
  test('unshuffled it is that of the rows', () => {
    const data = new SftData(samples, { batchSize: 3, seed: 1, shuffle: false })
    expect([1, 2, 3, 4, 5].map((step) => texts(data, step).join(''))).toEqual(['012', '345', '601', '234', '560'])
  })
})

test('a run that goes on in batches of another size goes on in the data where it was', () => {
  const samples = Array.from({ length: 64 }, (_, i) => sampleOf({ text: { prompt: 'p', completion: `${i}` } }, tokenizer, 'row'))
  const options = { batchSize: 4, seed: 1 }
  const ids = (data: SftData, step: number) => data.batch(step).samples.map((s) => learned(s))
  const whole = new SftData(samples, options)
  const next = new SftData(samples, { ...options, batchSize: 8, done: { step: 4, examples: whole.examplesBefore(5) } })
  expect(ids(next, 5)).toEqual([...ids(whole, 5), ...ids(whole, 6)])
  expect(next.examplesBefore(7)).toBe(32)
})

test('more examples than a call takes arguments', () => {
  const one = sampleOf({ text: { prompt: 'p', completion: 'c' } }, tokenizer, 'row')
  expect(withSharedStart(Array.from({ length: 200_000 }, () => one))[0].promptLength).toBe(1)
})

test('what was learned until an error is saved: the step before the one that failed, or the one that was made and has no row', async () => {
  const data = new SftData([sampleOf({ text: { prompt: 'p', completion: 'c' } }, tokenizer, 'row')], { batchSize: 1, seed: 1 })
  const wrong = 'Step 3 does not fit'
  const run = async (lost?: Error, onStep: (step: number) => void = () => {}, error: Error = new UserError(wrong)) => {
    // As Trainer does it: a step that throws has been counted.
    const trainer = {
      step: 0,
      decoder: { gpu: { lost } },
      trainStep: async () => {
        if (++trainer.step === 3) throw error
        return await Promise.resolve({ metrics: { 'loss/mean': trainer.step } })
      },
    }
    const saved: [number, unknown][] = []
    const save = async (row?: Metrics) => void saved.push([await Promise.resolve(trainer.step), row?.['loss/mean']])
    const loop = { maxSteps: 5, saveSteps: 0, save, onStep, stopRequested: () => false }
    await expect(trainSft(trainer as never, data, loop)).rejects.toThrow(/Step 3 does not fit|no row/)
    return saved
  }
  // With its row, for keep_best.
  expect(await run()).toEqual([[2, 2]])
  expect(await run(new Error('lost'))).toEqual([])
  const noRow = (step: number) => {
    if (step === 2) throw new Error('no row')
  }
  expect(await run(undefined, noRow)).toEqual([[2, undefined]])
  // The third in a row.
  expect(await run(undefined, undefined, new NotFiniteError(wrong))).toEqual([[2, 2]])
})

test('a start that all examples share is computed once and changes nothing', async () => {
  const made = newModel(sizes, 1)
  const decoder = await loadDecoder(await gpu, made, { full: true })
  const samples = ['ab', 'abcd', 'x'].map((t) =>
    sampleOf({ prompt: [user(`Say: ${t}`)], completion: [assistant(t)] }, tokenizer, 'row'),
  )
  const shared = withSharedStart(samples)
  expect(shared[0].promptLength).toBe('<Say: '.length)
  const options = { loss: negativeLogLikelihood, temperature: 1, checkpointing: false, microBatchTokens: 999 }
  const alone = await accumulateGradients(decoder, batchOf(samples), options)
  const gradients = await readAll(decoder, 'gradients')
  decoder.store!.zeroGradients()
  const together = await accumulateGradients(decoder, batchOf(shared), options)
  expect(together.rows).toBe(alone.rows - 2 * 6)
  expect(together.loss).toBe(alone.loss)
  expect(worst(await readAll(decoder, 'gradients'), gradients).distance).toBeLessThan(2e-6)
  decoder.release()
})

test('a new model learns, is written in bf16, and reads back the same', async () => {
  const made = newModel(sizes, 4)
  expect(await newModel(sizes, 4).tensors.read('model.embed_tokens.weight')).toEqual(
    await made.tensors.read('model.embed_tokens.weight'),
  )
  const decoder = await loadDecoder(await gpu, made, { round: true, full: true })
  const samples = ['a', 'b', 'c', 'd'].map((t) =>
    sampleOf({ prompt: [user(t)], completion: [assistant(t.toUpperCase())] }, tokenizer, 'row'),
  )
  const data = new SftData(samples, { batchSize: 4, seed: 1 })
  const options = await trainerOptions(folder, {
    loss: negativeLogLikelihood,
    temperature: 1,
    schedule: { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 40 },
  })
  await withTrainer(decoder, options, async (trainer) => {
    const rows: Metrics[] = []
    let saves = 0
    const loop = {
      saveSteps: 15,
      save: async (row: Metrics | undefined) => {
        // A checkpoint without its row would lose it to a kill.
        expect(rows.at(-1)).toBe(row)
        saves++
      },
      stopRequested: () => false,
      onStep: (_: number, m: Metrics) => rows.push(m),
    }
    const before = await meanLoss(trainer, samples)
    expect(before).toBeCloseTo(Math.log(262), 0)
    await trainSft(trainer, data, { ...loop, maxSteps: 40 })
    expect([rows.length, saves]).toEqual([40, 3])
    expect(await meanLoss(trainer, samples)).toBeLessThan(0.1)
    // Asked to stop in its save, or within a step; and asked before.
    let stops = false
    const save = async (row: Metrics | undefined) => {
      await loop.save(row)
      stops = true
    }
    await trainSft(trainer, data, { ...loop, maxSteps: 50, save, stopRequested: () => stops })
    expect([trainer.step, saves]).toEqual([45, 4])
    await trainSft(trainer, data, { ...loop, maxSteps: 50, stopRequested: () => trainer.step === 46 })
    expect([trainer.step, saves]).toEqual([46, 5])
    await trainSft(trainer, data, { ...loop, maxSteps: 50, stopRequested: () => true })
    expect([trainer.step, saves]).toEqual([46, 5])
  })
  const dir = join(folder, 'made')
  await writeWeights(dir, decoder, { rawConfig: made.rawConfig, tokenizer: made.tokenizer })
  const files = await openModel(dir)
  const again = await loadDecoder(await gpu, files)
  const score = (d: typeof decoder) => scoreSamples(d, samples, { temperature: 1, microBatchTokens: 99 })
  const [a, b] = [await score(decoder), await score(again)]
  // The gains were trained in float32 and are written in bf16.
  a.forEach((s, i) => s.logprobs.forEach((l, t) => expect(Math.abs(l - b[i].logprobs[t])).toBeLessThan(0.2)))
  expect((await files.tokenizer()).encodeChat([user('a')])).toEqual(tokenizer.encodeChat([user('a')]))
  expect(files.config).toEqual(made.config)
  again.release()
  decoder.release()
})

test('models/tiny is what ships: about 1M parameters, bf16, its tokenizer beside it', async () => {
  if (!existsSync('models/tiny/config.json'))
    throw new Error('models/tiny is missing: node cli.js sft @ configs/tiny-sft.toml --save-to models/tiny makes it')
  const files = await openModel('models/tiny')
  let parameters = 0
  for (const name of files.tensors.names()) {
    const tensor = await files.tensors.read(name)
    expect(tensor.dtype).toBe('bf16')
    parameters += tensor.data.length
  }
  expect(parameters).toBeGreaterThan(9e5)
  expect(parameters).toBeLessThan(1.2e6)
  expect((await files.tokenizer()).encodeChat([user('ab')])).toEqual([259, 97, 98, 257, 260])
  expect(JSON.parse(readFileSync('models/tiny/config.json', 'utf8'))).toMatchObject({ model_type: 'qwen3', eos_token_id: 257 })
})
