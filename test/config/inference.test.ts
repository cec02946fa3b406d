/** [inference]: what the two backends take, what is said of the other's keys, and each refusal. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, sep } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { messageOf, UserError } from '../../src/common/errors.ts'
import { loadConfig, parseConfig } from '../../src/config/load.ts'
import { memoryOf } from '../../src/config/memory.ts'
import { stringifyConfig } from '../../src/config/toml-write.ts'
import { openModel } from '../../src/model/files/open.ts'
import { asPosix, isWindows } from '../windows.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-inference-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** Loads a config file of these lines, with words after it. */
function load(text: string, ...words: string[]) {
  const file = join(folder, 'a.toml')
  writeFileSync(file, text)
  const loaded = loadConfig(['@', file, ...words])
  if ('help' in loaded) throw new Error('help')
  return loaded
}

/** The sentences of the mistake that a config is, each from its place on. */
function mistakesOf(text: string, ...words: string[]): string[] {
  try {
    load(text, ...words)
  } catch (error) {
    expect(error).toBeInstanceOf(UserError)
    const lines = asPosix(messageOf(error))
      .replaceAll(`${asPosix(folder)}/`, '')
      .split('\n')
    return lines.length === 1 ? lines : lines.slice(1).map((line) => line.trim())
  }
  throw new Error('it did not throw')
}

/** Line 1 is the model, 2 and 3 the environment, 4 [inference]; then `inference`, then [trainer.args] with `args`. */
const config = (inference: string, args = '', model = 'models/tiny') =>
  `model = "${model}"\n[env]\nid = "reverse-text"\n[inference]\n${inference}\n[trainer.args]\nrun_name = "x"\n${args}\n`
const vllm = (inference = '', args = '', model?: string) => config(`backend = "vllm"\n${inference}`, args, model)

test('vllm takes its defaults, its flags as they are written, and is written out and read back', () => {
  const { config: plain, notices } = load(vllm())
  expect(notices).toEqual([])
  expect(plain.inference).toEqual({
    backend: 'vllm', max_num_seqs: 32, python: '.venv-vllm/bin/python', startup_timeout: 900, push_timeout: 300, max_restarts: 3, args: {},
  }) // prettier-ignore
  const flags = `max_num_seqs = 8
python = "/opt/vllm/bin/python"
startup_timeout = 60
push_timeout = 1.5
max_restarts = 0
[inference.args]
gpu_memory_utilization = 0.5
enforce-eager = true
dtype = "float32"
max_loras = 2
port = 8123
no_enable_prefix_caching = true
compilation_config = { level = 0, custom_ops = ["none"] }
middleware = ["a.b", "c.d"]`
  const { config: full } = load(vllm(flags), '--inference.args.max-model-len', '4096')
  expect(full.inference).toMatchObject({ python: '/opt/vllm/bin/python', push_timeout: 1.5, max_restarts: 0, max_num_seqs: 8 })
  expect(full.inference).toHaveProperty('args', {
    gpu_memory_utilization: 0.5, 'enforce-eager': true, dtype: 'float32', max_loras: 2, port: 8123, no_enable_prefix_caching: true,
    compilation_config: { level: 0, custom_ops: ['none'] }, middleware: ['a.b', 'c.d'], 'max-model-len': 4096,
  }) // prettier-ignore
  for (const one of [plain, full]) expect(parseConfig(stringifyConfig(one))).toMatchObject({ config: one, notices: [] })
})

