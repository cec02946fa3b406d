/** Each differentiable operation against finite differences of itself, at sizes that take the fast kernels and at odd ones. */
import { afterAll, afterEach, describe, expect, test } from 'vitest'
import { attention, rope, type RowLayout } from '../../src/autograd/ops/attention.ts'
import { siluGate } from '../../src/autograd/ops/elementwise.ts'
import { logprobHead, type HeadOutput } from '../../src/autograd/ops/head.ts'
import { linear, type Lora, type Projection } from '../../src/autograd/ops/linear.ts'
import { rmsNorm, rmsNormTurned } from '../../src/autograd/ops/norm.ts'
import { embedding, gather } from '../../src/autograd/ops/rows.ts'
import { ParameterStore, type Parameter } from '../../src/autograd/parameters.ts'
import { checkpoint, Tape } from '../../src/autograd/tape.ts'
import { Tensor } from '../../src/autograd/tensor.ts'
import { hashSeed, Random } from '../../src/common/random.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { releaseWeight, uploadWeight, weightView, type Weight } from '../../src/kernels/common/weight.ts'
import { groupByPrompt, listsByKey, listsByToken, pack } from '../../src/model/decoder/packed.ts'
import { rotaryTable } from '../../src/model/decoder/rope.ts'
import { seed } from '../seed.ts'
import { FiniteDifferences } from './finite-differences.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

const held: { release(): void }[] = []
afterEach(() => held.splice(0).forEach((h) => h.release()))

const hold = <T extends { release(): void }>(what: T): T => {
  held.push(what)
  return what
}
const put = (data: Float32Array | Uint32Array, label: string) => hold(gpu.upload(data, label))

function frozen(rows: number, columns: number): Weight {
  const random = new Random(hashSeed(seed, rows, columns))
  const values = Float32Array.from({ length: rows * columns }, () => random.normal() / Math.sqrt(columns))
  const weight = uploadWeight(gpu, 'W', rows, columns, values)
  held.push({ release: () => releaseWeight(weight) })
  return weight
}

/** A store of the given parameters; those with a shape of one number are vectors. */
function storeOf(shapes: Record<string, { rows: number; columns: number; shape?: number[] }>) {
  const store = hold(new ParameterStore(gpu))
  const byName: Record<string, Parameter> = {}
  for (const [name, { rows, columns, shape }] of Object.entries(shapes))
    byName[name] = store.declare(name, rows, columns, { shape })
  store.allocate()
  return { store, byName }
}

/** A parameter of one piece read as a weight: so that a change of the parameter changes the forward pass. */
const asWeight = (store: ParameterStore, p: Parameter) => weightView(p.name, store.value(p), p.rows, p.columns)

// (rows, inputs, outputs): all multiples of 8; then none of anything
const sizes = [
  [24, 32, 40],
  [13, 18, 21],
] as const

