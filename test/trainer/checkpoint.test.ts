/** Checkpoints: the numbers of a resumed run, what counts as whole, and what is refused. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test, vi } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { TrainingBatch } from '../../src/common/types.ts'
import { checkpointBytes, folderBytes } from '../../src/config/disk.ts'
import { parseConfig } from '../../src/config/load.ts'
import { loadDecoder, type LoadOptions } from '../../src/model/decoder/load.ts'
import { decode } from '../../src/kernels/optimizer/codes.ts'
import { widenBf16 } from '../../src/model/bf16.ts'
import { writeModelFolder } from '../../src/model/files/export.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import type { TensorData, TensorSource } from '../../src/model/types.ts'
import { Uploads } from '../../src/model/decoder/uploads.ts'
import { MOMENTS } from '../../src/trainer/optimizer.ts'
import {
  loadCheckpoint,
  newestCheckpoint,
  newestIntact,
  saveCheckpoint,
  tidyCheckpoints,
  type WeightsAbout,
  writeWeights,
} from '../../src/trainer/checkpoint.ts'
import { writeSamplerWeights } from '../../src/trainer/sampler-weights.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { fixtures } from '../golden/cases.ts'
import { distance, freshLora, goldenPath, loraConfig, openCase, readAll, tempFolder, trainerOptions } from './helpers.ts'
import { pointed } from '../windows.ts'
import { freshGpu } from '../gpu/fresh.ts'

const folder = tempFolder()

/** Everything that a process makes when it starts: device, model, trainer. */
async function start(
  name: string,
  load: LoadOptions,
  moments?: '8bit',
): Promise<{ trainer: Trainer; about: WeightsAbout; end: () => void }> {
  const device = await freshGpu()
  const files = await openModel(goldenPath(name, 'model'))
  const decoder = await loadDecoder(device, files, load)
  const schedule = { type: 'cosine' as const, learningRate: 3e-3, warmupSteps: 1, maxSteps: 6 }
  const options = await trainerOptions(folder, { schedule, microBatchTokens: 64 })
  const trainer = new Trainer(decoder, { ...options, optimizer: { ...options.optimizer, moments } })
  const about = {
    lora: load.full ? undefined : loraConfig,
    rawConfig: files.rawConfig(),
    rawGenerationConfig: files.rawGenerationConfig,
  }
  return {
    trainer,
    about,
    end: () => {
      trainer.release()
      decoder.release()
      device.close()
    },
  }
}

/** Another batch each step. */
const batchAt = (batch: TrainingBatch, step: number): TrainingBatch => ({
  ...batch,
  step,
  samples: batch.samples.map((s) => ({ ...s, advantages: s.advantages.map((a) => a * Math.cos(step)) })),
})

describe.each([
  { name: 'llama', kind: 'adapter with dropout', load: freshLora(undefined, 0.2) },
  { name: 'qwen3', kind: 'all weights', load: { full: true } },
  { name: 'qwen2', kind: 'adapter, 8-bit moments', load: freshLora(), moments: '8bit' as const },
  { name: 'llama', kind: 'all weights, 8-bit moments', load: { full: true }, moments: '8bit' as const },
])('$kind', ({ name, load, moments }) => {
  test('4 steps are 2 steps, a checkpoint, a new process and 2 steps, bit for bit', async () => {
    const { batch } = await openCase(name)
    const root = join(folder, `resume-${name}-${moments}`)
    const straight = await start(name, load, moments)
    for (let step = 1; step <= 4; step++) await straight.trainer.trainStep(batchAt(batch, step))
    const want = await readAll(straight.trainer.decoder)
    straight.end()

    const first = await start(name, load, moments)
    for (let step = 1; step <= 2; step++) await first.trainer.trainStep(batchAt(batch, step))
    const dir = await saveCheckpoint(root, first.trainer, first.about, {
      keep: { last: 3 },
      extra: { position: 17, random: 123456 },
    })
    const saved = await readAll(first.trainer.decoder)
    const args = `use_lora = ${'lora' in load}\nlora_rank = 4\noptim = "${moments ? 'adamw_8bit' : 'adamw_torch'}"`
    const { config } = parseConfig(`model = "x"\n[env]\nid = "reverse-text"\n[trainer.args]\n${args}`)
    const model = first.trainer.decoder.config
    // What a run is told of before it begins (config/disk.ts), less a tokenizer, which there is none of here.
    const foretold = checkpointBytes(config, model, dir) - 32 * model.vocabSize
    expect(Math.abs(foretold / folderBytes(dir) - 1)).toBeLessThan(0.03)
    first.end()

    const second = await start(name, load, moments)
    const state = await loadCheckpoint(dir, second.trainer, second.about)
    expect(state.extra).toEqual({ position: 17, random: 123456 })
    expect(second.trainer.step).toBe(2)
    expect(await readAll(second.trainer.decoder)).toEqual(saved)
    for (let step = 3; step <= 4; step++) await second.trainer.trainStep(batchAt(batch, step))
    expect(await readAll(second.trainer.decoder)).toEqual(want)
    second.end()
  })
})