test('base_url attaches: its end is put in order, and what is for a server of ours has no effect', () => {
  for (const url of ['http://127.0.0.1:8000', 'http://127.0.0.1:8000/', 'http://127.0.0.1:8000/v1/']) {
    const { config: attached, notices } = load(vllm(`base_url = "${url}"`))
    expect(attached.inference).toHaveProperty('base_url', 'http://127.0.0.1:8000')
    expect(notices).toEqual([])
    expect(parseConfig(stringifyConfig(attached))).toMatchObject({ config: attached, notices: [] })
  }
  expect(load(vllm('base_url = "https://[::1]/vllm"')).config.inference).toHaveProperty('base_url', 'https://[::1]/vllm')
  expect(load(vllm('base_url = "http://gpu:80"\npython = "p"\nmax_restarts = 1\npush_timeout = 9')).notices).toEqual([
    'inference.python has no effect: inference.base_url names a server that runs already.',
    'inference.max_restarts has no effect: inference.base_url names a server that runs already.',
  ])
  for (const url of ['localhost:8000', 'ftp://x', 'http://', 'http://a b', 'http://x?y=1'])
    expect(mistakesOf(vllm(`base_url = "${url}"`))).toEqual([
      `a.toml:6:1: inference.base_url is "${url}"; it must be an http URL such as "http://127.0.0.1:8000".`,
    ])
  expect(mistakesOf(vllm('base_url = "http://x"\nargs = { port = 1 }'))).toEqual([
    'a.toml:7:1: inference.args has flags for a server that the run starts, but inference.base_url names one that runs already. Keep one of them.',
  ])
})

describe('the embedded engine', () => {
  test('leaves the keys of vllm out of the resolved config, and says that they have no effect', () => {
    const { config: loaded, notices } = load(config('python = "p"\npush_timeout = 9\nargs = { enforce_eager = true, port = 1 }'))
    expect(loaded.inference).toEqual({
      backend: 'embedded',
      max_num_seqs: 32,
      kv_cache_dtype: 'f32',
      reuse_kv_cache: false,
      serve: false,
    })
    expect(notices.map((line) => line.replaceAll(folder + sep, ''))).toEqual([
      'a.toml:7:1: inference.args (enforce_eager, port) are flags of vLLM and are ignored: the embedded engine generates in this process. backend = "vllm" under [inference] would use them.',
      'inference.python has no effect: the embedded engine samples; write backend = "vllm".',
      'inference.push_timeout has no effect: the embedded engine samples; write backend = "vllm".',
    ])
  })
  test('says nothing of an empty table of flags', () => {
    expect(load(config('args = {}')).notices).toEqual([])
  })
  test('refuses base_url', () => {
    expect(mistakesOf(config('base_url = "http://127.0.0.1:8000"'))).toEqual([
      'a.toml:5:1: inference.base_url is set, but inference.backend is "embedded". Write backend = "vllm" to sample from that server, or remove base_url.',
    ])
  })
  test('refuses steps without room for any prompt', () => {
    const rows = (count: number) => config(`max_num_seqs = 8\nmax_num_batched_tokens = ${count}`)
    expect(mistakesOf(rows(8))).toEqual([expect.stringContaining('no prompt would ever fit. Raise it, or lower max_num_seqs.')])
    expect(load(rows(9)).notices).toEqual([])
  })
  test('samples with what vllm cannot', () => {
    const args = 'temperature = 0.7\ntop_p = 0.9\nlora_rank = 600'
    expect(load(config('', args, 'models/x.gguf')).config.model.name).toBe('models/x.gguf')
  })
})

