import { execFile } from 'node:child_process'
import { readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Command } from 'commander'
import { describe, expect, test } from 'vitest'
import { register } from '../../src/cli/merge.ts'
import { widenBf16 } from '../../src/model/bf16.ts'
import { mergeAdapter, writeMerged, writeModelFolder } from '../../src/model/files/export.ts'
import { Random } from '../../src/common/random.ts'
import { openModel } from '../../src/model/files/open.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import type { TensorData } from '../../src/model/types.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import type { ReadLoraPair } from '../../src/model/files/peft.ts'
import { tensorShapes } from '../../src/model/decoder/shapes.ts'
import { golden, newFolder, smollm2, userErrorOf, withoutSmollm2 } from './helpers.ts'

const dir = newFolder()
const model = (family: string) => join(golden, family, 'model')

describe('a merge', () => {
  test('is W + scale B A, element by element', () => {
    // B A = [[1 * 3 + 2 * 5, 1 * 4 + 2 * 6], [-1 * 3, -1 * 4]]
    const weight = { dtype: 'f32' as const, shape: [2, 2], data: Float32Array.of(10, 20, 30, 40) }
    const merged = mergeAdapter(weight, Float32Array.of(3, 4, 5, 6), Float32Array.of(1, 2, -1, 0), 0.5)
    expect([...merged.data]).toEqual([16.5, 28, 28.5, 38])
  })
  test('changes the layers that the adapter has, and no other bit', async () => {
    const base = await openModel(model('llama'))
    const adapter = await readAdapter(join(golden, 'llama/adapter'))
    const out = join(dir, 'merged')
    await writeMerged(out, base, adapter)
    const merged = await openModel(out)
    expect(merged.config).toEqual(base.config)
    expect(merged.tensors.names().toSorted()).toEqual([...tensorShapes(base.config).keys()].toSorted())
    for (const name of merged.tensors.names()) {
      const before = await base.tensors.read(name)
      const after = await merged.tensors.read(name)
      const pair = adapter.tensors.get(name.replace('.weight', ''))
      if (!pair) expect(after).toEqual(before)
      else expect(largestError(valuesOf(before), valuesOf(after), pair)).toBeLessThan(2 ** -8)
    }
    base.close()
    merged.close()
  })
  test('keeps the dtype of each tensor in the files, and the bits of those that the adapter has not', async () => {
    const base = await openModel(model('llama'))
    const random = new Random(1)
    const dtypes = { BF16: 'bf16', F16: 'f16', F32: 'f32' } as const
    const dtypeOf = (name: string, matrices: keyof typeof dtypes) => (name.includes('norm') ? 'F32' : matrices)
    for (const matrices of ['BF16', 'F16', 'F32'] as const) {
      const made = [...tensorShapes(base.config)].map(([name, shape]) => ({
        name,
        dtype: dtypes[dtypeOf(name, matrices)],
        shape,
        read: () => ({
          dtype: 'f32' as const,
          shape,
          data: Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => random.next() - 0.5),
        }),
      }))
      const [from, to] = ['from', 'to'].map((word) => join(dir, `${word}-${matrices}`))
      await writeModelFolder(from, { rawConfig: base.rawConfig(), tensors: made })
      const adapter = await readAdapter(join(golden, 'llama/adapter'))
      for (const path of adapter.tensors.keys()) if (!path.endsWith('up_proj')) adapter.tensors.delete(path)
      await writeMerged(to, await openModel(from), adapter)
      const [before, after] = [
        await openSafetensors(join(from, 'model.safetensors')),
        await openSafetensors(join(to, 'model.safetensors')),
      ]
      for (const name of tensorShapes(base.config).keys()) {
        expect(after.dtype(name)).toBe(dtypeOf(name, matrices))
        const pair = adapter.tensors.get(name.replace('.weight', ''))
        if (!pair) expect(await after.readRaw(name)).toEqual(await before.readRaw(name))
        else
          expect(largestError((await before.readFloat32(name)).data, (await after.readFloat32(name)).data, pair)).toBeLessThan(
            { BF16: 2 ** -8, F16: 2 ** -11, F32: 2 ** -23 }[matrices],
          )
      }
      const words = { BF16: 'bfloat16', F16: 'float16', F32: 'float32' }
      expect((await openModel(to)).rawConfig()).toMatchObject({ dtype: words[matrices] })
    }
    base.close()
  })
  test('with an adapter for another model is refused, and nothing is left', async () => {
    const base = await openModel(model('qwen2'))
    const adapter = await readAdapter(join(golden, 'qwen3/adapter'))
    expect(await userErrorOf(() => writeMerged(join(dir, 'wrong'), base, adapter))).toContain('is for another model')
    expect(readdirSync(dir).filter((name) => name.startsWith('wrong'))).toEqual([])
    base.close()
  })
  test('with an adapter that is not finite is refused, and nothing is left', async () => {
    const base = await openModel(model('qwen3'))
    const adapter = await readAdapter(join(golden, 'qwen3/adapter'))
    const path = 'model.layers.1.mlp.up_proj'
    adapter.tensors.get(path)!.B[3] = NaN
    expect(await userErrorOf(() => writeMerged(join(dir, 'nan'), base, adapter))).toContain(
      `holds a value that is not finite (${path})`,
    )
    expect(readdirSync(dir).filter((name) => name.startsWith('nan'))).toEqual([])
    base.close()
  })
  test('whose sums are beyond the dtype is refused; a weight of the model itself that is not finite is written, with a warning', async () => {
    const base = await openModel(model('qwen3'))
    const from = join(dir, 'half')
    const bad = 'model.norm.weight'
    const tensors = [...tensorShapes(base.config)].map(([name, shape]) => ({
      name,
      dtype: 'f16' as const,
      shape,
      read: async () => {
        const data = Float32Array.from(valuesOf(await base.tensors.read(name)))
        if (name === bad) data[1] = NaN
        return { dtype: 'f32' as const, shape: [...shape], data }
      },
    }))
    await writeModelFolder(from, { rawConfig: base.rawConfig(), tensors })
    const half = await openModel(from)
    const warnings: string[] = []
    const warn = (line: string) => warnings.push(line)
    await writeMerged(join(dir, 'warned'), half, null, { warn })
    expect(warnings).toEqual([
      `${bad} of half holds 1 of 64 values that are not finite in float16; they are written as they are.`,
    ])
    const adapter = await readAdapter(join(golden, 'qwen3/adapter'))
    const path = 'model.layers.1.mlp.up_proj'
    adapter.tensors.get(path)!.B.fill(1e9)
    expect(await userErrorOf(() => writeMerged(join(dir, 'over'), half, adapter))).toMatch(
      /^The merged model\.layers\.1\.mlp\.up_proj\.weight holds \d+ of \d+ values that are not finite in float16\.$/,
    )
    expect(readdirSync(dir).filter((name) => name.startsWith('over'))).toEqual([])
    half.close()
    base.close()
  })
  test('of a model that says that its head is tied and has another one is refused: the head would be lost', async () => {
    const folder = join(dir, 'other-head')
    const untied = await openModel(model('llama'))
    expect(untied.config.tieWordEmbeddings).toBe(false)
    await writeMerged(folder, untied, null)
    untied.close()
    const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8')) as Record<string, unknown>
    writeFileSync(join(folder, 'config.json'), JSON.stringify({ ...config, tie_word_embeddings: true }))
    const base = await openModel(folder)
    expect(await userErrorOf(() => writeMerged(join(dir, 'lost'), base, null))).toContain('lm_head.weight is another matrix')
    expect(readdirSync(dir).filter((name) => name.startsWith('lost'))).toEqual([])
    base.close()
  })
})