test('what is read of a checkpoint waits on the device in bounds, not all of it at once', async () => {
  const root = join(folder, 'bounds')
  const { trainer, about, end } = await start('llama', { full: true })
  const dir = await saveCheckpoint(root, trainer, about, { keep: { last: 1 } })
  const [room, add] = [vi.spyOn(Uploads.prototype, 'room'), vi.spyOn(Uploads.prototype, 'add')]
  await loadCheckpoint(dir, trainer, about)
  const { parameters, size } = trainer.decoder.store!
  expect(room).toHaveBeenCalledTimes(parameters.length)
  expect(add.mock.calls.reduce((sum, [bytes]) => sum + bytes, 0)).toBe(12 * size)
  for (const spy of [room, add]) spy.mockRestore()
  end()
})

test('the counts of a run go on: of steps, of updates, and of the last steps in a row that were not finite', async () => {
  const root = join(folder, 'counts')
  const { trainer, about, end } = await start('llama', freshLora())
  const counts = () => [trainer.step, trainer.optimizer.steps, trainer.badSteps]
  const set = (step: number, updates: number, bad: number) => {
    Object.assign(trainer, { step, badSteps: bad })
    trainer.optimizer.steps = updates
  }
  set(5, 7, 2)
  const dir = await saveCheckpoint(root, trainer, about, { keep: { last: 1 } })
  set(0, 0, 0)
  await loadCheckpoint(dir, trainer, about)
  expect(counts()).toEqual([5, 7, 2])
  end()
})

test('8-bit moments in the file: codes and scales under clear names, a quarter of the bytes', async () => {
  const { batch } = await openCase('llama')
  const { trainer, about, end } = await start('llama', freshLora(), '8bit')
  await trainer.trainStep(batchAt(batch, 1))
  await trainer.trainStep(batchAt(batch, 2))
  await trainer.trainStep(batchAt(batch, 3))
  const file = await openSafetensors(
    join(await saveCheckpoint(join(folder, 'codes'), trainer, about, { keep: { last: 1 } }), 'optimizer.safetensors'),
  )
  let bytes = 0
  for (const { name, shape, rows, columns } of trainer.decoder.store!.parameters) {
    for (const moment of ['exp_avg', 'exp_avg_sq']) {
      expect([file.dtype(`${name}.${moment}`), file.shape(`${name}.${moment}`)]).toEqual(['U8', shape])
      const scales = await file.readFloat32(`${name}.${moment}.absmax`)
      expect(scales.shape).toEqual([Math.ceil((rows * columns) / 256)])
      expect(scales.data[0]).toBeGreaterThan(0)
      bytes += shape[0] * shape[1] + 4 * scales.data.length
    }
  }
  expect(bytes / trainer.decoder.store!.size).toBeLessThan(2.2)
  file.close()
  end()
})