describe('flags that the run sets itself, and values that are no flags', () => {
  test.each([
    ['model = "x"', 'the server gets the `model` of the config'],
    ['served-model-name = "x"', 'the run names the model itself'],
    ['tokenizer = "x"', "prompts go to the server as token ids of the model's own tokenizer"],
    ['host = "0.0.0.0"', 'the server listens on this machine alone; inference.base_url attaches to one that runs elsewhere'],
    ['api_key = "x"', 'the server listens on this machine alone and asks for no key'],
    ['logprobs-mode = "raw_logits"', 'it follows from trainer.args.temperature and the other sampling keys'],
    ['generation_config = "vllm"', 'every request carries the sampling values of [trainer.args]'],
    ['override-generation-config = { temperature = 1.0 }', 'every request carries the sampling values of [trainer.args]'],
    ['enable_lora = true', 'trainer.args.use_lora sets it'],
    ['no-enable-lora = true', 'trainer.args.use_lora sets it'],
    ['max_lora_rank = 8', 'trainer.args.lora_rank sets it'],
    ['max_num_seqs = 8', 'inference.max_num_seqs sets it'],
    ['enable_scale_out = true', 'the run talks to one server through its OpenAI routes'],
    ['config = "x.yaml"', 'a second file of flags could contradict this one; write its flags under [inference.args]'],
  ])('%s', (line, why) => {
    const key = line.split(' ')[0]
    expect(mistakesOf(vllm(`[inference.args]\n${line}`))).toEqual([
      `a.toml:7:1: inference.args.${key} is set by the run: ${why}. Remove it.`,
    ])
  })
  test('all at once, and each with its place', () => {
    const flags = `[inference.args]
host = "x"
max_loras = 2
max-loras = 3
seed = 2026-01-01
max_model_len = nan
x = [[1]]
y = []
"--dtype" = "float32"`
    expect(mistakesOf(vllm(flags))).toEqual([
      'a.toml:7:1: inference.args.host is set by the run: the server listens on this machine alone; inference.base_url attaches to one that runs elsewhere. Remove it.',
      'a.toml:8:1: inference.args.max_loras and inference.args.max-loras are the same flag. Keep one of them.',
      'a.toml:10:1: inference.args.seed is 2026-01-01; a flag takes a string, a number, true or false, a list of those, or a table.',
      'a.toml:11:1: inference.args.max_model_len is NaN; a flag takes a string, a number, true or false, a list of those, or a table.',
      'a.toml:12:1: inference.args.x is [[1]]; a flag takes a string, a number, true or false, a list of those, or a table.',
      'a.toml:13:1: inference.args.y is []; a flag takes a string, a number, true or false, a list of those, or a table.',
      'a.toml:14:1: inference.args has the key "--dtype": write a flag without its dashes, as in gpu_memory_utilization = 0.5.',
    ])
    expect(mistakesOf(vllm(), '--inference.args.host', 'x')[0]).toMatch(
      /^--inference\.args\.host: inference\.args\.host is set by/,
    )
  })
})

/** What is said of a GGUF. */
const hint = (model: string, gguf: string, out: string) =>
  `a.toml:1:1: model.name is "${model}", but vLLM reads Hugging Face folders only: run \`node cli.js merge --model ${gguf} --out ${out}\`, and set model = "${out}".`

const maxLoras = (n: number) => `[inference.args]\nmax-loras = ${n}`