describe.each(sizes)('linear, %i rows, %i to %i', (rows, k, n) => {
  const name = `linear ${rows} ${k} ${n}`
  test('frozen, with bias and residual', async () => {
    const fd = new FiniteDifferences(gpu, name)
    const projection: Projection = { name: 'p', weight: frozen(n, k), bias: put(fd.normals(n), 'bias') }
    await fd.check({
      tensors: { x: [rows, k], residual: [rows, n] },
      forward: (tape, t) => linear(tape, t.x, projection, { residual: t.residual }),
    })
  })

  test('frozen, times a factor, with residual', async () => {
    const projection: Projection = { name: 'p', weight: frozen(n, k) }
    await new FiniteDifferences(gpu, `${name} factor`).check({
      tensors: { x: [rows, k], residual: [rows, n] },
      forward: (tape, t) => linear(tape, t.x, projection, { residual: t.residual, scale: 0.3 }),
    })
  })

  test('trained whole, times a factor, with residual', async () => {
    const parameters = storeOf({ weight: { rows: n, columns: k } })
    const { store, byName } = parameters
    const projection = { name: 'p', weight: asWeight(store, byName.weight), trained: { store, weight: byName.weight } }
    await new FiniteDifferences(gpu, `${name} factor trained`).check({
      tensors: { x: [rows, k], residual: [rows, n] },
      parameters,
      forward: (tape, t) => linear(tape, t.x, projection, { residual: t.residual, scale: 0.3 }),
    })
  })

  test.each([0, 0.25])('LoRA of a projection times a factor, dropout %d', async (dropout) => {
    const parameters = storeOf({ a: { rows: 8, columns: k }, b: { rows: n, columns: 8 } })
    const { store, byName } = parameters
    const lora: Lora = { store, a: byName.a, b: byName.b, rank: 8, scale: 1.5, dropout }
    const projection: Projection = { name: 'p', weight: frozen(n, k), lora }
    await new FiniteDifferences(gpu, `${name} factor lora ${dropout}`).check({
      tensors: { x: [rows, k], residual: [rows, n] },
      parameters,
      forward: (tape, t) => linear(tape, t.x, projection, { residual: t.residual, scale: 0.3, dropoutSeed: 7 }),
    })
  })

  test.each([1, 0.3])('trained whole, with bias, times %d', async (scale) => {
    const parameters = storeOf({ weight: { rows: n, columns: k }, bias: { rows: 1, columns: n, shape: [n] } })
    const { store, byName } = parameters
    const projection: Projection = {
      name: 'p',
      weight: asWeight(store, byName.weight),
      bias: store.value(byName.bias),
      trained: { store, weight: byName.weight, bias: byName.bias },
    }
    await new FiniteDifferences(gpu, `${name} trained`).check({
      tensors: { x: [rows, k], residual: [rows, n] },
      parameters,
      forward: (tape, t) => linear(tape, t.x, projection, { residual: t.residual, scale }),
    })
  })

  test.each([4, 8, 12])('LoRA of rank %i, with bias and residual', async (r) => {
    const fd = new FiniteDifferences(gpu, `${name} lora ${r}`)
    const rank = Math.ceil(r / 8) * 8
    const parameters = storeOf({ a: { rows: rank, columns: k, shape: [r, k] }, b: { rows: n, columns: rank, shape: [n, r] } })
    const { store, byName } = parameters
    const lora: Lora = { store, a: byName.a, b: byName.b, rank, scale: 1.5, dropout: 0 }
    const projection: Projection = { name: 'p', weight: frozen(n, k), bias: put(fd.normals(n), 'bias'), lora }
    const forward = (tape: Tape, t: Record<string, Tensor>) => linear(tape, t.x, projection, { residual: t.residual })
    await fd.check({ tensors: { x: [rows, k], residual: [rows, n] }, parameters, forward })
  })

  test('two projections of one input, whose gradients add up', async () => {
    const fd = new FiniteDifferences(gpu, `${name} shared`)
    const [a, b] = [frozen(n, k), frozen(n, k)].map((weight, i): Projection => ({ name: `p${i}`, weight }))
    await fd.check({
      tensors: { x: [rows, k] },
      forward: (tape, t) => {
        const [g, u] = [linear(tape, t.x, a), linear(tape, t.x, b)]
        const y = siluGate(tape, g, u)
        tape.done(g, u)
        return y
      },
    })
  })
})

describe.each([
  ['whole rows', 9, 24, 24],
  ['whole rows of an odd width', 7, 33, 33],
  ['each head of a row', 10, 24, 6],
])('rmsNorm over %s', (words, rows, columns, channels) => {
  const gains = () => {
    const parameters = storeOf({ gain: { rows: 1, columns: channels, shape: [channels] } })
    const { store, byName } = parameters
    return {
      parameters,
      norm: { name: 'norm', gain: store.value(byName.gain), channels, eps: 1e-5, trained: { store, gain: byName.gain } },
    }
  }
  test('alone', async () => {
    const { parameters, norm } = gains()
    const fd = new FiniteDifferences(gpu, words)
    await fd.check({ tensors: { x: [rows, columns] }, parameters, forward: (tape, t) => rmsNorm(tape, t.x, norm) })
  })
  test.runIf(channels === columns)('with a residual that is added behind it', async () => {
    const { parameters, norm } = gains()
    const fd = new FiniteDifferences(gpu, `${words} added`)
    const forward = (tape: Tape, t: Record<string, Tensor>) => rmsNorm(tape, t.x, norm, { residual: t.residual })
    await fd.check({ tensors: { x: [rows, columns], residual: [rows, columns] }, parameters, forward })
  })
  test('beside a residual path, whose gradient is there first', async () => {
    const { parameters, norm } = gains()
    const weight = frozen(columns, columns)
    const forward = (tape: Tape, t: Record<string, Tensor>) => {
      const normed = rmsNorm(tape, t.x, norm)
      const y = linear(tape, normed, { name: 'p', weight }, { residual: t.x })
      tape.done(normed)
      return y
    }
    await new FiniteDifferences(gpu, `${words} skip`).check({ tensors: { x: [rows, columns] }, parameters, forward })
  })
})

