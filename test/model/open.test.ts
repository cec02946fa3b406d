import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { writeSafetensors } from '../../src/model/files/safetensors.ts'
import { openHub } from '../hub.ts'
import { canLink } from '../windows.ts'
import { golden, newFolder, smollm2, userErrorOf, withoutSmollm2 } from './helpers.ts'

const source = join(golden, 'qwen3/model')
/** A copy of a golden model that may be spoiled. */
function copy(): string {
  const dir = join(newFolder(), 'Tiny')
  cpSync(source, dir, { recursive: true })
  return dir
}

describe('a folder', () => {
  test('opens without a tokenizer until one is asked for', async () => {
    const dir = copy()
    const model = await openModel(dir)
    expect([model.name, model.kind, model.path, model.config.family]).toEqual(['Tiny', 'folder', dir, 'qwen3'])
    expect(await model.tokenizerOrNull()).toBeNull()
    expect(await userErrorOf(() => model.tokenizer())).toContain(`${dir} has no tokenizer.json`)
    model.close()
  })
  test('in F16 and in F32', async () => {
    const dir = copy()
    const tiny = await openModel(source)
    const file = join(dir, 'model.safetensors')
    const read = new Map(
      await Promise.all(tiny.tensors.names().map(async (name) => [name, await tiny.tensors.read(name)] as const)),
    )
    const f32 = [...read].map(([name, { shape, data }]) => {
      const wide = new Float32Array(Uint32Array.from(data, (bits) => bits << 16).buffer)
      return [name, { dtype: 'F32' as const, shape, data: wide }] as const
    })
    await writeSafetensors(file, new Map(f32))
    const model = await openModel(dir)
    for (const [name, tensor] of read) expect(await model.tensors.read(name)).toEqual(tensor)
    model.close()
    const halves = f32.map(
      ([name, t]) => [name, { ...t, dtype: 'F16' as const, data: new Uint16Array(t.data.length).fill(0x3c00) }] as const,
    )
    await writeSafetensors(file, new Map(halves))
    const half = await openModel(dir)
    expect(new Set((await half.tensors.read('model.norm.weight')).data)).toEqual(new Set([0x3f80]))
    half.close()
    tiny.close()
  })
  test('that has its tied embedding as the head alone, as transformers reads it', async () => {
    const dir = copy()
    const path = join(dir, 'config.json')
    const raw = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>
    const tiny = await openModel(source)
    const written = (tie: boolean) => writeFileSync(path, JSON.stringify({ ...raw, tie_word_embeddings: tie }))
    const embedding = await tiny.tensors.read('model.embed_tokens.weight')
    const read = await Promise.all(tiny.tensors.names().map(async (name) => [name, await tiny.tensors.read(name)] as const))
    const headAlone = read.flatMap(([name, tensor]) => {
      if (name === 'lm_head.weight') return []
      return [[name === 'model.embed_tokens.weight' ? 'lm_head.weight' : name, { ...tensor, dtype: 'BF16' as const }] as const]
    })
    await writeSafetensors(join(dir, 'model.safetensors'), new Map(headAlone as never))
    written(true)
    const model = await openModel(dir)
    expect(await model.tensors.read('model.embed_tokens.weight')).toEqual(embedding)
    expect(model.tensors.names().toSorted()).toEqual(
      tiny.tensors
        .names()
        .filter((name) => name !== 'lm_head.weight')
        .toSorted(),
    )
    written(false)
    expect(await userErrorOf(() => openModel(dir))).toContain('Tensor model.embed_tokens.weight is missing')
    for (const one of [model, tiny]) one.close()
  })
  test('whose parts are missing or do not fit says which', async () => {
    const dir = copy()
    const [config, weights] = [join(dir, 'config.json'), join(dir, 'model.safetensors')]
    const raw = JSON.parse(readFileSync(config, 'utf8')) as Record<string, unknown>
    const layers = { num_hidden_layers: 3, layer_types: Array.from({ length: 3 }, () => 'full_attention') }
    writeFileSync(config, JSON.stringify({ ...raw, ...layers }))
    expect(await userErrorOf(() => openModel(dir))).toContain(`Tensor model.layers.2.input_layernorm.weight is missing in ${dir}`)
    writeFileSync(config, JSON.stringify({ ...raw, vocab_size: 500 }))
    expect(await userErrorOf(() => openModel(dir))).toBe(
      `Tensor model.embed_tokens.weight in ${dir} has shape [512, 64], and its config asks for [500, 64].`,
    )
    writeFileSync(config, JSON.stringify({ ...raw, tie_word_embeddings: false }))
    expect(await userErrorOf(() => openModel(dir))).toContain('Tensor lm_head.weight is missing')
    writeFileSync(join(dir, 'quantize_config.json'), '{"bits": 4}')
    expect(await userErrorOf(() => openModel(dir))).toContain(`${dir} has a quantize_config.json: quantised weights are not`)
    rmSync(join(dir, 'quantize_config.json'))
    writeFileSync(config, JSON.stringify(raw))
    // One file of all weights comes first: transformers leaves the index of an earlier save beside it, without its shards.
    writeFileSync(
      join(dir, 'model.safetensors.index.json'),
      JSON.stringify({ weight_map: { x: 'model-00001-of-00002.safetensors' } }),
    )
    ;(await openModel(dir)).close()
    writeFileSync(weights, readFileSync(weights).subarray(0, 5000))
    expect(await userErrorOf(() => openModel(dir))).toContain(`${weights} is not a complete safetensors file`)
    rmSync(weights)
    expect(await userErrorOf(() => openModel(dir))).toContain('model-00001-of-00002.safetensors is missing')
    writeFileSync(join(dir, 'model.safetensors.index.json'), JSON.stringify({ weight_map: { x: '../../secret.safetensors' } }))
    expect(await userErrorOf(() => openModel(dir))).toContain('names "../../secret.safetensors" as a weights file')
    rmSync(join(dir, 'model.safetensors.index.json'))
    expect(await userErrorOf(() => openModel(dir))).toContain('has neither model.safetensors nor model.safetensors.index.json')
    rmSync(config)
    expect(await userErrorOf(() => openModel(dir))).toMatch(/has no config\.json, so it is not a Hugging Face model folder\.$/)
    mkdirSync(join(dir, 'checkpoints/step_3'), { recursive: true })
    expect(await userErrorOf(() => openModel(dir))).toContain(`newest checkpoint is ${join(dir, 'checkpoints/step_3')}.`)
    writeFileSync(join(dir, 'adapter_config.json'), '{}')
    expect(await userErrorOf(() => openModel(dir))).toContain('is an adapter, not a model')
    // Axolotl, for one, writes the model's config.json beside it.
    writeFileSync(config, JSON.stringify(raw))
    expect(await userErrorOf(() => openModel(dir))).toContain('is an adapter, not a model')
  })
  test.skipIf(!canLink)('that the system does not let in says so, not that there is nothing', async () => {
    const dir = copy()
    const config = join(dir, 'config.json')
    rmSync(config)
    symlinkSync('config.json', config)
    expect(await userErrorOf(() => openModel(dir))).toContain(`Cannot read ${config}: ELOOP: `)
    // Nothing is closed to root.
    if (process.getuid?.() === 0) return
    chmodSync(dir, 0o600)
    const reads = [() => openModel(dir), () => readAdapter(dir), () => openModel(join(dir, 'below'))]
    for (const read of reads) expect(await userErrorOf(read)).toContain('EACCES: permission denied')
    chmodSync(dir, 0o700)
  })
  test('that is not there is not asked for on the hub', async () => {
    const dir = newFolder()
    for (const ref of [join(dir, 'absent'), './absent', 'test/absent', 'absent', 'a/b/c', 'some/model.gguf']) {
      expect(await userErrorOf(() => openModel(ref))).toContain(`There is no model at ${ref}`)
    }
    const file = join(dir, 'a.bin')
    writeFileSync(file, 'x')
    expect(await userErrorOf(() => openModel(file))).toContain(`${file} is not a model`)
  })
  test.skipIf(withoutSmollm2)('with one GGUF in it is that GGUF', async () => {
    const dir = newFolder()
    cpSync(smollm2, join(dir, 'a.gguf'))
    const model = await openModel(dir)
    expect([model.kind, model.name, model.config.layers]).toEqual(['gguf', 'a', 30])
    model.close()
  })
})