test.each([
  ['float32 moments go on as codes', undefined, '8bit' as const],
  ['codes go on as float32 moments', '8bit' as const, undefined],
])('%s', async (_, before, after) => {
  const { batch } = await openCase('qwen2')
  const whole = { full: true }
  for (const load of [freshLora(), whole]) {
    const first = await start('qwen2', load, before)
    for (let step = 1; step <= 2; step++) await first.trainer.trainStep(batchAt(batch, step))
    const dir = await saveCheckpoint(join(folder, `change-${after}`), first.trainer, first.about, { keep: { last: 1 } })
    const moments = async ({ trainer }: typeof first) => {
      const all = new Map<string, Float32Array>()
      for (const p of trainer.decoder.store!.parameters)
        for (const moment of MOMENTS) {
          const data = await trainer.optimizer.read(p, moment)
          all.set(`${p.name}.${moment}`, data instanceof Float32Array ? data : decode(data, moment === 'exp_avg'))
        }
      return all
    }
    const saved = await moments(first)
    await first.trainer.trainStep(batchAt(batch, 3))
    const want = await readAll(first.trainer.decoder)
    first.end()
    const second = await start('qwen2', load, after)
    await loadCheckpoint(dir, second.trainer, second.about)
    // The rank of this adapter is padded, and blocks are those of the padded matrix: there the next step must do.
    if (load === whole)
      for (const [name, data] of await moments(second)) expect(distance(data, saved.get(name)!), name).toBeLessThan(0.03)
    await second.trainer.trainStep(batchAt(batch, 3))
    for (const [name, data] of await readAll(second.trainer.decoder))
      expect(distance(data, want.get(name)!), name).toBeLessThan(0.06)
    second.end()
  }
})

test('of a model that runs partly in float32 each matrix is written as it runs, in a checkpoint and for a sampler', async () => {
  const device = await freshGpu()
  const files = await openModel(goldenPath('qwen2', 'model'))
  const names = ['model.embed_tokens.weight', 'model.layers.0.mlp.down_proj.weight']
  for (const inFloat32 of names) {
    const read = async (name: string): Promise<TensorData> => {
      const tensor = await files.tensors.read(name)
      if (name !== inFloat32 || tensor.dtype === 'f32') return tensor
      return { dtype: 'f32', shape: tensor.shape, data: widenBf16(tensor.data).map((w) => w * 1.001) }
    }
    const { tensors } = files
    const mixed: TensorSource = { read, names: () => tensors.names(), has: (n) => tensors.has(n), shape: (n) => tensors.shape(n), close() {} } // prettier-ignore
    const decoder = await loadDecoder(device, { name: 'mixed', config: files.config, tensors: mixed }, { full: true })
    const about = { rawConfig: files.rawConfig() }
    const [kept, sampled] = ['kept', 'sampled'].map((kind) => join(folder, `mixed-${kind}-${names.indexOf(inFloat32)}`))
    mkdirSync(kept)
    await writeWeights(kept, decoder, about)
    await writeSamplerWeights(sampled, decoder, about)
    for (const dir of [kept, sampled]) {
      const written = await openModel(dir)
      for (const name of names) expect(await written.tensors.read(name), `${name} of ${dir}`).toEqual(await read(name))
      expect(written.rawConfig().dtype).toBe('float32')
      const stored = await openSafetensors(join(dir, 'model.safetensors'))
      for (const name of names) expect(stored.dtype(name)).toBe(name === inFloat32 ? 'F32' : 'BF16')
      stored.close()
      written.close()
    }
    decoder.release()
  }
  device.close()
})

test('what is no matrix stays in float32 where it came so, though all matrices are in bf16', async () => {
  const files = await openModel(join(fixtures, 'odd/qwen35/model'))
  const [aLog, norm] = ['model.layers.0.linear_attn.A_log', 'model.norm.weight']
  const tensors = files.tensors.names().map((name) => ({
    name,
    dtype: [aLog, norm].includes(name) ? ('f32' as const) : ('bf16' as const),
    shape: files.tensors.shape(name),
    read: async (): Promise<TensorData> => {
      const { dtype, shape, data } = await files.tensors.read(name)
      return { dtype: 'f32', shape, data: (dtype === 'f32' ? data : widenBf16(data)).map((w) => w * 1.001) }
    },
  }))
  const [from, to] = ['mixed-model', 'mixed-saved'].map((name) => join(folder, name))
  await writeModelFolder(from, { rawConfig: files.rawConfig(), tensors })
  const model = await openModel(from)
  const device = await freshGpu()
  const decoder = await loadDecoder(device, model, { full: true })
  mkdirSync(to)
  await writeWeights(to, decoder, { rawConfig: model.rawConfig(), dtypeOf: (name) => model.tensors.dtype?.(name) })
  const [before, after] = await Promise.all([from, to].map((dir) => openSafetensors(join(dir, 'model.safetensors'))))
  for (const name of before.names()) expect(await after.readRaw(name), name).toEqual(await before.readRaw(name))
  expect([aLog, norm, 'model.layers.0.linear_attn.dt_bias'].map((name) => after.dtype(name))).toEqual(['F32', 'F32', 'BF16'])
  for (const source of [before, after, model, files]) source.close()
  decoder.release()
  device.close()
})

