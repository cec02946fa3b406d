import { cpSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { adapterConfig } from '../../src/cli/trainer-options.ts'
import { parseConfig as parseRun } from '../../src/config/load.ts'
import { linearShapes } from '../../src/model/decoder/shapes.ts'
import { parseConfig } from '../../src/model/config/config.ts'
import { checkAdapter, modulesOf, readAdapter, writeAdapter } from '../../src/model/files/peft.ts'
import { openSafetensors, writeSafetensors } from '../../src/model/files/safetensors.ts'
import { golden, newFolder, userErrorOf } from './helpers.ts'

const configOf = (family: string) => {
  const file = join(golden, family, 'model/config.json')
  return parseConfig(JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>, file)
}
const dir = newFolder()
/** A copy of a golden adapter with other words in its config. */
function variant(name: string, change: Record<string, unknown>, family = 'qwen3'): string {
  const to = join(dir, name)
  cpSync(join(golden, family, 'adapter'), to, { recursive: true })
  const file = join(to, 'adapter_config.json')
  writeFileSync(file, JSON.stringify({ ...(JSON.parse(readFileSync(file, 'utf8')) as object), ...change }))
  return to
}

describe('the golden adapters', () => {
  test.each(['llama', 'qwen2', 'qwen3', 'smollm2'])('%s: read, written, read again', async (family) => {
    const adapter = await readAdapter(join(golden, family, 'adapter'))
    expect(adapter.config).toMatchObject({ r: 8, loraAlpha: 16, loraDropout: 0, useRslora: false })
    expect(adapter.tensors.size).toBe(family === 'smollm2' ? 7 * 30 : 7 * 2)
    for (const pair of adapter.tensors.values()) expect(pair.scale).toBe(2)
    const out = join(dir, `again-${family}`)
    await writeAdapter(out, { config: adapter.config, tensors: adapter.tensors })
    const again = await readAdapter(out)
    expect(again.config).toEqual(adapter.config)
    expect(again.tensors).toEqual(adapter.tensors)
    // The names and types in the file are PEFT's own.
    const [ours, theirs] = await Promise.all([out, adapter.dir].map((d) => openSafetensors(join(d, 'adapter_model.safetensors'))))
    expect(ours.names().toSorted()).toEqual(theirs.names().toSorted())
    expect(ours.names().every((name) => ours.dtype(name) === 'F32')).toBe(true)
    expect(readFileSync(join(out, 'adapter_model.safetensors'), 'latin1')).toContain('{"__metadata__":{"format":"pt"},')
  })
  test('its modules are listed by name where its config said which by a word or a regular expression', async () => {
    const { config, tensors } = await readAdapter(variant('all', { target_modules: 'all-linear' }))
    await writeAdapter(join(dir, 'listed'), { config, tensors })
    const written = JSON.parse(readFileSync(join(dir, 'listed/adapter_config.json'), 'utf8')) as { target_modules: string[] }
    const modules = ['down_proj', 'gate_proj', 'k_proj', 'o_proj', 'q_proj', 'up_proj', 'v_proj']
    expect(written.target_modules.toSorted()).toEqual(modules)
  })
  // No list: target_modules is a regular expression. All: exclude_modules, which is not written, takes some out again.
  const targets = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
  test.each([[[]], [targets]])(
    'its layers, and no others, are those that PEFT chooses (target_modules %j)',
    async (targetModules) => {
      const model = configOf('qwen3')
      for (const kept of [/layers\.1\./, /q_proj$|layers\.0\./, /q_proj$/, /./]) {
        const adapter = await readAdapter(join(golden, 'qwen3/adapter'))
        for (const path of adapter.tensors.keys()) if (!kept.test(path)) adapter.tensors.delete(path)
        adapter.config.targetModules = targetModules
        const config = adapterConfig(
          parseRun('[model]\nname = "x"\n[env]\nid = "reverse-text"').config.trainer.args,
          model,
          adapter,
          null,
        )!
        const out = join(newFolder(), 'some')
        await writeAdapter(out, { config, tensors: adapter.tensors })
        const { target_modules: written } = JSON.parse(readFileSync(join(out, 'adapter_config.json'), 'utf8')) as {
          target_modules: string[]
        }
        // As PEFT chooses.
        const chosen = [...linearShapes(model).keys()].filter((path) =>
          written.some((name) => path === name || path.endsWith(`.${name}`)),
        )
        expect(chosen.toSorted()).toEqual([...adapter.tensors.keys()].toSorted())
        const named = modulesOf(adapter.tensors.keys())
        expect(readFileSync(join(out, 'README.md'), 'utf8')).toContain(`; ${named.join(', ')})`)
      }
    },
  )
  test.each(['llama', 'qwen2', 'qwen3'])('%s belongs to its own model', async (family) => {
    checkAdapter(await readAdapter(join(golden, family, 'adapter')), configOf(family), family)
  })
})

describe('the written folder', () => {
  test('has a card that the hub takes, and is not written over unless asked', async () => {
    const { config, tensors } = await readAdapter(join(golden, 'qwen2/adapter'))
    const out = join(dir, 'card')
    const adapter = {
      config: { ...config, baseModel: 'Qwen/Qwen2.5-0.5B' },
      tensors,
    }
    await writeAdapter(out, adapter)
    const card = readFileSync(join(out, 'README.md'), 'utf8')
    expect(card).toMatch(/^---\nbase_model: Qwen\/Qwen2\.5-0\.5B\nlibrary_name: peft\n/)
    expect(card).toContain('# LoRA adapter\n\nA LoRA adapter (rank 8, alpha 16;')
    expect(card).toContain('--max-lora-rank 8 ')
    expect(await userErrorOf(() => writeAdapter(out, adapter))).toBe(`${out} exists already. Remove it or name another folder.`)
    await writeAdapter(out, adapter, { replace: true })
    expect(readFileSync(join(out, 'README.md'), 'utf8')).toContain('# LoRA adapter\n')
    expect(readdirSync(dir).filter((name) => name.startsWith('card'))).toEqual(['card'])
  })
  test("names a rank in its card that vLLM takes and that holds each tensor's", async () => {
    const { config, tensors } = await readAdapter(join(golden, 'qwen2/adapter'))
    const [[path, pair]] = tensors
    const wide = { ...pair, A: new Float32Array(20 * pair.inputs), B: new Float32Array(pair.outputs * 20), r: 20 }
    for (const [r, shown, more] of [[4, 8, {}], [24, 32, {}], [8, 32, { [path]: wide }], [600, 600, {}]] as const) {
      const out = join(dir, `rank-${r}-${shown}`)
      await writeAdapter(out, { config: { ...config, r }, tensors: new Map(Object.entries(more)) })
      expect(readFileSync(join(out, 'README.md'), 'utf8')).toContain(`--enable-lora --max-lora-rank ${shown} --lora-modules`)
    } // prettier-ignore
  })
})

describe('scales', () => {
  test('rsLoRA divides by the root of the rank; patterns name single modules by the end of their path', async () => {
    const pattern = { 'layers.0.self_attn.q_proj': 32, v_proj: 4, proj: 1000 }
    const { tensors } = await readAdapter(variant('scales', { use_rslora: true, alpha_pattern: pattern }))
    const scale = (path: string) => tensors.get(path)?.scale
    expect(scale('model.layers.0.self_attn.q_proj')).toBe(32 / Math.sqrt(8))
    expect(scale('model.layers.1.self_attn.q_proj')).toBe(16 / Math.sqrt(8))
    expect(scale('model.layers.1.self_attn.v_proj')).toBe(4 / Math.sqrt(8))
  })
  test('a rank that is not the config says so', async () => {
    const text = await userErrorOf(() => readAdapter(variant('rank', { rank_pattern: { 'layers.1.mlp.up_proj': 4 } })))
    expect(text).toContain('the LoRA factors of model.layers.1.mlp.up_proj have rank 8, but adapter_config.json says 4.')
  })
})

describe('what is refused', () => {
  test.each([
    ['dora', { use_dora: true }, 'use_dora is true; only plain LoRA and rsLoRA are supported.'],
    ['bias', { bias: 'all' }, 'bias is "all"; only adapters that train no bias ("none") are supported.'],
    [
      'pissa',
      { init_lora_weights: 'pissa_niter_4' },
      'init_lora_weights is "pissa_niter_4"; such an adapter belongs to base weights',
    ],
    ['olora', { init_lora_weights: 'olora' }, 'init_lora_weights is "olora"; such an adapter belongs to base weights'],
    ['saved', { modules_to_save: ['lm_head'] }, 'modules_to_save is ["lm_head"]; only plain LoRA and rsLoRA are supported.'],
    ['replication', { layer_replication: [[0, 2]] }, 'layer_replication is [[0,2]]; only plain LoRA'],
    ['type', { peft_type: 'IA3' }, 'peft_type is "IA3"; only LORA adapters are supported.'],
    ['alpha', { lora_alpha: 'x' }, 'lora_alpha is "x"; it must be a number.'],
    [
      'regex',
      { alpha_pattern: { '(q_proj': 8 } },
      'alpha_pattern is {"(q_proj":8}; "(q_proj" is not a valid regular expression.',
    ],
  ])('%s', async (name, change, message) => {
    const folder = variant(name, change)
    expect(await userErrorOf(() => readAdapter(folder))).toContain(`${join(folder, 'adapter_config.json')}: ${message}`)
  })
  test('an adapter for another model, by shape, by depth, by module', async () => {
    const adapter = await readAdapter(join(golden, 'qwen3/adapter'))
    const text = await userErrorOf(() => checkAdapter(adapter, configOf('qwen2'), 'Tiny-Qwen2'))
    expect(text).toBe(
      `The adapter ${adapter.dir} is for another model: model.layers.0.self_attn.k_proj.lora_B has shape [64, 8], but Tiny-Qwen2 needs [32, 8].`,
    )
    const shallow = { ...configOf('qwen3'), layers: 1 }
    expect(await userErrorOf(() => checkAdapter(adapter, shallow, 'Tiny'))).toContain('changes model.layers.1.')
  })
  test('missing parts', async () => {
    const away = join(dir, 'away')
    expect(await userErrorOf(() => readAdapter(away))).toContain(`There is no folder ${away}.`)
    expect(await userErrorOf(() => readAdapter(dir))).toContain('has no adapter_config.json, so it is not a PEFT adapter folder.')
    const run = variant('run', {})
    rmSync(join(run, 'adapter_config.json'))
    for (const step of ['step_2', 'step_10', 'step_9_aside']) mkdirSync(join(run, 'checkpoints', step), { recursive: true })
    expect(await userErrorOf(() => readAdapter(run))).toContain(
      `folder. It is a run, whose newest checkpoint is ${join(run, 'checkpoints/step_10')}.`,
    )
    const folder = variant('parts', {})
    const file = join(folder, 'adapter_model.safetensors')
    const data = new Float32Array(64 * 8)
    await writeSafetensors(file, {
      'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight': { dtype: 'F32', shape: [8, 64], data },
    })
    expect(await userErrorOf(() => readAdapter(folder))).toContain(
      'only one of the two LoRA factors of model.layers.0.self_attn.q_proj',
    )
    const factors = (B: number[]) => ({
      'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight': { dtype: 'F32' as const, shape: [8, 64], data },
      'base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight': { dtype: 'F32' as const, shape: B, data },
    })
    for (const shape of [[64, 8, 1], [8, 64]]) {
      await writeSafetensors(file, factors(shape))
      expect(await userErrorOf(() => readAdapter(folder))).toContain(
        `q_proj have the shapes [8, 64] and [${shape.join(', ')}], which do not multiply.`,
      )
    } // prettier-ignore
    await writeSafetensors(file, {})
    expect(await userErrorOf(() => readAdapter(folder))).toBe(`${file} holds no LoRA tensors.`)
    await writeSafetensors(file, { 'base_model.model.lm_head.weight': { dtype: 'F32', shape: [8, 64], data } })
    expect(await userErrorOf(() => readAdapter(folder))).toContain('Tensor base_model.model.lm_head.weight in')
    rmSync(file)
    expect(await userErrorOf(() => readAdapter(folder))).toContain('has no adapter_model.safetensors')
  })
})