const valuesOf = ({ dtype, data }: TensorData) => (dtype === 'f32' ? data : widenBf16(data))

/** The largest relative error of the merged weights against W + scale B A in float64. */
function largestError(w: Float32Array, m: Float32Array, { A, B, r, scale, inputs, outputs }: ReadLoraPair): number {
  let worst = 0
  for (let o = 0; o < outputs; o++) {
    for (let i = 0; i < inputs; i++) {
      let sum = w[o * inputs + i]
      for (let k = 0; k < r; k++) sum += scale * B[o * r + k] * A[k * inputs + i]
      worst = Math.max(worst, Math.abs(m[o * inputs + i] - sum) / (Math.abs(sum) + 1e-30))
    }
  }
  return worst
}

describe('a written model', () => {
  test('in shards: an index, sizes under the limit, the same tensors', async () => {
    const base = await openModel(model('qwen3'))
    const tensors = base.tensors
      .names()
      .map((name) => ({ name, dtype: 'bf16' as const, shape: base.tensors.shape(name), read: () => base.tensors.read(name) }))
    const out = join(dir, 'shards')
    await writeModelFolder(
      out,
      { rawConfig: base.rawConfig(), rawGenerationConfig: base.rawGenerationConfig, tensors },
      { shardBytes: 70_000 },
    )
    const files = readdirSync(out)
    const shards = files.filter((name) => /^model-0000\d-of-0000\d\.safetensors$/.test(name))
    expect(shards.length).toBeGreaterThan(2)
    expect(files).toContain('generation_config.json')
    for (const shard of shards) expect(statSync(join(out, shard)).size).toBeLessThan(70_000 + 4096)
    const index = JSON.parse(readFileSync(join(out, 'model.safetensors.index.json'), 'utf8')) as {
      weight_map: object
      metadata: object
    }
    expect(Object.keys(index.weight_map).toSorted()).toEqual(base.tensors.names().toSorted())
    const again = await openModel(out)
    expect(again.config).toEqual(base.config)
    for (const name of base.tensors.names()) expect(await again.tensors.read(name)).toEqual(await base.tensors.read(name))
    again.close()
    base.close()
  })
  test('in float32 says so, and is read back as bf16 where that is exact', async () => {
    const base = await openModel(model('qwen2'))
    const tensors = base.tensors
      .names()
      .map((name) => ({ name, dtype: 'f32' as const, shape: base.tensors.shape(name), read: () => base.tensors.read(name) }))
    const out = join(dir, 'f32')
    await writeModelFolder(out, { rawConfig: base.rawConfig(), tensors })
    const again = await openModel(out)
    expect(again.rawConfig()).toMatchObject({ dtype: 'float32', torch_dtype: 'float32' })
    for (const name of base.tensors.names()) expect(await again.tensors.read(name)).toEqual(await base.tensors.read(name))
    again.close()
    base.close()
  })
})