test('the folder is a PEFT adapter, or a Hugging Face model in the dtype that it came in', async () => {
  const adapter = await start('llama', freshLora())
  const dir = await saveCheckpoint(join(folder, 'formats'), adapter.trainer, adapter.about, { keep: { last: 1 } })
  const read = await readAdapter(dir)
  expect(read.config).toMatchObject({ r: 4, loraAlpha: 8 })
  expect(read.tensors.size).toBe(7 * adapter.trainer.decoder.config.layers)
  adapter.end()
  const full = await start('qwen2', { full: true })
  const whole = await openModel(
    await saveCheckpoint(join(folder, 'formats-full'), full.trainer, full.about, { keep: { last: 1 } }),
  )
  const original = await openModel(goldenPath('qwen2', 'model'))
  for (const tensor of original.tensors.names())
    expect(await whole.tensors.read(tensor)).toEqual(await original.tensors.read(tensor))
  full.end()
})

describe('which one is the newest', () => {
  test('whole ones count, older ones go, leftovers are cleared', async () => {
    const root = join(folder, 'keep')
    expect(newestCheckpoint(root)).toEqual({ broken: [] })
    const { trainer, about, end } = await start('llama', freshLora())
    const save = async (step: number) => {
      trainer.step = step
      return await saveCheckpoint(root, trainer, about, { keep: { last: 2 } })
    }
    await save(1)
    mkdirSync(join(root, 'step_9.partial-123'))
    mkdirSync(join(root, 'notes'))
    for (const step of [2, 10, 11]) await save(step)
    expect(readdirSync(root).toSorted()).toEqual(['notes', 'step_10', 'step_11'])
    expect(newestCheckpoint(root)).toMatchObject({ newest: { step: 11 }, broken: [] })
    // The same step again replaces it.
    await save(11)
    expect(newestCheckpoint(root).newest?.step).toBe(11)
    end()
  })

  test('the best one and those of an interval stay; a run killed before it deleted the others does so when it goes on', async () => {
    const root = join(folder, 'rules')
    const { trainer, about, end } = await start('llama', freshLora())
    const rules = { last: 1, interval: 4, best: 'reward' }
    const best = { metric: 'reward', value: 0.5, step: 3 }
    for (trainer.step = 1; trainer.step <= 6; trainer.step++)
      await saveCheckpoint(root, trainer, about, { keep: rules, best: trainer.step < 3 ? undefined : best })
    expect(readdirSync(root).toSorted()).toEqual(['best', 'step_3', 'step_4', 'step_6'])
    expect(pointed(join(root, 'best'))).toBe('step_3')
    trainer.step = 7
    await saveCheckpoint(root, trainer, about, { keep: { ...rules, last: 2 }, best })
    // One set aside by a rewind goes once a later one is there, whatever older ones stay.
    for (const name of ['step_8.partial-1', 'step_6.superseded']) mkdirSync(join(root, name))
    rmSync(join(root, 'best'))
    expect(readdirSync(root)).toContain('step_6')
    tidyCheckpoints(root, rules, best)
    expect(readdirSync(root).toSorted()).toEqual(['best', 'step_3', 'step_4', 'step_7'])
    const state = await loadCheckpoint(join(root, 'step_7'), trainer, about)
    expect(state).toMatchObject({ format: 2, best })
    end()
  })

  test('a checkpoint of format 1 is read, one of a later format is not', async () => {
    const root = join(folder, 'formats-of-state')
    const { trainer, about, end } = await start('llama', freshLora())
    trainer.step = 5
    const dir = await saveCheckpoint(root, trainer, about, { keep: { last: 1 } })
    // What 0.1 wrote, which had no sums; the size in STABLE is that of the file.
    rmSync(join(dir, 'crc32.json'))
    const write = (format: number) => {
      const text = `{"format": ${format}, "step": 5, "model": "model", "trains": "adapter", "optimizer_steps": 0, "bad_steps": 0, "extra": {"data_position": 5}}`
      writeFileSync(join(dir, 'state.json'), text)
      const sizes = JSON.parse(readFileSync(join(dir, 'STABLE'), 'utf8')) as Record<string, number>
      writeFileSync(join(dir, 'STABLE'), JSON.stringify({ ...sizes, 'state.json': text.length, 'crc32.json': undefined }))
    }
    write(1)
    trainer.step = 0
    expect(await loadCheckpoint(dir, trainer, about)).toMatchObject({ step: 5, extra: { data_position: 5 } })
    expect(trainer.step).toBe(5)
    write(3)
    await expect(loadCheckpoint(dir, trainer, about)).rejects.toThrow(/has format 3, but this version of dawn-rl reads 1 to 2/)
    end()
  })

  test.each([
    ['no marker', (dir: string) => rmSync(join(dir, 'STABLE')), /it has no STABLE file/],
    [
      'a file cut off',
      (dir: string) => truncateSync(join(dir, 'optimizer.safetensors'), 1000),
      /optimizer\.safetensors has 1000 bytes instead of/,
    ],
    ['a file gone', (dir: string) => rmSync(join(dir, 'adapter_config.json')), /adapter_config\.json is missing/],
    ...['state.json', 'adapter_config.json', 'adapter_model.safetensors', 'optimizer.safetensors'].map(
      (file): [string, (dir: string) => void, RegExp] => [
        `zeros in ${file}`,
        (dir) => writeFileSync(join(dir, file), Buffer.alloc(statSync(join(dir, file)).size)),
        new RegExp(`${file} has the right size but the wrong content`),
      ],
    ),
    ...['null', '[]', '7'].map((text): [string, (dir: string) => void, RegExp] => [
      `${text} in STABLE`,
      (dir) => writeFileSync(join(dir, 'STABLE'), text),
      /its STABLE cannot be read \(it holds no JSON object\)/,
    ]),
    ['an empty folder', (dir: string) => readdirSync(dir).forEach((f) => rmSync(join(dir, f))), /no STABLE/],
  ])('half-written: %s', async (what, harm, why) => {
    const root = join(folder, what.replaceAll(' ', '-'))
    const { trainer, about, end } = await start('llama', freshLora())
    trainer.step = 4
    await saveCheckpoint(root, trainer, about, { keep: { last: 3 } })
    trainer.step = 8
    const late = await saveCheckpoint(root, trainer, about, { keep: { last: 3 } })
    harm(late)
    const { newest, broken } = newestCheckpoint(root)
    expect(newest?.step).toBe(4)
    expect(broken[0]).toMatch(why)
    await expect(loadCheckpoint(late, trainer, about)).rejects.toThrow(why)
    end()
  })

  test('one bit in the midst of any file: it is passed over, and nothing of it is loaded', async () => {
    const root = join(folder, 'bits')
    const { trainer, about, end } = await start('llama', freshLora(), '8bit')
    const save = async (step: number) => {
      trainer.step = step
      return await saveCheckpoint(root, trainer, { ...about, tokenizer: undefined }, { keep: { last: 9 } })
    }
    await save(3)
    const late = await save(6)
    const kept = await readAll(trainer.decoder)
    for (const file of readdirSync(late).filter((name) => !['STABLE', 'crc32.json'].includes(name))) {
      const bytes = readFileSync(join(late, file))
      const changed = Buffer.from(bytes)
      changed[Math.floor(bytes.length * 0.7)] ^= 1
      writeFileSync(join(late, file), changed)
      expect(newestCheckpoint(root).newest?.step).toBe(6)
      const { newest, broken } = await newestIntact(root)
      expect([newest?.step, broken]).toEqual([
        3,
        [`${late}: ${file} has the right size, but its bytes are not the ones that were written`],
      ])
      trainer.step = 1
      await expect(loadCheckpoint(late, trainer, about)).rejects.toThrow(`${file} has the right size, but its bytes`)
      expect([trainer.step, await readAll(trainer.decoder)]).toEqual([1, kept])
      writeFileSync(join(late, file), bytes)
    }
    expect(await newestIntact(root)).toMatchObject({ newest: { step: 6 }, broken: [] })
    writeFileSync(join(late, 'crc32.json'), Buffer.alloc(statSync(join(late, 'crc32.json')).size, 'x'))
    expect((await newestIntact(root)).broken).toEqual([expect.stringContaining('crc32.json cannot be read')])
    for (const text of ['null', '[]', '7']) {
      writeFileSync(join(late, 'crc32.json'), text.padEnd(statSync(join(late, 'crc32.json')).size))
      const why = `${late}: its crc32.json cannot be read (it holds no JSON object)`
      expect((await newestIntact(root)).broken).toEqual([why])
    }
    end()
  })

  test('a save that fails leaves nothing that counts', async () => {
    const root = join(folder, 'fails')
    const { trainer, about, end } = await start('llama', freshLora())
    const tokenizer = { saveTo: () => Promise.reject(new Error('disk full')) } as never
    await expect(saveCheckpoint(root, trainer, { ...about, tokenizer }, { keep: { last: 1 } })).rejects.toThrow('disk full')
    expect(existsSync(root) ? readdirSync(root) : []).toEqual([])
    end()
  })
})