describe('what vLLM cannot do of a config', () => {
  test('adapters of more versions than max_loras', () => {
    expect(mistakesOf(vllm(maxLoras(1)))).toEqual([
      'a.toml:7:1: inference.args.max-loras is 1, but 2 versions of the adapter are in use at once at max_async_level = 1. Use 2, or remove it.',
    ])
    expect(mistakesOf(vllm(maxLoras(3), 'max_async_level = 3'))).toEqual([
      'a.toml:7:1: inference.args.max-loras is 3, but 4 versions of the adapter are in use at once at max_async_level = 3. Use 4, or remove it.',
    ])
    expect(mistakesOf(vllm(maxLoras(1), 'max_async_level = 0'))).toHaveLength(1)
    expect(load(vllm(maxLoras(2), 'max_async_level = 0')).notices).toEqual([])
    expect(load(vllm(maxLoras(1), 'use_lora = false')).notices).toEqual([])
  })
  test('sequences that are longer than max_model_len', () => {
    const args = 'max_seq_len = 96\nmax_prompt_len = 80\nmax_tokens = 16'
    expect(mistakesOf(vllm('args = { max_model_len = 95 }', args))).toEqual([
      'a.toml:6:10: inference.args.max_model_len is 95, less than max_seq_len (96). Use 96, or remove it.',
    ])
    expect(load(vllm('args = { max_model_len = 96 }', args)).notices).toEqual([])
  })
  test('several API servers with adapters', () => {
    const flags = 'args = { api_server_count = 2 }'
    expect(mistakesOf(vllm(flags))[0]).toContain('each API server of vLLM knows only the adapters that were loaded through it')
    expect(load(vllm(flags, 'use_lora = false')).notices).toEqual([])
    expect(load(vllm('args = { api_server_count = 1 }')).notices).toEqual([])
  })
  test('weights in blocks', () => {
    expect(mistakesOf(vllm('', 'quantization = "q8_0"'))).toEqual([
      'a.toml:9:1: trainer.args.quantization is "q8_0", but the vLLM server samples from the weights as they are. Remove it, or sample with backend = "embedded".',
    ])
  })
  test('ranks over 512', () => {
    expect(mistakesOf(vllm('', 'lora_rank = 513'))).toEqual([
      'a.toml:9:1: trainer.args.lora_rank is 513, and vLLM takes ranks up to 512. Lower it, train all weights (use_lora = false), or sample with inference.backend = "embedded".',
    ])
    expect(load(vllm('', 'lora_rank = 512')).config.trainer.args.lora_rank).toBe(512)
  })
  test('filters at a temperature other than 1', () => {
    const rest =
      'with a temperature of 0.7 vLLM does not report the log-probability that is trained on, which is over the full vocabulary.'
    for (const line of [
      'top_p = 0.9',
      'top_k = 20',
      'min_p = 0.05',
      'repetition_penalty = 1.1',
      'presence_penalty = 0.5',
      'frequency_penalty = -0.5',
    ])
      // prettier-ignore
      expect(mistakesOf(vllm('', `${line}\ntemperature = 0.7`)), line).toEqual([
        `a.toml:9:1: trainer.args.${line.split(' ')[0]}: ${rest} Use temperature = 1.0, remove it, or sample with inference.backend = "embedded".`,
      ])
    expect(mistakesOf(vllm('', 'temperature = 0.7\ntop_k = 20\ntop_p = 0.9'))[0]).toContain(
      `trainer.args.top_p, top_k: ${rest} Use temperature = 1.0, remove them, or`,
    )
    expect(load(vllm('', 'top_p = 0.9\ntop_k = 20')).notices).toHaveLength(1)
    expect(load(vllm('', 'temperature = 0.7\ntop_k = -1\ntop_p = 1.0')).notices).toEqual([])
  })
  test('a GGUF, by its name or in a folder of its own', () => {
    expect(mistakesOf(vllm('', '', 'models/Smol-Instruct.Q4_1.gguf'))).toEqual([
      hint('models/Smol-Instruct.Q4_1.gguf', 'models/Smol-Instruct.Q4_1.gguf', 'models/Smol-Instruct'),
    ])
    expect(mistakesOf(vllm('', '', 'Qwen3-0.6B-BF16.gguf'))[0]).toContain('--out Qwen3-0.6B`')
    expect(mistakesOf(vllm('', '', 'q.gguf'))[0]).toContain('--out q`')
    const dir = asPosix(join(folder, 'm'))
    mkdirSync(dir)
    writeFileSync(join(dir, 'a.gguf'), '')
    // What is to be written into the config has backslashes that are escaped on Windows.
    const [one] = mistakesOf(vllm('', '', dir))
    if (isWindows) expect(one).toMatch(/ run `node cli\.js merge --model \S*m\/a\.gguf --out \S*m\/a`, /)
    else expect(one).toBe(hint('m', 'm/a.gguf', 'm/a'))
    writeFileSync(join(dir, 'config.json'), '')
    expect(load(vllm('', '', dir)).notices).toEqual([])
  })
  test('of the wrong values of its own keys', () => {
    const wrong = 'max_restarts = -1\nstartup_timeout = 0\npush_timeout = "1"\nargs = 1\npython = ""\nbase_ulr = "http://x"'
    expect(mistakesOf(vllm(wrong))).toEqual([
      'a.toml:6:1: inference.max_restarts is -1; it must be an integer >= 0.',
      'a.toml:7:1: inference.startup_timeout is 0; it must be a number > 0.',
      'a.toml:8:1: inference.push_timeout is "1", a string; it must be a number > 0. Write it without quotes.',
      'a.toml:9:1: inference.args is 1; it must be a table.',
      'a.toml:10:1: inference.python is empty.',
      'a.toml:11:1: inference.base_ulr is not a key of [inference]. Did you mean base_url?',
    ])
  })
})

