import { createServer } from 'node:http'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createHash } from 'node:crypto'
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { openModel } from '../../src/model/open.ts'
import { writeSafetensors } from '../../src/model/safetensors.ts'
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
  test('whose parts are missing or do not fit says which', async () => {
    const dir = copy()
    const [config, weights] = [join(dir, 'config.json'), join(dir, 'model.safetensors')]
    const raw = JSON.parse(readFileSync(config, 'utf8')) as Record<string, unknown>
    writeFileSync(config, JSON.stringify({ ...raw, num_hidden_layers: 3 }))
    expect(await userErrorOf(() => openModel(dir))).toContain(`Tensor model.layers.2.input_layernorm.weight is missing in ${dir}`)
    writeFileSync(config, JSON.stringify({ ...raw, vocab_size: 500 }))
    expect(await userErrorOf(() => openModel(dir))).toBe(
      `Tensor model.embed_tokens.weight in ${dir} has shape [512, 64], and its config asks for [500, 64].`,
    )
    writeFileSync(config, JSON.stringify({ ...raw, tie_word_embeddings: false }))
    expect(await userErrorOf(() => openModel(dir))).toContain('Tensor lm_head.weight is missing')
    writeFileSync(config, JSON.stringify(raw))
    // One file of all weights comes first: transformers leaves the index of an earlier save beside it, without its shards.
    writeFileSync(
      join(dir, 'model.safetensors.index.json'),
      JSON.stringify({ weight_map: { x: 'model-00001-of-00002.safetensors' } }),
    )
    ;(await openModel(dir)).close()
    writeFileSync(weights, readFileSync(weights).subarray(0, 5000))
    expect(await userErrorOf(() => openModel(dir))).toContain(`${weights} is not a whole safetensors file`)
    rmSync(weights)
    expect(await userErrorOf(() => openModel(dir))).toContain('model-00001-of-00002.safetensors is missing')
    writeFileSync(join(dir, 'model.safetensors.index.json'), JSON.stringify({ weight_map: { x: '../../secret.safetensors' } }))
    expect(await userErrorOf(() => openModel(dir))).toContain('names "../../secret.safetensors" as a file of weights')
    rmSync(join(dir, 'model.safetensors.index.json'))
    expect(await userErrorOf(() => openModel(dir))).toContain('has neither model.safetensors nor model.safetensors.index.json')
    rmSync(config)
    expect(await userErrorOf(() => openModel(dir))).toContain('has no config.json')
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
  const oid = (path: string) => createHash('sha1').update(path).digest('hex')
  const asked: { path: string; token: string | undefined }[] = []
  let server: Server
  let failAfter = Infinity
  const environment = { ...process.env }

  beforeAll(async () => {
    server = createServer((request, response) => {
      const { pathname } = new URL(request.url ?? '', 'http://localhost')
      asked.push({ path: pathname, token: request.headers.authorization })
      const entry = (path: string) => ({
        type: 'file',
        path,
        size: files.get(path)?.length,
        oid: oid(path),
        lastCommit: { id: sha, title: '', date: '' },
      })
      const send = (value: unknown) => response.setHeader('content-type', 'application/json').end(JSON.stringify(value))
      if (asked.length > failAfter) return void response.destroy()
      if (pathname === '/api/models/owner/tiny/revision/main')
        return void send({ _id: '1', id: 'owner/tiny', sha, siblings: [], lastModified: new Date(0) })
      if (pathname === `/api/models/owner/tiny/tree/${sha}`) return void send([...files.keys()].map(entry))
      if (pathname === `/api/models/owner/tiny/paths-info/${sha}`) {
        let body = ''
        request.on('data', (chunk) => (body += String(chunk)))
        request.on('end', () => send((JSON.parse(body) as { paths: string[] }).paths.map(entry)))
        return
      }
      const data = files.get(pathname.replace(`/owner/tiny/resolve/${sha}/`, ''))
      if (!data) return void response.writeHead(404, { 'X-Error-Code': 'RepoNotFound' }).end('{}')
      const [, from, to] = /bytes=(\d+)-(\d*)/.exec(request.headers.range ?? '') ?? []
      response.setHeader('etag', `"${oid(pathname)}"`)
      if (from === undefined) return void response.end(data)
      const last = to ? Math.min(Number(to), data.length - 1) : data.length - 1
      response
        .writeHead(206, { 'content-range': `bytes ${from}-${last}/${data.length}` })
        .end(data.subarray(Number(from), last + 1))
    })
    await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready))
  })
  afterAll(() => void server.close())
  beforeEach(() => void vi.spyOn(process.stderr, 'write').mockReturnValue(true))
  afterEach(() => {
    vi.restoreAllMocks()
    process.env = { ...environment }
    asked.length = 0
    failAfter = Infinity
  })
  const useCache = (cache: string) => {
    for (const name of ['HF_HOME', 'HUGGINGFACE_HUB_CACHE', 'HF_TOKEN', 'HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE'])
      delete process.env[name]
    Object.assign(process.env, {
      HF_HUB_CACHE: cache,
      HF_ENDPOINT: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
      HF_TOKEN_PATH: '/dev/null',
    })
  }

  test('is fetched into the cache once, without what is not needed, and then never asked for again', async () => {
    const cache = newFolder()
    useCache(cache)
    process.env.HF_TOKEN = 'hf_secret'
    const model = await openModel('owner/tiny')
    expect([model.name, model.path]).toEqual(['owner/tiny', join(cache, 'models--owner--tiny/snapshots', sha)])
    expect(readFileSync(join(model.path, 'model.safetensors'))).toEqual(files.get('model.safetensors'))
    expect(readFileSync(join(cache, 'models--owner--tiny/refs/main'), 'utf8')).toBe(sha)
    expect(readdirSync(model.path).toSorted()).toEqual([
      'config.json',
      'generation_config.json',
      'model.safetensors',
      'tokenizer.json',
    ])
    expect(vi.mocked(process.stderr.write).mock.calls[0]).toEqual(['fetching config.json (0.0 MB)\n'])
    expect(asked.every(({ token }) => token === 'Bearer hf_secret')).toBe(true)
    model.close()
    asked.length = 0
    ;(await openModel('owner/tiny')).close()
    process.env.HF_HUB_OFFLINE = '1'
    ;(await openModel('owner/tiny')).close()
    expect(asked).toEqual([])
  })
  test('that was cut off is taken up again', async () => {
    const cache = newFolder()
    useCache(cache)
    failAfter = 6
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain(
      'The model owner/tiny could not be fetched from http://127.0.0.1',
    )
    expect(existsSync(join(cache, 'models--owner--tiny/refs/main'))).toBe(false)
    failAfter = Infinity
    const before = asked.length
    ;(await openModel('owner/tiny')).close()
    // config.json came the first time.
    expect(asked.slice(before).some(({ path }) => path.endsWith('/config.json'))).toBe(false)
  })
  test('that does not exist, or may not be fetched, is said in a sentence', async () => {
    const cache = newFolder()
    useCache(cache)
    const absent = await userErrorOf(() => openModel('owner/other'))
    expect(absent).toContain('there is no model of this name or revision')
    // It may be a path that somebody mistyped, or is not in the folder of.
    expect(absent).toContain('There is no folder of that name here either')
    process.env.HF_HUB_OFFLINE = '1'
    asked.length = 0
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain('HF_HUB_OFFLINE forbids to fetch it')
    expect(asked).toEqual([])
    delete process.env.HF_HUB_OFFLINE
    process.env.HF_ENDPOINT = 'http://127.0.0.1:1'
    expect(await userErrorOf(() => openModel('owner/tiny'))).toContain('could not be fetched from http://127.0.0.1:1')
  })
  test('in the layout of the Python libraries is found', async () => {
    const cache = newFolder()
    useCache(cache)
    const repo = join(cache, 'models--some--model')
    mkdirSync(join(repo, 'refs'), { recursive: true })
    writeFileSync(join(repo, 'refs/main'), `${sha}\n`)
    cpSync(source, join(repo, 'snapshots', sha), { recursive: true })
    writeFileSync(join(repo, 'snapshots', sha, 'tokenizer.json'), '{}')
    ;(await openModel('some/model')).close()
    expect(asked).toEqual([])
  })
})
