/** `merge` without an adapter, as a user runs it: how a GGUF becomes a folder that transformers and vLLM read. */
import { spawn, spawnSync } from 'node:child_process'
import { globSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect, test, vi } from 'vitest'
import { readJson } from '../../src/model/files/files.ts'
import { openModel, type ModelFiles } from '../../src/model/files/open.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import { tensorShapes } from '../../src/model/decoder/shapes.ts'
import type { TensorData } from '../../src/model/types.ts'
import { smollm2, withoutSmollm2 } from '../model/helpers.ts'
import { renamesAsWindows } from '../renames.ts'
import { canLink } from '../windows.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-merge-'))
afterAll(() => rmSync(folder, { recursive: true }))

const env = { ...process.env, ...renamesAsWindows }

function merge(model: string, out: string, ...words: string[]): string {
  const result = spawnSync(process.execPath, [join(root, 'cli.js'), 'merge', '--model', model, '--out', out, ...words], {
    cwd: root,
    encoding: 'utf8',
    env,
  })
  expect(result.stderr).toBe('')
  expect(result.status).toBe(0)
  return result.stdout
}

// vitest's own comparison takes seconds on an embedding.
const bytes = ({ data }: TensorData) => Buffer.from(data.buffer, data.byteOffset, data.byteLength)

const chat = (model: ModelFiles) =>
  model.tokenizer().then((tokenizer) => {
    const messages = ['What is the capital of France?', "It's 1234,56 €,\n\tisn't it? <|im_end|>", '日本語 🙂'].map((content) => [
      { role: 'system' as const, content: 'Be short.' },
      { role: 'user' as const, content },
    ])
    return { ids: messages.map((one) => tokenizer.encodeChat(one)), eos: tokenizer.eosTokenIds }
  })

test('a folder is written as it is, with its tokenizer', async () => {
  const out = join(folder, 'tiny')
  expect(merge('models/tiny', out)).toBe(`${out}: tiny\n`)
  const [before, after] = [await openModel(join(root, 'models/tiny')), await openModel(out)]
  expect(after.config).toEqual(before.config)
  expect(await chat(after)).toEqual(await chat(before))
  for (const name of tensorShapes(before.config).keys()) {
    expect(await after.tensors.read(name), name).toEqual(await before.tensors.read(name, { round: true }))
  }
  before.close()
  after.close()
  // As a shell completes it.
  merge('models/tiny', `${out}/`, '--force')
  // And in its own place.
  merge(out, out, '--force')
  expect(readdirSync(folder)).toEqual(['tiny'])
})

test('--force replaces a model, and nothing else', () => {
  const mine = join(folder, 'mine')
  mkdirSync(mine)
  writeFileSync(join(mine, 'notes.txt'), '')
  const words = ['merge', '--model', 'models/tiny', '--out', mine, '--force']
  const { stderr, status } = spawnSync(process.execPath, [join(root, 'cli.js'), ...words], { cwd: root, encoding: 'utf8' })
  expect([stderr, status]).toEqual([`--out is ${mine}, which holds something other than a model. Name another folder.\n`, 2])
  expect(readdirSync(mine)).toEqual(['notes.txt'])
  rmSync(mine, { recursive: true })
})

test.skipIf(withoutSmollm2)('Ctrl-C leaves nothing of a model that is half written', async () => {
  const before = readdirSync(folder)
  const words = ['merge', '--model', smollm2, '--out', join(folder, 'cut')]
  const child = spawn(process.execPath, [join(root, 'cli.js'), ...words], { cwd: root })
  const ended = new Promise((resolve) => child.on('close', resolve))
  await vi.waitFor(() => expect(globSync(join(folder, 'cut.partial-*/*.safetensors*'))).not.toEqual([]), { timeout: 20_000 })
  child.kill('SIGINT')
  expect(await ended).toBe(130)
  expect(readdirSync(folder)).toEqual(before)
})

test('a place that cannot be written is said, with what to do', () => {
  if (canLink) symlinkSync(join(folder, 'nowhere'), join(folder, 'link'))
  writeFileSync(join(folder, 'file'), '')
  for (const [out, message] of [
    ...(canLink ? [['link', 'link is a broken symbolic link. Remove it or name another path.']] : []),
    ['file/below', 'below cannot be written: EEXIST: file already exists, mkdir'],
  ]) {
    const words = ['merge', '--model', 'models/tiny', '--out', join(folder, out)]
    const { stderr, status } = spawnSync(process.execPath, [join(root, 'cli.js'), ...words], { cwd: root, encoding: 'utf8' })
    expect(stderr).toContain(message)
    expect(status).toBe(2)
  }
  rmSync(join(folder, 'link'), { force: true })
  rmSync(join(folder, 'file'))
})

test.skipIf(withoutSmollm2)('a GGUF is widened to bf16, and speaks as before', { timeout: 120_000 }, async () => {
  const out = join(folder, 'smollm2')
  expect(merge(smollm2, out)).toMatch(/^.*smollm2: SmolLM2-135M-Instruct\.Q4_1, in bf16\n$/)
  expect(readdirSync(out).toSorted()).toEqual([
    'chat_template.jinja',
    'config.json',
    'model.safetensors',
    'tokenizer.json',
    'tokenizer_config.json',
  ])
  // What transformers and vLLM choose their classes by.
  const config = await readJson(join(out, 'config.json'))
  expect(config).toMatchObject({ architectures: ['LlamaForCausalLM'], model_type: 'llama', dtype: 'bfloat16' })
  expect(config).not.toHaveProperty('quantization_config')
  expect(await readJson(join(out, 'tokenizer_config.json'))).toMatchObject({ eos_token: '<|im_end|>' })
  const [gguf, written] = [await openModel(smollm2), await openModel(out)]
  expect(written.kind).toBe('folder')
  expect(written.config).toEqual(gguf.config)
  expect(await chat(written)).toEqual(await chat(gguf))
  const file = await openSafetensors(join(out, 'model.safetensors'))
  expect(file.names().toSorted()).toEqual([...tensorShapes(gguf.config).keys()].toSorted())
  expect(new Set(file.names().map((name) => file.dtype(name)))).toEqual(new Set(['BF16']))
  for (const name of file.names()) {
    const [before, after] = [await gguf.tensors.read(name, { round: true }), await written.tensors.read(name)]
    expect(after.shape, name).toEqual(before.shape)
    expect(Buffer.compare(bytes(after), bytes(before)), name).toBe(0)
  }
  for (const open of [file, gguf, written]) open.close()
})
