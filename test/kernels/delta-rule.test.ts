/** The gated delta rule beside its recurrence in float64, forward and backward, and over a cache. */
import { expect, test } from 'vitest'
import { Size } from '../../src/gpu/size.ts'
import { deltaRule, deltaRuleBackward, type DeltaShape } from '../../src/kernels/delta-rule/delta-rule.ts'
import { bounds, compare, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

/** Other adapters differ in the lines of a state that a workgroup has. */
const some = modes.slice(0, 2)

const shapes: (DeltaShape & { name: string; lengths: number[] })[] = [
  { name: 'a head', keyHeads: 1, heads: 1, keyDim: 8, valueDim: 8, lengths: [5] },
  { name: 'heads that share keys', keyHeads: 2, heads: 4, keyDim: 16, valueDim: 8, lengths: [1, 3, 17, 2] },
  { name: 'wider values than keys', keyHeads: 1, heads: 3, keyDim: 12, valueDim: 36, lengths: [9, 20, 1] },
  { name: 'as Qwen3.5 has', keyHeads: 1, heads: 2, keyDim: 128, valueDim: 128, lengths: [33, 2] },
]

interface Inputs {
  q: Float32Array
  k: Float32Array
  v: Float32Array
  decay: Float32Array
  beta: Float32Array
}

/** q and k of length 1, as the layer gives them; decays from none to almost everything, step sizes from 0 to 1. */
function inputsOf({ keyHeads, heads, keyDim, valueDim }: DeltaShape, rows: number): Inputs {
  const unit = (values: Float32Array) => {
    for (let at = 0; at < values.length; at += keyDim) {
      const part = values.subarray(at, at + keyDim)
      const length = Math.hypot(...part)
      part.forEach((value, i) => (part[i] = value / length))
    }
    return values
  }
  const least = [0, -30, -0.01, -0.5, -2]
  return {
    q: unit(bench.normals(rows * keyHeads * keyDim)),
    k: unit(bench.normals(rows * keyHeads * keyDim)),
    v: bench.normals(rows * heads * valueDim),
    decay: Float32Array.from({ length: rows * heads }, () => least[bench.random.int(least.length)] * bench.random.next()),
    beta: Float32Array.from({ length: rows * heads }, () => [0, 1, bench.random.next()][bench.random.int(3)]),
  }
}

/** `reads`: of each token and head the squares of what dDecay adds up (flow.wgsl), which are what it reads of the state and what is read of what it writes. */
type Found = Record<'o' | 'u' | 'dq' | 'dk' | 'dv' | 'dDecay' | 'dBeta' | 'reads', Float64Array>

/** The recurrence and what goes back through it, step by step with every state kept. */
function reference(shape: DeltaShape, lengths: number[], x: Inputs, dO: ArrayLike<number>): Found {
  const { keyHeads, heads, keyDim: K, valueDim: V } = shape
  const rows = lengths.reduce((a, b) => a + b, 0)
  const [ofKeys, ofValues, ofHeads] = [rows * keyHeads * K, rows * heads * V, rows * heads]
  const zeros = (n: number) => new Float64Array(n)
  const out: Found = {
    o: zeros(ofValues), u: zeros(ofValues), dq: zeros(ofKeys), dk: zeros(ofKeys), dv: zeros(ofValues), dDecay: zeros(ofHeads), dBeta: zeros(ofHeads),
    reads: zeros(ofHeads),
  } // prettier-ignore
  for (let h = 0; h < heads; h++) {
    const keyHead = Math.floor(h / (heads / keyHeads))
    let begin = 0
    for (const length of lengths) {
      const states = [zeros(K * V)]
      const at = (t: number) => ({
        key: ((begin + t) * keyHeads + keyHead) * K,
        value: ((begin + t) * heads + h) * V,
        head: (begin + t) * heads + h,
      })
      for (let t = 0; t < length; t++) {
        const { key, value, head } = at(t)
        const s = states[t].map((entry) => entry * Math.exp(x.decay[head]))
        for (let c = 0; c < V; c++) {
          let found = 0
          for (let i = 0; i < K; i++) found += x.k[key + i] * s[i * V + c]
          out.u[value + c] = x.v[value + c] - found
        }
        for (let i = 0; i < K; i++) for (let c = 0; c < V; c++) s[i * V + c] += x.k[key + i] * x.beta[head] * out.u[value + c]
        for (let c = 0; c < V; c++) for (let i = 0; i < K; i++) out.o[value + c] += x.q[key + i] * s[i * V + c]
        states.push(s)
      }
      const ds = zeros(K * V)
      for (let t = length - 1; t >= 0; t--) {
        const { key, value, head } = at(t)
        const keeps = Math.exp(x.decay[head])
        for (let i = 0; i < K; i++) {
          for (let c = 0; c < V; c++) {
            const read = states[t + 1][i * V + c] * dO[value + c]
            ds[i * V + c] += x.q[key + i] * dO[value + c]
            const readBy = ds[i * V + c] * x.beta[head] * out.u[value + c]
            out.dq[key + i] += read
            out.dk[key + i] += readBy
            out.reads[head] += (x.q[key + i] * read) ** 2 + (x.k[key + i] * readBy) ** 2
          }
        }
        for (let c = 0; c < V; c++) {
          let written = 0
          for (let i = 0; i < K; i++) written += x.k[key + i] * ds[i * V + c]
          out.dBeta[head] += written * out.u[value + c]
          const moved = x.beta[head] * written
          out.dv[value + c] = moved
          for (let i = 0; i < K; i++) {
            out.dk[key + i] -= keeps * states[t][i * V + c] * moved
            ds[i * V + c] -= x.k[key + i] * moved
          }
        }
        for (let e = 0; e < K * V; e++) {
          out.dDecay[head] += ds[e] * keeps * states[t][e]
          ds[e] *= keeps
        }
      }
      begin += length
    }
  }
  return out
}

const keyEndOf = (lengths: number[]): Uint32Array => {
  let end = 0
  return Uint32Array.from(lengths.flatMap((length) => Array<number>(length).fill((end += length))))
}

const sum = (lengths: number[]) => lengths.reduce((a, b) => a + b, 0)

test('the gradients of the reference are those of its output, by differences', () => {
  const { lengths, ...shape } = shapes[1]
  const x = inputsOf(shape, sum(lengths))
  const dO = bench.normals(x.v.length)
  const found = reference(shape, lengths, x, dO)
  const names = { q: 'dq', k: 'dk', v: 'dv', decay: 'dDecay', beta: 'dBeta' } as const
  for (const [name, gradient] of Object.entries(names) as [keyof Inputs, keyof Found][]) {
    const direction = Float64Array.from(x[name], () => bench.random.normal())
    const loss = (step: number) => {
      const moved = { ...x, [name]: Float64Array.from(x[name], (value, i) => value + step * direction[i]) } as unknown as Inputs
      return reference(shape, lengths, moved, dO).o.reduce((total, o, i) => total + o * dO[i], 0)
    }
    const want = found[gradient].reduce((total, g, i) => total + g * direction[i], 0)
    expect((loss(1e-5) - loss(-1e-5)) / 2e-5).toBeCloseTo(want, 4)
  }
})

test.each(some)('forward and backward: $name', async ({ facts }) => {
  // The widest takes a CPU's compiler seconds a kernel.
  for (const { name, lengths, ...shape } of facts === modes[0].facts ? shapes : shapes.slice(0, 3)) {
    await bench.run(`delta rule, ${name}`, facts, async () => {
      const rows = sum(lengths)
      const x = inputsOf(shape, rows)
      const dO = bench.normals(x.v.length)
      const want = reference(shape, lengths, x, dO)
      const { q, k, v, decay, beta } = x
      const inputs = { q: bench.up(q), k: bench.up(k), v: bench.up(v), decay: bench.up(decay), beta: bench.up(beta) }
      const keyEnd = bench.up(keyEndOf(lengths))
      const [o, u] = [bench.out(v.length), bench.out(v.length)]
      deltaRule(gpu, { ...inputs, o, u }, { keyEnd }, rows, shape)
      await bench.check('o', o, want.o, bounds.sum)
      await bench.check('u', u, want.u, bounds.sum)
      const alone = bench.out(v.length)
      deltaRule(gpu, { ...inputs, o: alone }, { keyEnd }, rows, shape)
      sameBits('o of a pass that keeps nothing', await bench.down(o, v.length), await bench.down(alone, v.length))

      const ofHeads = rows * shape.heads * shape.keyDim
      const [dq, dk, dv, dDecay, dBeta] = [q, k, v, decay, beta].map(({ length }) => bench.out(length))
      const [dd, moved] = [bench.out(v.length), bench.out(v.length)]
      const [ofQ, read, written] = [bench.out(ofHeads), bench.out(ofHeads), bench.out(ofHeads)]
      const scratch = { dd, moved, ofQ, read, written, flow: bench.out(decay.length) }
      const given = { ...inputs, keyEnd, u, dO: bench.up(dO) }
      deltaRuleBackward(gpu, { ...given, dq, dk, dv, dDecay, dBeta, ...scratch }, rows, shape)
      for (const [buffer, gradient] of [
        [dq, 'dq'],
        [dk, 'dk'],
        [dv, 'dv'],
        [dBeta, 'dBeta'],
      ] as const)
        // prettier-ignore
        await bench.check(gradient, buffer, want[gradient], bounds.softmax)
      // Of five tokens none may find anything in the state (it decays at once, or no step before has a size): their sums cancel.
      const reads = Math.sqrt(want.reads.reduce((a, b) => a + b))
      await bench.check('dDecay', dDecay, want.dDecay, bounds.softmax, lengths.length === 1 ? reads : undefined)
    })
  }
})

test.each(some)('over a cache, in pieces, with the bits of whole sequences: $name', async ({ facts }) => {
  // The widest takes a CPU's compiler seconds a kernel.
  for (const { name, lengths, ...shape } of facts === modes[0].facts ? shapes : shapes.slice(0, 3)) {
    await bench.run(`delta rule over a cache, ${name}`, facts, async () => {
      const { keyHeads, heads, keyDim, valueDim } = shape
      const rows = sum(lengths)
      const x = inputsOf(shape, rows)
      const upAll = (part: Inputs) => ({
        q: bench.up(part.q), k: bench.up(part.k), v: bench.up(part.v), decay: bench.up(part.decay), beta: bench.up(part.beta),
      }) // prettier-ignore
      const whole = bench.out(x.v.length)
      deltaRule(gpu, { ...upAll(x), o: whole }, { keyEnd: bench.up(keyEndOf(lengths)) }, rows, shape)
      const want = await bench.down(whole, x.v.length)

      // Slots are poison where nothing was kept. All sequences go on by 1, 2, 3 .. tokens a pass, those that come first last.
      const states = bench.out((lengths.length + 2) * heads * keyDim * valueDim)
      const slotOf = (sequence: number) => lengths.length - sequence
      const got = new Float32Array(want.length)
      const done = lengths.map(() => 0)
      for (let count = 1; done.some((n, i) => n < lengths[i]); count++) {
        const runs: number[] = []
        const sources: number[] = []
        for (let i = lengths.length - 1; i >= 0; i--) {
          const n = Math.min(count, lengths[i] - done[i])
          const first = sources.length
          for (let t = 0; t < n; t++) {
            runs.push(slotOf(i), first, n, Number(done[i] > 0))
            sources.push(sum(lengths.slice(0, i)) + done[i] + t)
          }
          done[i] += n
        }
        const part = (values: Float32Array, width: number) =>
          Float32Array.from(sources.flatMap((row) => [...values.subarray(row * width, (row + 1) * width)]))
        const keys = keyHeads * keyDim
        const values = heads * valueDim
        const inputs = upAll({ q: part(x.q, keys), k: part(x.k, keys), v: part(x.v, values), decay: part(x.decay, heads), beta: part(x.beta, heads) }) // prettier-ignore
        const o = bench.out(sources.length * values)
        deltaRule(gpu, { ...inputs, o }, { runs: bench.up(Uint32Array.from(runs)), states }, sources.length, shape)
        const found = await bench.down(o, sources.length * values)
        sources.forEach((row, i) => got.set(found.subarray(i * values, (i + 1) * values), row * values))
      }
      sameBits('o', got, want)
    })
  }
})

test('a plan for more rows', async () => {
  await bench.run('delta rule, plan', {}, async () => {
    const { lengths, ...shape } = shapes[1]
    const capacity = 64
    const rows = sum(lengths)
    const x = inputsOf(shape, capacity)
    const { q, k, v, decay, beta } = x
    const inputs = { q: bench.up(q), k: bench.up(k), v: bench.up(v), decay: bench.up(decay), beta: bench.up(beta) }
    const keyEnd = bench.up(Uint32Array.from({ length: capacity }, (_, i) => keyEndOf(lengths)[i] ?? 0))
    const o = bench.out(v.length)
    const arena: never[] = []
    const plan = gpu.record(() => deltaRule(gpu, { ...inputs, o }, { keyEnd }, Size.of('rows', capacity), shape), arena)
    gpu.replay(plan, { rows })
    const count = rows * shape.heads * shape.valueDim
    const want = reference(shape, lengths, x, new Float64Array(v.length)).o
    compare('o', new Float32Array(await gpu.read(o), 0, count), want.subarray(0, count), bounds.sum)
    gpu.releasePlan(plan)
  })
})