test.each([
  ['heads that the norm turns, gain trained', 16, true],
  ['heads that the norm turns', 16, false],
  ['heads too odd for it', 6, true],
] as const)('rmsNorm and rope over %s', async (words, headDim, isTrained) => {
  const [rows, heads] = [7, 3]
  const parameters = storeOf({ gain: { rows: 1, columns: headDim, shape: [headDim] } })
  const { store, byName } = parameters
  const ones = put(new Float32Array(headDim).fill(1.5), 'gain')
  const norm = isTrained
    ? { name: 'norm', gain: store.value(byName.gain), channels: headDim, eps: 1e-5, trained: { store, gain: byName.gain } }
    : { name: 'norm', gain: ones, channels: headDim, eps: 1e-5 }
  const frequencies = Float32Array.from({ length: headDim / 2 }, (_, i) => 1 / 10 ** i)
  const table = put(rotaryTable(frequencies, 16), 'table')
  const info = put(
    Uint32Array.from({ length: rows * 4 }, (_, i) => (i * 5) % 16),
    'info',
  )
  const forward = (tape: Tape, t: Record<string, Tensor>) => rmsNormTurned(tape, t.x, norm, { info }, table)
  const given = { tensors: { x: [rows, heads * headDim] as [number, number] }, forward }
  await new FiniteDifferences(gpu, words).check(isTrained ? { ...given, parameters } : given)
})

/** Rows of packed samples: three that share a prompt of 4 tokens, one alone, one of a single row. */
function packedRows() {
  const sample = (length: number, promptKey?: string) => ({
    ids: Int32Array.from({ length }, (_, i) => i),
    lossMask: new Uint8Array(length).fill(1, 1),
    inferenceLogprobs: new Float32Array(length),
    advantages: new Float32Array(length),
    promptKey,
    promptLength: promptKey ? 4 : undefined,
  })
  const samples = [sample(9, 'a'), sample(6, 'a'), sample(12, 'a'), sample(11), sample(2)]
  const packed = pack(samples, groupByPrompt(samples), 'all')
  const layout: RowLayout = { info: put(packed.info, 'info'), keyEnd: put(packed.keyEnd, 'key ends') }
  return { packed, layout }
}

test.each([
  [2, 8],
  [3, 6],
])('rope, %i heads of %i', async (heads, headDim) => {
  const { packed, layout } = packedRows()
  const table = put(
    rotaryTable(
      Float32Array.from({ length: headDim / 2 }, (_, i) => 10 ** -i),
      16,
    ),
    'rotary table',
  )
  const forward = (tape: Tape, t: Record<string, Tensor>) => rope(tape, t.x, layout, table, heads, headDim)
  const fd = new FiniteDifferences(gpu, `rope ${heads} ${headDim}`)
  await fd.check({ tensors: { x: [packed.rows, heads * headDim] }, consumes: ['x'], forward })
})

test.each([
  [2, 2, 8],
  [4, 2, 16],
  [6, 1, 6],
  [3, 1, 20],
])('attention with shared prompts, %i heads over %i, of %i', async (heads, kvHeads, headDim) => {
  const { packed, layout } = packedRows()
  const [q, kv]: [number, number][] = [
    [packed.rows, heads * headDim],
    [packed.rows, kvHeads * headDim],
  ]
  const forward = (tape: Tape, t: Record<string, Tensor>) => attention(tape, t.q, t.k, t.v, layout, { heads, kvHeads, headDim })
  await new FiniteDifferences(gpu, `attention ${heads} ${kvHeads} ${headDim}`).check({ tensors: { q, k: kv, v: kv }, forward })
})

test.each([
  [16, 32, 'silu'],
  [7, 13, 'silu'],
  [16, 32, 'gelu'],
  [7, 13, 'gelu'],
] as const)('siluGate, %i x %i: %s', async (rows, columns, gate) => {
  const fd = new FiniteDifferences(gpu, `${gate} ${rows}`)
  await fd.check({ tensors: { g: [rows, columns], u: [rows, columns] }, forward: (tape, t) => siluGate(tape, t.g, t.u, gate) })
})