describe('refused', () => {
  const refused = async (load: LoadOptions, about: Partial<WeightsAbout>, message: RegExp, change?: (dir: string) => void) => {
    const root = join(folder, `refused-${Math.random()}`)
    const made = await start('llama', freshLora())
    const dir = await saveCheckpoint(root, made.trainer, made.about, { keep: { last: 1 } })
    change?.(dir)
    made.end()
    const other = await start('llama', load)
    const before = await readAll(other.trainer.decoder)
    const attempt = loadCheckpoint(dir, other.trainer, { ...other.about, ...about })
    await expect(attempt).rejects.toThrow(message)
    await expect(attempt).rejects.toThrow(UserError)
    expect(await readAll(other.trainer.decoder)).toEqual(before)
    other.end()
  }
  test('another rank', () =>
    refused(
      { lora: { ...freshLora().lora, rank: 6 } },
      {},
      /lora_A\.weight in the shape \[4, \d+\], but this run has it in \[6, \d+\]\. Set trainer\.args\.lora_rank to what it was/,
    ))
  test('other modules', () =>
    refused(
      { lora: { ...freshLora().lora, targetModules: ['q_proj'] } },
      {},
      /trains \d+ tensors, but this run trains \d+\. Set trainer\.args\.lora_target_modules to/,
    ))
  test('another alpha', () =>
    refused(
      freshLora(),
      { lora: { ...loraConfig, loraAlpha: 9 } },
      /has lora_alpha 8, but this run has 9\. Set trainer\.args\.lora_alpha /,
    ))
  test('another alpha of one module', () =>
    refused(
      freshLora(),
      { lora: { ...loraConfig, alphaPattern: { 'layers.1.self_attn.q_proj': 16 } } },
      /multiplies model\.layers\.1\.self_attn\.q_proj by 2, but this run multiplies it by 4, set by alpha_pattern .+ Set model\.adapter to/,
    ))
  test('full training', () =>
    refused({ full: true }, {}, /trains adapter, but this run trains all weights\. Set trainer\.args\.use_lora /))
  test('another model', () =>
    refused(freshLora(), {}, /is of the model other, not of model\. Set model /, (dir) => {
      const path = join(dir, 'state.json')
      const text = readFileSync(path, 'utf8').replace('"model": "model"', '"model": "other"')
      writeFileSync(path, text)
      const sizes = JSON.parse(readFileSync(join(dir, 'STABLE'), 'utf8')) as Record<string, number>
      writeFileSync(join(dir, 'STABLE'), JSON.stringify({ ...sizes, 'state.json': Buffer.byteLength(text) }))
      writeFileSync(join(dir, 'crc32.json'), '{}'.padEnd(sizes['crc32.json']))
    }))
  test('a folder that is none', async () => {
    const { trainer, about, end } = await start('llama', freshLora())
    await expect(loadCheckpoint(join(folder, 'nowhere'), trainer, about)).rejects.toThrow(
      /is not a complete checkpoint: it has no STABLE file/,
    )
    end()
  })
})