describe('a name on the hub', () => {
  const sha = 'a'.repeat(40)
  const files = new Map<string, Buffer>(readdirSync(source).map((name) => [name, readFileSync(join(source, name))]))
  files.set('tokenizer.json', Buffer.from('{}'))
  files.set('pytorch_model.bin', Buffer.alloc(1000))
  files.set('README.md', Buffer.from('# Tiny'))
  files.set('onnx/model.onnx', Buffer.alloc(10))
  files.set('additional_chat_templates/tool_use.jinja', Buffer.from('tools'))
  const hub = openHub('models', sha, files)
  beforeEach(() => void vi.spyOn(process.stderr, 'write').mockReturnValue(true))
  afterEach(() => void vi.restoreAllMocks())

  test('is fetched into the cache once, without what is not needed, and then never asked for again', async () => {
    const cache = newFolder()
    hub.use(cache)
    process.env.HF_TOKEN = 'hf_secret'
    const told = vi.spyOn(process.stderr, 'write')
    const model = await openModel('owner/tiny')
    expect([model.name, model.path]).toEqual(['owner/tiny', join(cache, 'models--owner--tiny/snapshots', sha)])
    expect(readFileSync(join(model.path, 'model.safetensors'))).toEqual(files.get('model.safetensors'))
    expect(readFileSync(join(cache, 'models--owner--tiny/refs/main'), 'utf8')).toBe(sha)
    expect(readFileSync(join(model.path, 'additional_chat_templates/tool_use.jinja'), 'utf8')).toBe('tools')
    expect(readdirSync(model.path).toSorted()).toEqual([
      'additional_chat_templates',
      'config.json',
      'generation_config.json',
      'model.safetensors',
      'tokenizer.json',
    ])
    expect(told.mock.calls[0]).toEqual(['fetching config.json (0.0 MB)\n'])
    expect(hub.asked.every(({ token }) => token === 'Bearer hf_secret')).toBe(true)
    model.close()
    hub.asked.length = 0
    ;(await openModel('owner/tiny')).close()
    process.env.HF_HUB_OFFLINE = '1'
    ;(await openModel('owner/tiny')).close()
    expect(hub.asked).toEqual([])
  })
  test('that was cut off is taken up again', async () => {
    const cache = newFolder()
    hub.use(cache)
    hub.failAfter = 4
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain(
      'The model owner/tiny could not be fetched from http://127.0.0.1',
    )
    expect(existsSync(join(cache, 'models--owner--tiny/refs/main'))).toBe(false)
    hub.failAfter = Infinity
    const before = hub.asked.length
    ;(await openModel('owner/tiny')).close()
    // config.json came the first time.
    expect(hub.asked.slice(before).some(({ path }) => path.endsWith('/config.json'))).toBe(false)
  })
  test('is whole for two processes that fetch it at once, and what one that was killed left is gone', async () => {
    const cache = newFolder()
    const blobs = join(cache, 'models--owner--tiny/blobs')
    hub.use(cache)
    const { promise, resolve } = Promise.withResolvers<void>()
    hub.rest = promise
    const script = "import(process.argv[1]).then(({ hubFolder }) => hubFolder('owner/tiny')).then(console.log)"
    const start = () => spawn(process.execPath, ['-e', script, new URL('../../src/model/files/hub.ts', import.meta.url).href])
    const asksWeights = async (times: number) => {
      const asked = () => hub.asked.filter(({ path }) => path.endsWith('/model.safetensors')).length
      while (asked() < times) await sleep(20)
      await sleep(100)
    }
    const killed = start()
    await asksWeights(1)
    const first = start()
    await asksWeights(2)
    killed.kill('SIGKILL')
    await once(killed, 'close')
    expect(readdirSync(blobs).filter((name) => name.endsWith('.part'))).toHaveLength(2)
    const second = start()
    await asksWeights(3)
    resolve()
    const ends = await Promise.all(
      [first, second].map(async (child) => {
        const [out, [code]] = await Promise.all([text(child.stdout), once(child, 'close')])
        return [code, out.trim()]
      }),
    )
    const snapshot = join(cache, 'models--owner--tiny/snapshots', sha)
    expect(ends).toEqual([[0, snapshot], [0, snapshot]]) // prettier-ignore
    for (const name of readdirSync(snapshot).filter((name) => files.has(name)))
      expect(readFileSync(join(snapshot, name)), name).toEqual(files.get(name))
    expect(readdirSync(blobs).filter((name) => name.includes('.'))).toEqual([])
  })
  test('whose file came damaged, or not to its end, is not taken', async () => {
    hub.use(newFolder())
    const weights = 'model.safetensors'
    hub.send = (path, data) => (path === weights ? Buffer.from(data).fill(0, 5000, 9000) : data)
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain(`${weights} arrived damaged`)
    hub.send = (path, data) => (path === weights ? data.subarray(0, 5000) : data)
    const size = files.get(weights)!.length
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain(`received 5000 bytes of ${weights} instead of ${size}`)
    hub.send = (_, data) => data
    ;(await openModel('owner/tiny')).close()
  })
  test('that a server sends which ignores byte ranges, with an empty file', async () => {
    onTestFinished(() => void files.delete('merges.txt'))
    files.set('merges.txt', Buffer.alloc(0))
    for (const ranges of [false, true]) {
      hub.use(newFolder())
      hub.ranges = ranges
      const model = await openModel('owner/tiny')
      expect(readFileSync(join(model.path, 'merges.txt'), 'utf8')).toBe('')
      model.close()
    }
  })
  test('whose file is refused after others came: the reason is said as for the first one', async () => {
    hub.use(newFolder())
    const refused = async (status: number) => {
      hub.status = (path) => (path === 'model.safetensors' ? status : undefined)
      return await userErrorOf(() => openModel('owner/tiny'))
    }
    expect(await refused(403)).toContain(': it does not exist, or needs a token (set HF_TOKEN) whose owner was given access.')
    expect(await refused(404)).toContain(': it has no model.safetensors, although its list of files names it.')
    expect(await refused(429)).toContain(
      ': the server has had too many requests for now (status 429). Try again in some minutes, or set',
    )
    expect(await refused(503)).toContain(': the server has failed (status 503). Try again later: files that are complete')
    expect(await refused(418)).toContain(': the answer for model.safetensors has status 418.')
    expect(await refused(204)).toContain(': received 0 bytes of model.safetensors instead of')
  })
  test('that does not exist, or may not be fetched, is said in a sentence', async () => {
    const cache = newFolder()
    hub.use(cache)
    const absent = await userErrorOf(() => openModel('owner/other'))
    expect(absent).toContain('there is no model of this name or revision')
    // It may be a path that somebody mistyped, or is not in the folder of.
    expect(absent).toContain('There is no folder of that name here either')
    process.env.HF_HUB_OFFLINE = '1'
    hub.asked.length = 0
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain('HF_HUB_OFFLINE forbids downloading it')
    expect(hub.asked).toEqual([])
    delete process.env.HF_HUB_OFFLINE
    process.env.TRANSFORMERS_OFFLINE = '1'
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain('TRANSFORMERS_OFFLINE forbids downloading it')
    // As in huggingface_hub.
    process.env.HF_HUB_OFFLINE = '0'
    process.env.HF_ENDPOINT = 'http://127.0.0.1:1'
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain('could not be fetched from http://127.0.0.1:1')
  })
  test('in the layout of the Python libraries is found', async () => {
    const cache = newFolder()
    hub.use(cache)
    const repo = join(cache, 'models--some--model')
    mkdirSync(join(repo, 'refs'), { recursive: true })
    writeFileSync(join(repo, 'refs/main'), `${sha}\n`)
    cpSync(source, join(repo, 'snapshots', sha), { recursive: true })
    writeFileSync(join(repo, 'snapshots', sha, 'tokenizer.json'), '{}')
    ;(await openModel('some/model')).close()
    expect(hub.asked).toEqual([])
  })
})