describe('keys of vf-rl, prime-rl and TRL', () => {
  // As in the configs of prime-rl: flags right under [inference], and tables for model, server and parallel.
  const prime = `gpus = 2
gpu_memory_utilization = 0.5
enable_lora = true
[inference.model]
dtype = "float32"
[inference.server]
port = 8000
[inference.parallel]
tp = 2`
  test('with backend vllm say where they go', () => {
    expect(mistakesOf(vllm(prime, 'vllm_server_port = 8000\nvllm_gpu_memory_utilization = 0.4'))).toMatchInlineSnapshot(`
      [
        "a.toml:6:1: inference.gpus is not a key here: write tensor_parallel_size or data_parallel_size under [inference.args].",
        "a.toml:7:1: inference.gpu_memory_utilization is a flag of vLLM: write it under [inference.args].",
        "a.toml:8:1: inference.enable_lora is not a key here: trainer.args.use_lora and trainer.args.lora_rank set it.",
        "a.toml:9:1: inference.model is not a table here: vLLM serves the \`model\` of the config, and its flags (dtype, max_model_len, enforce_eager, tensor_parallel_size) are keys of [inference.args]. Move them there.",
        "a.toml:11:1: inference.server is not a key here: a server that the run starts listens on this machine only (port goes under [inference.args]). inference.base_url = "http://HOST:PORT" attaches to one that is already running.",
        "a.toml:13:1: inference.parallel is not a table here: vLLM serves the \`model\` of the config, and its flags (dtype, max_model_len, enforce_eager, tensor_parallel_size) are keys of [inference.args]. Move them there.",
        "a.toml:17:1: trainer.args.vllm_server_port is not a key here: inference.base_url = "http://HOST:PORT" attaches to a server that is already running; without it, the run starts its own.",
        "a.toml:18:1: trainer.args.vllm_gpu_memory_utilization is not a key here: write gpu_memory_utilization or tensor_parallel_size under [inference.args].",
      ]
    `)
    const { notices } = load(vllm('gpus = 1', 'use_vllm = true'))
    expect(notices.map((line) => line.replaceAll(folder + sep, ''))).toEqual([
      'a.toml:6:1: inference.gpus is not needed: vLLM uses one GPU; choose it with CUDA_VISIBLE_DEVICES.',
      'a.toml:9:1: trainer.args.use_vllm is ignored: inference.backend sets it.',
    ])
  })
  test('without it say that the embedded engine has none', () => {
    const [flag] = mistakesOf(config('gpu_memory_utilization = 0.5'))
    expect(flag).toContain('Remove it, or set backend = "vllm" and write it under [inference.args].')
    expect(mistakesOf(config(prime))).toHaveLength(6)
  })
})

test("vLLM's KV cache is not counted as memory of the run", async () => {
  const model = await openModel('models/tiny')
  const rows = (text: string) => memoryOf(load(text).config, model)
  const [embedded, served] = [rows(config('')), rows(vllm())]
  expect(embedded.filter((row) => !['KV cache', 'decoding'].includes(row.name))).toEqual(served)
  expect(embedded.length).toBe(served.length + 2)
  model.close()
})