describe('the verb merge', () => {
  const run = (...words: string[]) => {
    const program = new Command().exitOverride().configureOutput({ writeErr: () => {} })
    register(program)
    return program.parseAsync(['merge', ...words], { from: 'user' })
  }
  test('writes the folder, and refuses one that is there', async () => {
    const out = join(dir, 'verb')
    const words = ['--model', model('qwen3'), '--adapter', join(golden, 'qwen3/adapter'), '--out', out]
    await run(...words)
    expect(readdirSync(out).toSorted()).toEqual(['config.json', 'generation_config.json', 'model.safetensors'])
    expect(await userErrorOf(() => run(...words))).toBe(
      `--out ${out} exists already. Name another folder, or replace this one with --force.`,
    )
    expect(await userErrorOf(() => run(...words.slice(0, -1), dir))).toBe(
      `--out is ${dir}, which holds something other than a model. Name another folder.`,
    )
    await run(...words, '--force')
    await expect(run('--model', 'x')).rejects.toThrow('--out')
  })
  test.skipIf(withoutSmollm2)('of SmolLM2 from its GGUF: a folder with its tokenizer', { timeout: 300_000 }, async () => {
    const out = join(dir, 'smollm2')
    await run('--model', smollm2, '--adapter', join(golden, 'smollm2/adapter'), '--out', out)
    const merged = await openModel(out)
    const gguf = await openModel(smollm2)
    expect(merged.config).toEqual(gguf.config)
    expect((await merged.tokenizer()).encode('12 <|im_end|>')).toEqual((await gguf.tokenizer()).encode('12 <|im_end|>'))
    const norm = 'model.layers.7.input_layernorm.weight'
    expect(await merged.tensors.read(norm)).toEqual(await gguf.tensors.read(norm))
    merged.close()
    gguf.close()
  })
})

test('a closed file can be removed and a reader leaves no handle behind', async () => {
  // Run apart: the process must end by itself once the model is closed.
  const script = `const { openModel } = await import(${JSON.stringify(new URL('../../src/model/files/open.ts', import.meta.url).href)})
    const m = await openModel(${JSON.stringify(model('llama'))}); await m.tensors.read('model.norm.weight'); m.close(); console.log('done')`
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], { timeout: 60_000 })
  expect(stdout).toBe('done\n')
})
