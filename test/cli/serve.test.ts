/** `node cli.js serve` as a process: its line, its answers, its end; and what it refuses to start with. */
import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import { afterAll, describe, expect, test, vi } from 'vitest'
import { modelParts } from '../../src/cli/serve-parts.ts'
import { linearShapes } from '../../src/model/decoder/shapes.ts'
import { openModel } from '../../src/model/files/open.ts'
import { writeAdapter, type LoraPair } from '../../src/model/files/peft.ts'
import { isWindows, posixOnly } from '../windows.ts'

const root = join(import.meta.dirname, '../..')
const children: ChildProcess[] = []
afterAll(() => children.forEach((child) => child.kill('SIGKILL')))

interface Served {
  child: ChildProcess
  out: () => string
  err: () => string
  ended: Promise<number | null>
}

function serve(words: string[], env: Record<string, string> = {}): Served {
  const child = spawn(process.execPath, ['cli.js', 'serve', ...words], { cwd: root, env: { ...process.env, ...env } })
  children.push(child)
  let [out, err] = ['', '']
  child.stdout.on('data', (piece: Buffer) => (out += piece.toString()))
  child.stderr.on('data', (piece: Buffer) => (err += piece.toString()))
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve))
  return { child, out: () => out, err: () => err, ended }
}

/** The URL of its line. */
async function urlOf(served: Served): Promise<string> {
  const gone = served.ended.then(() => true)
  while (true) {
    const url = /(http:\/\/[^ ]+)\/v1 /.exec(served.out())?.[1]
    if (url) return url
    const ended = await Promise.race([gone, new Promise<false>((resolve) => setTimeout(() => resolve(false), 50))])
    if (ended) throw new Error(`it ended: ${served.err()}`)
  }
}

