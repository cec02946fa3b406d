/** AdamW with 8-bit moments: the map, the codes, the step, each against float64. */
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { BLOCK, codeOf, decode, encode, MAPS } from '../../src/kernels/optimizer/codes.ts'
import { adamw8bit, type AdamWStep } from '../../src/kernels/optimizer/optimizer.ts'
import { bounds, compare, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

const settings: Omit<AdamWStep, 'step'> = { learningRate: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-8, weightDecay: 0.1 }

/** Banks of `count` values in fresh state. */
function banks(start: Float32Array) {
  const count = start.length
  return {
    parameters: bench.up(start),
    gradients: bench.out(count),
    m: bench.up(new Uint32Array(count / 4)),
    v: bench.up(new Uint32Array(count / 4)),
    scale: bench.up(new Float32Array(count / 128)),
    norm: bench.up(Float32Array.of(1, 1, 1)),
  }
}

/** Codes and scales of both moments as they lie on the device. */
async function stateOf(t: ReturnType<typeof banks>, count: number) {
  const codes = async (buffer: typeof t.m) => new Uint8Array((await bench.words(buffer, count / 4)).slice().buffer)
  const pairs = await bench.down(t.scale, count / 128)
  const scales = (i: number) => Float32Array.from({ length: count / BLOCK }, (_, b) => pairs[2 * b + i])
  return { m: { codes: await codes(t.m), scales: scales(0) }, v: { codes: await codes(t.v), scales: scales(1) } }
}

/** Throws where a code is not the nearest one; a value that lies on the border but for rounding may have either. */
function checkCodes(got: Uint8Array, values: Float64Array, scales: Float32Array, signed: boolean): void {
  const map = signed ? MAPS.signed : MAPS.unsigned
  let onBorder = 0
  got.forEach((code, i) => {
    const x = values[i] / scales[Math.floor(i / BLOCK)]
    const want = codeOf(x, signed)
    if (code === want) return
    const border = (map[code] + map[want]) / 2
    if (Math.abs(code - want) !== 1 || Math.abs(x - border) > 2e-6 * Math.abs(border) + 1e-12)
      throw new Error(`value ${i}, ${x}: code ${code} instead of ${want}`)
    onBorder++
  })
  expect(onBorder).toBeLessThan(5 + got.length / 500)
}

describe('the map', () => {
  test('has the values that are published', () => {
    // From bitsandbytes 0.50.2, create_dynamic_map(signed), by number.
    const published: Record<'signed' | 'unsigned', [number, number][]> = {
      signed: [[0, -0.992968738], [1, -0.978906274], [63, -0.107031256], [64, -0.0985937491], [126, -5.50000038e-07], [127, 0], [128, 5.50000038e-07], [129, 3.25000019e-06], [130, 7.7499999e-06], [131, 2.12499981e-05], [158, 0.00971874967], [191, 0.107031256], [192, 0.12109375], [254, 0.992968738], [255, 1]], // prettier-ignore
      unsigned: [[0, 0], [1, 3.2500003e-07], [2, 7.7499999e-07], [3, 2.12499981e-06], [6, 8.87499937e-06], [7, 1.56249989e-05], [63, 0.010703126], [126, 0.0992968753], [127, 0.103515625], [190, 0.546484351], [254, 0.996484399], [255, 1]], // prettier-ignore
    }
    for (const kind of ['signed', 'unsigned'] as const) {
      expect(MAPS[kind].length).toBe(256)
      MAPS[kind].forEach((value, i) => i > 0 && expect(value).toBeGreaterThan(MAPS[kind][i - 1]))
      for (const [code, value] of published[kind])
        expect(Math.abs(MAPS[kind][code] - value)).toBeLessThanOrEqual(2e-7 * Math.abs(value))
    }
  })

  test('the host finds the nearest value', () => {
    for (const signed of [true, false]) {
      const map = signed ? MAPS.signed : MAPS.unsigned
      for (let i = 0; i < 2000; i++) {
        const x = 10 ** (-8 * bench.random.next()) * (signed && i % 2 ? -1 : 1)
        const distance = Math.min(...[...map].map((v, code) => (!signed && code === 0 ? Infinity : Math.abs(v - x))))
        expect(Math.abs(map[codeOf(x, signed)] - x)).toBe(distance)
      }
      const all = Uint8Array.from({ length: 256 }, (_, i) => i)
      const values = decode({ codes: all, scales: Float32Array.of(3) }, signed)
      expect(encode(values, signed)).toEqual({ codes: all, scales: Float32Array.of(3) })
      expect(codeOf(0, signed)).toBe(signed ? 127 : 0)
    }
    expect(codeOf(1e-30, false)).toBe(1)
  })
})

test('codes of a whole embedding are decoded outside of the heap of JavaScript', () => {
  const file = fileURLToPath(new URL('../../src/kernels/optimizer/codes.ts', import.meta.url))
  const program = `
    import { decode } from ${JSON.stringify(file)}
    const values = decode({ codes: new Uint8Array(2e7).fill(255), scales: new Float32Array(2e7 / 256).fill(3) }, true)
    console.log(values.length, values.at(-1))`
  const flags = ['--max-old-space-size=64', '--input-type=module', '-e', program]
  const { stdout } = spawnSync(process.execPath, flags, { encoding: 'utf8' })
  expect(stdout).toBe('20000000 3\n')
})

describe.each(modes)('$name', ({ facts, needs }) => {
  test.skipIf(needs === 'cpu' && !bench.cpu)('moments that do not move keep their codes, all 256 of them', async () => {
    await bench.run('8-bit, kept', facts, async () => {
      const t = banks(new Float32Array(2 * BLOCK))
      const codes = Uint8Array.from({ length: 2 * BLOCK }, (_, i) => (i * 77) % 256)
      for (const buffer of [t.m, t.v]) gpu.write(buffer, codes)
      gpu.write(t.gradients, new Float32Array(2 * BLOCK))
      gpu.write(t.scale, Float32Array.of(3e-7, 5e-13, 8, 0.1))
      // 1 - beta is 0, so what was read is what is written.
      adamw8bit(gpu, t, 2 * BLOCK, { ...settings, learningRate: 0, beta1: 1, beta2: 1, step: 1 })
      const { m, v } = await stateOf(t, 2 * BLOCK)
      expect(m).toEqual({ codes, scales: Float32Array.of(3e-7, 8) })
      expect(v).toEqual({ codes, scales: Float32Array.of(5e-13, 0.1).map(Math.fround) })
    })
  })

  test.skipIf(needs === 'cpu' && !bench.cpu)('steps: weights, scales and codes by float64 from the codes before', async () => {
    await bench.run('8-bit steps', facts, async () => {
      const count = 5 * BLOCK
      const start = bench.normals(count)
      const t = banks(start)
      let w = Float64Array.from(start)
      let before = await stateOf(t, count)
      for (let step = 1; step <= 6; step++) {
        // Blocks of very different sizes, values of very different sizes inside one, and a block of zeros.
        const gradient = bench.normals(count).map((g, i) => (i < BLOCK ? 0 : g * 10 ** (-Math.floor(i / BLOCK) - (i % 7))))
        const clip = step === 2 ? 0.25 : 1
        gpu.write(t.gradients, gradient)
        gpu.write(t.norm, Float32Array.of(1, clip, 1))
        adamw8bit(gpu, t, count, { ...settings, step })
        const { learningRate, beta1, beta2, eps, weightDecay } = settings
        const after = await stateOf(t, count)
        const value = (held: typeof before.m, signed: boolean, i: number) =>
          (signed ? MAPS.signed : MAPS.unsigned)[held.codes[i]] * held.scales[Math.floor(i / BLOCK)]
        const [m, v] = [new Float64Array(count), new Float64Array(count)]
        for (let i = 0; i < count; i++) {
          const g = gradient[i] * clip
          m[i] = beta1 * (step > 1 ? value(before.m, true, i) : 0) + (1 - beta1) * g
          v[i] = beta2 * (step > 1 ? value(before.v, false, i) : 0) + (1 - beta2) * g * g
          const denominator = Math.sqrt(v[i] / (1 - beta2 ** step)) + eps
          w[i] = w[i] * (1 - learningRate * weightDecay) - ((learningRate / (1 - beta1 ** step)) * m[i]) / denominator
        }
        await bench.check('w', t.parameters, w, 2e-6)
        w = Float64Array.from(await bench.down(t.parameters, count))
        for (const [held, values] of [[after.m, m], [after.v, v]] as const) {
          const most = Float64Array.from(held.scales, (_, b) => values.slice(b * BLOCK, (b + 1) * BLOCK).reduce((a, x) => Math.max(a, Math.abs(x)), 0))
          expect([held.scales[0], most[0]]).toEqual([0, 0])
          compare('scales', held.scales.map((s, b) => s / (most[b] || 1)), most.map((x) => (x ? 1 : 0)), bounds.sum)
        } // prettier-ignore
        checkCodes(after.m.codes.subarray(BLOCK), m.subarray(BLOCK), after.m.scales.subarray(1), true)
        checkCodes(after.v.codes.subarray(BLOCK), v.subarray(BLOCK), after.v.scales.subarray(1), false)
        before = after
      }
    })
  })
})

test('the same bits whatever the lanes', async () => {
  const runs: { w: Float32Array; state: Awaited<ReturnType<typeof stateOf>> }[] = []
  for (const { facts, needs } of modes) {
    if (needs === 'cpu' && !bench.cpu) continue
    await bench.run('8-bit, same bits', facts, async () => {
      const t = banks(bench.normals(4 * BLOCK))
      for (let step = 1; step <= 3; step++) {
        gpu.write(t.gradients, bench.normals(4 * BLOCK))
        adamw8bit(gpu, t, 4 * BLOCK, { ...settings, step })
      }
      runs.push({ w: await bench.down(t.parameters, 4 * BLOCK), state: await stateOf(t, 4 * BLOCK) })
    })
  }
  for (const other of runs.slice(1)) {
    sameBits('w', runs[0].w, other.w)
    expect(other.state).toEqual(runs[0].state)
  }
})

test('a value whose second moment is tiny beside its block takes no leap when its gradient stops', async () => {
  await bench.run('8-bit, no leap', {}, async () => {
    const t = banks(new Float32Array(BLOCK))
    const gradient = new Float32Array(BLOCK).fill(1e-4)
    gradient[0] = 1
    for (let step = 1; step <= 20; step++) {
      gpu.write(t.gradients, gradient)
      adamw8bit(gpu, t, BLOCK, { ...settings, weightDecay: 0, step })
      gradient.fill(0, 1)
      gradient[0] = 1
    }
    const { v } = await stateOf(t, BLOCK)
    expect(v.codes.every((code) => code > 0)).toBe(true)
    const w = await bench.down(t.parameters, BLOCK)
    // AdamW's steps are the learning rate at most, and so they must be here.
    for (const value of w) expect(Math.abs(value)).toBeLessThan(20.01 * settings.learningRate)
  })
})

test('nothing changes where the norm is not finite; parts of blocks are refused', async () => {
  await bench.run('8-bit, not finite', {}, async () => {
    const start = bench.normals(BLOCK)
    const t = banks(start)
    gpu.write(t.gradients, bench.normals(BLOCK).fill(NaN, 3, 4))
    gpu.write(t.norm, Float32Array.of(NaN, NaN, 0))
    adamw8bit(gpu, t, BLOCK, { ...settings, step: 1 })
    sameBits('w', await bench.down(t.parameters, BLOCK), start)
    const { m, v } = await stateOf(t, BLOCK)
    for (const held of [m, v]) expect(held).toEqual({ codes: new Uint8Array(BLOCK), scales: new Float32Array(1) })
    expect(() => adamw8bit(gpu, t, 100, { ...settings, step: 1 })).toThrow('whole blocks')
  })
})