test.each([
  [11, 16, 1],
  [5, 9, 1],
  [11, 16, 6.9375],
  [5, 9, 0.5],
])('embedding of %i tokens, %i wide, some of them often, times %f', async (tokens, width, scale) => {
  const ids = Uint32Array.of(3, 1, 3, 3, 0, 4, 1)
  const parameters = storeOf({ table: { rows: tokens, columns: width } })
  const { store, byName } = parameters
  const lists = listsByToken(ids)
  const on = {
    tokens: put(lists.tokens, 'tokens'),
    start: put(lists.start, 'starts'),
    source: put(lists.source, 'sources'),
    outs: lists.tokens.length,
  }
  const table = { weight: asWeight(store, byName.table), scale, trained: { store, weight: byName.table } }
  const buffer = put(ids, 'ids')
  const fd = new FiniteDifferences(gpu, `embedding ${tokens}`)
  await fd.check({ tensors: {}, parameters, forward: (tape) => embedding(tape, buffer, ids.length, table, on) })
})

test('gather, with a row taken twice and one never', async () => {
  const index = Uint32Array.of(4, 0, 0, 2, 5)
  const lists = listsByKey(index, 6)
  const on = { start: put(lists.start, 'starts'), source: put(lists.source, 'sources'), outs: 6 }
  const buffer = put(index, 'index')
  const fd = new FiniteDifferences(gpu, 'gather')
  await fd.check({ tensors: { x: [6, 12] }, forward: (tape, t) => gather(tape, t.x, buffer, index.length, on) })
})

describe.each([
  ['one slice', 10, 16, 61, 0.8, undefined],
  ['two slices of the vocabulary', 5, 12, 4103, 1.3, undefined],
  ['logits times a factor', 10, 16, 61, 0.8, 0.4],
] as const)('log-probability head, %s', (words, rows, k, vocabulary, temperature, scale) => {
  test.each(['loss known afterwards', 'loss in the same pass'])('%s', async (way) => {
    const parameters = storeOf({ head: { rows: vocabulary, columns: k } })
    const { store, byName } = parameters
    const head = { weight: asWeight(store, byName.head), scale, trained: { store, weight: byName.head } }
    const fd = new FiniteDifferences(gpu, `head ${words} ${way}`)
    const random = new Random(hashSeed(seed, words))
    const targets = put(
      Uint32Array.from({ length: rows }, (_, i) => (i === 0 ? vocabulary - 1 : random.int(vocabulary))),
      'targets',
    )
    let out: HeadOutput | undefined
    const weights = fd.normals(rows)
    const early = put(weights, 'dLoss/dlogprob')
    const same = way === 'loss in the same pass'
    await fd.check({
      tensors: { x: [rows, k] },
      parameters,
      forward: (tape, t) => {
        out = logprobHead(tape, t.x, head, targets, temperature, same && tape.recording ? () => early : undefined)
        return out.logprobs.keep()
      },
      backward: same ? undefined : (dy) => out!.backward(dy.buffer),
      projection: same ? weights : undefined,
      after: () => out!.release(),
    })
  })
})

describe("a gate's product is made again on the way back", () => {
  const [rows, k] = [9, 16]
  const parts = () => {
    const parameters = storeOf({ w: { rows: k, columns: k }, a: { rows: 8, columns: k }, b: { rows: k, columns: 8 } })
    const { store, byName } = parameters
    const [ofLora, ofOther] = [frozen(k, k), frozen(k, k)]
    const whole: Projection = {
      name: 'whole',
      weight: asWeight(store, byName.w),
      trained: { store, weight: byName.w },
    }
    const lora: Projection = {
      name: 'lora',
      weight: ofLora,
      lora: { store, a: byName.a, b: byName.b, rank: 8, scale: 0.5, dropout: 0 },
    }
    return { parameters, whole, lora, other: { name: 'other', weight: ofOther } }
  }

  test.each([false, true])('for a weight and an adapter; somebody else keeps it: %s', async (keeps) => {
    const { parameters, whole, lora, other } = parts()
    const norm = { name: 'norm', gain: put(new Float32Array(k).fill(1), 'gain'), channels: k, eps: 1e-5 }
    const forward = (tape: Tape, t: Record<string, Tensor>) => {
      const gated = siluGate(tape, t.g, t.u)
      const first = linear(tape, gated, whole)
      const second = linear(tape, gated, lora, { residual: first })
      tape.done(first)
      if (!keeps) {
        tape.done(gated)
        return second
      }
      const normed = rmsNorm(tape, gated, norm)
      tape.done(gated)
      const y = linear(tape, normed, other, { residual: second })
      tape.done(normed, second)
      return y
    }
    const tensors: Record<string, [number, number]> = { g: [rows, k], u: [rows, k] }
    await new FiniteDifferences(gpu, `gated ${keeps}`).check({ tensors, parameters, forward })
  })

  test('so it is not kept', () => {
    const { whole, lora } = parts()
    for (const projection of [whole, lora]) {
      const leaf = (label: string) => new Tensor(gpu.upload(new Float32Array(rows * k), label), rows, k, true)
      const tape = new Tape(gpu, true)
      const [g, u] = [leaf('g'), leaf('u')]
      const gated = siluGate(tape, g, u)
      const y = linear(tape, gated, projection)
      expect(gated.buffer.released).toBe(false)
      tape.done(gated)
      expect(gated.buffer.released).toBe(true)
      tape.done(y, g, u)
      tape.discard()
      gpu.flush()
    }
  })
})