describe('serve', () => {
  posixOnly('signals')('says where it is, answers, and ends on SIGTERM after what runs', async () => {
    const served = serve(
      [
        '--model',
        'models/tiny',
        '--port',
        '0',
        '--served-model-name',
        'tiny',
        '--served-model-name',
        'other',
        '--max-model-len',
        '600',
        '--api-key',
        'k1',
      ],
      {
        DAWN_RL_API_KEY: 'k2',
      },
    )
    const url = await urlOf(served)
    expect(served.out()).toMatch(
      /^tiny, other at http:\/\/127\.0\.0\.1:\d+\/v1 \| context 600 tokens \| KV cache of [\d.]+k? tokens \([\d.]+ \w+\)\n$/,
    )
    expect(served.err()).toMatch(/--max-model-len is 600; .*tiny was made for 512 tokens at most\n/)
    const [client, second] = ['k1', 'k2'].map((apiKey) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 }))
    const { data } = await second.models.list()
    expect(data.map(({ id }) => id)).toEqual(['tiny', 'other'])
    const stream = await client.completions.create({
      model: 'other',
      prompt: 'a',
      max_tokens: 100,
      stream: true,
      ...({ ignore_eos: true } as object),
    })
    let reason: string | null = null
    let pieces = 0
    for await (const { choices } of stream) {
      if (++pieces === 3) served.child.kill('SIGTERM')
      reason = choices[0].finish_reason
    }
    expect(reason).toBe('length')
    expect(await served.ended).toBe(0)
    expect(served.err()).toMatch(/SIGTERM: running requests get 30 s/)
    const line = served
      .err()
      .split('\n')
      .find((text) => text.includes('"path":"/v1/completions"'))
    expect(JSON.parse(line!)).toMatchObject({
      level: 'info',
      status: 200,
      prompt_tokens: 1,
      completion_tokens: 100,
      ended: 'length',
    })
    expect(served.err()).not.toMatch(/k1|k2/)
  })

  posixOnly('signals')('lets requests end on SIGTERM that a pause holds', async () => {
    const served = serve(['--model', 'models/tiny', '--port', '0', '--drain-seconds', '20'])
    const url = await urlOf(served)
    expect((await fetch(`${url}/pause`, { method: 'POST' })).status).toBe(200)
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
    const asked = client.completions.create({
      model: 'models/tiny',
      prompt: 'a',
      max_tokens: 9,
      ...({ ignore_eos: true } as object),
    })
    await vi.waitFor(async () => expect(await (await fetch(`${url}/metrics`)).text()).toMatch(/num_requests_waiting\{.*\} 1\n/))
    served.child.kill('SIGTERM')
    expect((await asked).choices[0].finish_reason).toBe('length')
    expect(await served.ended).toBe(0)
  })

  posixOnly('signals')('ends at once on the second signal', async () => {
    const served = serve(['--model', 'models/tiny', '--port', '0', '--log-level', 'silent'])
    const url = await urlOf(served)
    const asked = fetch(`${url}/v1/completions`, {
      method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ prompt: 'a', max_tokens: 500, ignore_eos: true, n: 8 }),
    }) // prettier-ignore
    asked.catch(() => {})
    await new Promise((resolve) => setTimeout(resolve, 300))
    served.child.kill('SIGINT')
    await new Promise((resolve) => setTimeout(resolve, 100))
    served.child.kill('SIGINT')
    expect(await served.ended).toBe(130)
  })

  posixOnly('signals')('ends with code 1 when its device is lost, after the answers that then fail', async () => {
    // On the signal, as a driver that restarts would.
    const hook = `import { globals } from '${import.meta.resolve('webgpu')}'
      const { prototype } = globals.GPUAdapter
      const open = prototype.requestDevice
      prototype.requestDevice = async function (...words) {
        const device = await open.apply(this, words)
        process.once('SIGUSR2', () => device.destroy())
        return device
      }`
    const served = serve(['--model', 'models/tiny', '--port', '0'], {
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(hook)}`,
    })
    const url = await urlOf(served)
    const asked = fetch(`${url}/v1/completions`, {
      method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ prompt: 'a', max_tokens: 500, ignore_eos: true, n: 8 }),
    }) // prettier-ignore
    const running = async () => expect(await (await fetch(`${url}/metrics`)).text()).toMatch(/num_requests_running\{.*\} 8\n/)
    await vi.waitFor(running, { timeout: 20_000 })
    served.child.kill('SIGUSR2')
    expect((await asked).status).toBe(500)
    expect(await served.ended).toBe(1)
    expect(served.err()).toMatch(/\nthe GPU device was lost \(destroyed\): .+ The server has stopped, .+ start it again\.\n/)
  })

  test('refuses sampling defaults that every request would be refused for', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-serve-'))
    const model = await openModel(join(root, 'models/tiny'))
    const tokenizer = await model.tokenizer()
    const file = join(dir, 'generation_config.json')
    const defaults = async (text: string, generationConfig = dir, rawGenerationConfig: Record<string, unknown> | null = null) => {
      writeFileSync(file, text)
      const options = { toolCallParser: 'auto', reasoningParser: 'auto', generationConfig }
      return (await modelParts({ ...model, rawGenerationConfig }, tokenizer, options)).parts.defaults
    }
    try {
      const good = '{"temperature": 0.6, "top_k": null, "max_new_tokens": 5, "eos_token_id": 1, "do_sample": true}'
      expect(await defaults(good)).toEqual({ temperature: 0.6, max_tokens: 5 })
      await expect(defaults('null')).rejects.toThrow(`${file} must hold a JSON object.`)
      await expect(defaults('{"top_p": 5}')).rejects.toThrow(`${file}: top_p is 5: Too big`)
      await expect(defaults('{"temperature": -1}')).rejects.toThrow(/temperature is -1: .* serve with --generation-config vllm/)
      await expect(defaults('{}', file, null)).resolves.toEqual({})
      const own = { max_new_tokens: 0 }
      await expect(defaults('{}', 'auto', own)).rejects.toThrow(/generation_config.json of tiny: max_new_tokens is 0: Too small/)
      await expect(defaults('{}', 'vllm', own)).resolves.toEqual({})
    } finally {
      model.close()
      rmSync(dir, { recursive: true })
    }
  })

  test("an answer also ends with the token that --chat-template writes behind it, as with the model's own template", async () => {
    const model = await openModel(join(root, 'models/tiny'))
    const tokenizer = await model.tokenizer()
    const ends = async (chatTemplate?: string) => {
      const options = { toolCallParser: 'auto', reasoningParser: 'auto', generationConfig: 'vllm', chatTemplate }
      const variables = { end: '<|tool|>' }
      const { parts } = await modelParts(model, tokenizer, { ...options, chatTemplateKwargs: variables })
      return parts.eosTokenIds.map((id) => tokenizer.idToToken(id))
    }
    try {
      expect(await ends()).toEqual(['<|end|>'])
      expect(await ends("{% for m in messages %}{{ m.role + m.content + end + '\\n' }}{% endfor %}")).toEqual([
        '<|end|>',
        '<|tool|>',
      ])
      expect(await ends('{% for m in messages %}{{ m.content }}<|end|>{% endfor %}')).toEqual(['<|end|>'])
      expect(await ends('{% for m in messages %}{{ m.content }} :{% endfor %}')).toEqual(['<|end|>'])
      expect(await ends('{% raw %}')).toEqual(['<|end|>'])
    } finally {
      model.close()
    }
  })

  test('refuses to start where the GPU has no room for the KV cache', async () => {
    // The software driver promises larger buffers and textures than it makes.
    const hook = `import { globals } from '${import.meta.resolve('webgpu')}'
      const { prototype } = globals.GPUAdapter
      const open = prototype.requestDevice
      prototype.requestDevice = async function (...words) {
        const device = await open.apply(this, words)
        const [buffer, texture] = [device.createBuffer, device.createTexture].map((create) => create.bind(device))
        device.createBuffer = (of) => buffer(of.label === 'KV cache' ? { ...of, size: device.limits.maxBufferSize } : of)
        const { maxTextureDimension2D: most } = device.limits
        device.createTexture = (of) => texture(of.label === 'KV cache' ? { ...of, size: [most, most] } : of)
        return device
      }`
    const served = serve(['--model', 'models/tiny', '--port', '0'], {
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(hook)}`,
    })
    expect(await served.ended).toBe(2)
    expect(served.out()).not.toContain('/v1')
    expect(served.err()).toMatch(/\nThe GPU has no room for the model and a KV cache of .+ \(.+\)\. Lower --kv-cache-bytes, .+\n/)
  })

  test.skipIf(isWindows)(
    'ends at once on a signal while it loads, with no word of requests that nobody could send',
    async () => {
      const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-serve-'))
      cpSync(join(root, 'models/tiny'), dir, { recursive: true })
      rmSync(join(dir, 'tokenizer.json'))
      execFileSync('mkfifo', [join(dir, 'tokenizer.json')])
      const served = serve(['--model', dir, '--port', '0'])
      // Opens as soon as somebody reads there, who then waits for what never comes.
      const held = await open(join(dir, 'tokenizer.json'), 'w')
      try {
        served.child.kill('SIGTERM')
        await served.ended
        expect(served.child.signalCode).toBe('SIGTERM')
        expect(served.out() + served.err()).not.toMatch(/requests/)
      } finally {
        await held.close()
        rmSync(dir, { recursive: true })
      }
    },
    60_000,
  )

  test('says what is wrong in its words before it opens the device and loads the model', async () => {
    const taken = createServer()
    await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve))
    const { port } = taken.address() as AddressInfo
    const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-serve-'))
    const tensors = new Map<string, LoraPair>()
    const path = 'model.layers.0.self_attn.q_proj'
    const files = await openModel(join(root, 'models/tiny'))
    const [outputs, inputs] = linearShapes(files.config).get(path)!
    files.close()
    tensors.set(path, { A: new Float32Array(24 * inputs), B: new Float32Array(24 * outputs), r: 24 })
    const config = { r: 24, loraAlpha: 24, loraDropout: 0, targetModules: ['q_proj'], useRslora: false, baseModel: 'tiny' }
    await writeAdapter(join(dir, 'a'), { config, tensors })
    const adapter = `one=${join(dir, 'a')}`
    const cases: [string[], RegExp][] = [
      [['--port', String(port)], /can't listen on 127\.0\.0\.1:\d+: that address is in use already\. Choose another/],
      [['--host', '0.0.0.0'], /needs a key there/],
      [['--adapter', 'one=no/such'], /There is no folder .*no\/such/],
      [['--adapter', adapter], /has rank 24, but --max-lora-rank is 16\. Raise it\./],
      [['--adapter', adapter, '--adapter', adapter], /--adapter gives the name one twice/],
      [['--adapter', adapter, '--max-loras', '0'], /--adapter is given 1 times, but --max-loras is 0\. Raise it\./],
      [
        ['--tool-call-parser', 'nope'],
        /^There is no --tool-call-parser nope; choose hermes, llama3_json, json, none or auto\.$/m,
      ],
      [['--generation-config', 'no/such'], /no\/such/],
    ]
    for (const [words, message] of cases) {
      const served = serve(['--model', 'models/tiny', '--port', '0', ...words])
      expect(await served.ended).toBe(2)
      expect(served.err()).toMatch(message)
      expect(served.err()).not.toMatch(/no GPU found|loading/)
    }
    taken.close()
    rmSync(dir, { recursive: true })
  }, 120_000)

  test.each([
    [['--model', 'models/none'], /There is no model at models\/none/],
    [['--model', 'models/tiny', '--host', '0.0.0.0'], /needs a key there: set --api-key or DAWN_RL_API_KEY/],
    [['--model', 'models/tiny', '--adapter', 'x'], /--adapter x: write it as NAME=DIR/],
    [['--model', 'models/tiny', '--served-model-name', 'tiny', '--adapter', 'tiny=x'], /tiny is the model's own name/],
    [['--model', 'models/tiny', '--port', '0', '--api-key', ''], /no request could carry it/],
    [['--model', 'models/tiny', '--adapter-root', 'no/such'], /--adapter-root no\/such does not exist/],
    [['--model', 'models/tiny', '--chat-template', 'no-such.jinja'], /--chat-template no-such\.jinja can't be read/],
    [
      ['--model', 'models/tiny', '--chat-template', 'models/tiny/model.safetensors'],
      /^--chat-template models\/tiny\/model\.safetensors is not UTF-8 text/m,
    ],
    [
      ['--model', 'models/tiny', '--kv-cache-bytes', '100K', '--max-model-len', '512'],
      /One sequence of 512 tokens needs .* Raise --kv-cache-bytes or lower --max-model-len/,
    ],
    [
      ['--model', 'models/tiny', '--kv-cache-bytes', '512'],
      /^The smallest KV cache takes .* KiB, and there is room for 512 B\. Raise --kv-cache-bytes: 512M is 512 MiB\.$/m,
    ],
    [
      ['--model', 'models/tiny', '--port', '0', '--default-chat-template-kwargs', '{"enable_thinking": "false"}'],
      /^--default-chat-template-kwargs: chat_template_kwargs\.enable_thinking is "false", a string, .* Write false\.$/m,
    ],
    [['--model', 'models/tiny', '--port', 'high'], /whole number from 0 to 65535/],
    [['--model', 'models/tiny', '--no-such-flag'], /unknown option/],
  ])('refuses %j', async (words, message) => {
    const served = serve(words)
    expect(await served.ended).toBe(2)
    expect(served.err()).toMatch(message)
    expect(served.err()).not.toMatch(/\n\s+at /)
  })
})