describe('checkpoint', () => {
  const [rows, k] = [9, 16]
  /** Two blocks as a decoder has them: a norm, a gated product with LoRA, a residual path. */
  function blocks() {
    const parameters = storeOf({ a: { rows: 8, columns: k }, b: { rows: k, columns: 8 } })
    const { store, byName } = parameters
    const lora: Lora = { store, a: byName.a, b: byName.b, rank: 8, scale: 0.5, dropout: 0 }
    const [gate, up, down] = [frozen(k, k), frozen(k, k), frozen(k, k)]
    const norm = { name: 'norm', gain: put(new Float32Array(k).fill(1), 'gain'), channels: k, eps: 1e-5 }
    const block = (tape: Tape, x: Tensor) => {
      const normed = rmsNorm(tape, x, norm)
      const [g, u] = [
        linear(tape, normed, { name: 'gate', weight: gate, lora }),
        linear(tape, normed, { name: 'up', weight: up }),
      ]
      tape.done(normed)
      const gated = siluGate(tape, g, u)
      tape.done(g, u)
      const y = linear(tape, gated, { name: 'down', weight: down }, { residual: x })
      tape.done(gated)
      return y
    }
    return { parameters, block }
  }

  test('blocks computed again', async () => {
    const { parameters, block } = blocks()
    const forward = (tape: Tape, t: Record<string, Tensor>) => {
      const first = checkpoint(tape, t.x, block)
      const second = checkpoint(tape, first, block)
      tape.done(first)
      return second
    }
    await new FiniteDifferences(gpu, 'checkpoint').check({ tensors: { x: [rows, k] }, parameters, forward })
  })

  test('keeps less, and gives the same bits', async () => {
    const { parameters, block } = blocks()
    const values = new FiniteDifferences(gpu, 'bits')
    const [x, w] = [values.normals(rows * k), values.normals(rows * k)]
    for (const p of parameters.store.parameters) parameters.store.write(p, values.normals(p.rows * p.columns, 0.3))
    const run = async (wrap: boolean) => {
      parameters.store.zeroGradients()
      const leaf = new Tensor(gpu.upload(x, 'x'), rows, k, true)
      const tape = new Tape(gpu, true)
      const y = wrap ? checkpoint(tape, leaf, block) : block(tape, leaf)
      const kept = gpu.pool.bytesInUse
      const dy = new Tensor(gpu.upload(w, 'dy'), rows, k, false)
      tape.giveGrad(y, dy)
      tape.done(y, dy)
      tape.backward()
      const found = [await gpu.readF32(leaf.grad!.buffer, rows * k)]
      for (const p of parameters.store.parameters) found.push(await parameters.store.read(p, 'gradients'))
      leaf.grad!.drop()
      leaf.drop()
      return { found, kept }
    }
    const [plain, again] = [await run(false), await run(true)]
    expect(again.found).toEqual(plain.found)
    expect(again.kept).toBeLessThan(plain.kept)
  })

  test('a discarded tape gives everything back', () => {
    const { block } = blocks()
    const before = gpu.pool.bytesInUse
    const leaf = new Tensor(gpu.upload(new Float32Array(rows * k), 'x'), rows, k, true)
    const tape = new Tape(gpu, true)
    block(tape, leaf).drop()
    tape.discard()
    leaf.drop()
    expect(gpu.pool.bytesInUse).toBe(before)
  })
})
