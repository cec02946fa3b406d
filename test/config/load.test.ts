import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, sep } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { messageOf, UserError } from '../../src/common/errors.ts'
import { batchLine, loadConfig, loadSftConfig, parseConfig, parseSftConfig } from '../../src/config/load.ts'
import { stringifyConfig } from '../../src/config/toml-write.ts'
import { asPosix } from '../windows.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-config-'))
afterAll(() => rmSync(folder, { recursive: true }))

function file(name: string, text: string): string {
  const path = join(folder, name)
  writeFileSync(path, text)
  return path
}

/** This folder, and not one whose name only begins like it, as TMPDIR's may. */
const here = new RegExp(`${RegExp.escape(process.cwd())}(?![\\w-])`, 'g')

/** The message of the UserError that a call throws, without the folder. */
function errorOf(call: () => unknown): string {
  try {
    call()
  } catch (error) {
    expect(error).toBeInstanceOf(UserError)
    return asPosix(
      messageOf(error)
        .replaceAll(folder + sep, '')
        .replace(here, '<here>'),
    )
  }
  throw new Error('it did not throw')
}

function load(...argv: string[]) {
  const loaded = loadConfig(argv)
  if ('help' in loaded) throw new Error('help')
  return loaded
}

const minimal = 'model = "models/tiny"\n[env]\nid = "reverse-text"\n'
const withArgs = (text: string) => `${minimal}[trainer.args]\n${text}`

test("an almost empty file gets RLTrainer's defaults", () => {
  const { config, notices, changed } = parseConfig(minimal)
  expect(notices).toEqual([])
  expect(changed).toEqual(['model.name = "models/tiny"', 'env.id = "reverse-text"'])
  expect(config.model).toEqual({ name: 'models/tiny' })
  expect(config.env).toEqual([{ id: 'reverse-text', name: 'reverse-text', args: {}, weight: 1 }])
  expect(config.trainer.args.run_name).toMatch(/^reverse-text--tiny--[0-9a-f]{6}$/)
  expect(config.trainer.args).toMatchObject({
    use_lora: true, lora_rank: 8, lora_alpha: 32, lora_dropout: 0, learning_rate: 1e-5, lr_scheduler_type: 'constant', max_steps: 500,
    max_grad_norm: 1, weight_decay: 0, micro_batch_size: 8, rollouts_per_example: 16, batch_size: 512, max_seq_len: 2048, max_prompt_len: 512,
    max_tokens: 1536, temperature: 1, top_p: 1, mask_ratio_low: 0.125, mask_ratio_high: 8, max_concurrent: 1024, generation_timeout: 600,
    eval_strategy: 'no', gradient_checkpointing: true, keep_attention: false, bf16: true, output_dir: 'outputs', max_async_level: 1, loss: 'cispo', micro_batch_tokens: 8 * 2048,
  }) // prettier-ignore
  // Of a short sequence the prompt has a quarter, or what max_tokens leaves of it, and never more than 512 tokens.
  const parts = (text: string) => {
    const { max_prompt_len, max_tokens, eval_temperature } = parseConfig(withArgs(`temperature = 0.5\n${text}`)).config.trainer
      .args
    return [max_prompt_len, max_tokens, eval_temperature]
  }
  expect(parts('max_seq_len = 400')).toEqual([100, 300, 0.5])
  expect(parts('max_seq_len = 400\nmax_tokens = 150\neval_temperature = 0.0')).toEqual([250, 150, 0])
  expect(parts('max_seq_len = 4000\nmax_tokens = 150')).toEqual([512, 150, 0.5])
  expect(batchLine(config)).toBe('32 tasks x 16 rollouts = 512 rollouts a step, 500 steps; up to 512 + 1536 tokens each')
  const one = parseConfig(withArgs('batch_size = 8\nrollouts_per_example = 8\nmax_steps = 1')).config
  expect(batchLine(one)).toBe('1 task x 8 rollouts = 8 rollouts a step, 1 step; up to 512 + 1536 tokens each')
})

// The minimal example of vf-rl's own documentation, with a bundled environment.
test('a config of vf-rl runs, and says what it leaves out', () => {
  const { config, notices } = parseConfig(`
model = "Qwen/Qwen3-4B-Instruct-2507"
[env]
id = "reverse-text"
[inference]
gpus = 1
[inference.args]
enforce_eager = true
[trainer]
gpus = 1
[trainer.args]
run_name = "alphabet-sort"
use_lora = true
use_liger = false
learning_rate = 1e-5
micro_batch_size = 4
rollouts_per_example = 16
batch_size = 512
max_steps = 100
max_tokens = 512
max_seq_len = 2048
`)
  expect(config.trainer.args).toMatchObject({
    run_name: 'alphabet-sort',
    max_tokens: 512,
    max_prompt_len: 512,
    micro_batch_tokens: 8192,
  })
  expect(config.inference).toEqual({
    backend: 'embedded',
    max_num_seqs: 32,
    kv_cache_dtype: 'f32',
    reuse_kv_cache: false,
    serve: false,
  })
  expect(notices).toMatchInlineSnapshot(`
    [
      "config.toml:6:1: inference.gpus is not needed: the embedded engine generates on the trainer's GPU.",
      "config.toml:7:1: inference.args (enforce_eager) are flags of vLLM and are ignored: the embedded engine generates in this process. backend = "vllm" under [inference] would use them.",
      "config.toml:10:1: trainer.gpus is always 1 here: training and generation share one GPU.",
      "config.toml:14:1: trainer.args.use_liger is ignored: the output head, the log-probabilities and the loss are always fused.",
    ]
  `)
})

test('a name of another trainer is known at the top of a file as well', () => {
  const path = file('top.toml', 'num_generations = 4\nmodel = "models/tiny"\n[env]\nid = "reverse-text"\n')
  expect(errorOf(() => load('@', path))).toBe(
    'top.toml:1:1: num_generations is named rollouts_per_example here. Training is set in [trainer.args].',
  )
})

test('all mistakes of a file at once, each with its place', () => {
  const path = file(
    'bad.toml',
    `model = "models/tiny"
max_steps = 3
[env]
id = "revers-text"
[inference]
backend = "vlm"
[sampling]
max_tokens = 5
lr = 1
[trainer]
gpus = 2
[trainer.arg]
[trainer.args]
learning_rte = 1e-4
batch_size = 100
temperature = "1.0"
lr_scheduler_type = "cosin"
lora_target_modules = ["q_proj", "qq"]
report_to = "wanb"
num_generations = 4
warmup_steps = 1.5
max_tokens = 2048
loss = "cipso"
top_p = 2
min_p = nan
run_name = "a/b"
filters = ["./none.ts"]
stop = "x"
`,
  )
  expect(errorOf(() => load('@', path))).toMatchInlineSnapshot(`
    "21 mistakes in the config:
      bad.toml:2:1: max_steps is not a key at the top of a config. It belongs in [trainer.args].
      bad.toml:4:1: environment revers-text: not found; did you mean reverse-text? Bundled: alphabet-sort, arithmetic, code-golf, math-word-problems, reverse-text, sentence-repeater, short-answers, tool-calculator, wordle. Otherwise give a path (./my_env.ts), an installed npm package, or, after 'bash scripts/setup-verifiers.sh', an environment in Python.
      bad.toml:6:1: inference.backend is "vlm"; it must be one of "embedded", "vllm". Did you mean "vllm"?
      bad.toml:7:1: sampling is not a table here: its keys go to [trainer.args], as max_tokens, learning_rate (for lr).
      bad.toml:11:1: trainer.gpus asks for several GPUs, but one process trains and generates on one GPU here: remove the key, and set DAWN_RL_ADAPTER to choose the GPU.
      bad.toml:12:1: trainer.arg is not a key of [trainer]. Did you mean args?
      bad.toml:14:1: trainer.args.learning_rte is not a key of [trainer.args]. Did you mean learning_rate?
      bad.toml:15:1: trainer.args.batch_size is 100, not a multiple of rollouts_per_example (16). Use 96 or 112.
      bad.toml:16:1: trainer.args.temperature is "1.0", a string; it must be a number > 0. Write it without quotes.
      bad.toml:17:1: trainer.args.lr_scheduler_type is "cosin"; it must be one of "constant", "constant_with_warmup", "linear", "cosine". Did you mean "cosine"?
      bad.toml:18:34: trainer.args.lora_target_modules.1 is "qq"; it must be one of "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "in_proj", "w1", "w2", "w3", "input_linear", "output_linear", "qkv_proj", "gate_up_proj". Did you mean "w1"?
      bad.toml:19:1: trainer.args.report_to is "wanb"; it must be one of "none", "wandb", "tensorboard", "mlflow", "trackio". Did you mean "wandb"?
      bad.toml:20:1: trainer.args.num_generations is named rollouts_per_example here.
      bad.toml:21:1: trainer.args.warmup_steps is 1.5; it must be an integer >= 0.
      bad.toml:22:1: trainer.args.max_prompt_len (512) + max_tokens (2048) is 2560, more than max_seq_len (2048). Use max_tokens = 1536, or max_seq_len = 2560.
      bad.toml:23:1: trainer.args.loss is "cipso"; it must be "cispo", "cispo_mask" or a file such as "./my_loss.ts". Did you mean "cispo"?
      bad.toml:24:1: trainer.args.top_p is 2; it must be a number > 0 and <= 1.
      bad.toml:25:1: trainer.args.min_p is NaN; it must be a number >= 0 and <= 1.
      bad.toml:26:1: trainer.args.run_name is "a/b"; it must be the name of a folder: letters, digits, '-', '_' and '.', at most 200 characters, the last one not '.'.
      bad.toml:27:1: trainer.args.filters is "./none.ts", but there is no such file in <here>.
      bad.toml:28:1: trainer.args.stop is "x"; it must be a list of strings."
  `)
})

test('entries of a long list do not hide what is wrong beside them', () => {
  const stop = Array.from({ length: 12 }, (_, i) => (i === 2 || i === 10 ? i : `"${i}"`))
  const message = errorOf(() => parseConfig(withArgs(`stop = [${stop.join(', ')}]\nbatch_size = 5`), 'a.toml'))
  expect(message).toMatch(/^3 mistakes .*stop\.2 is 2.*stop\.10 is 10.*batch_size is 5, not a multiple/s)
})

test('of several filters and environments each that is not there is told', () => {
  const text = `model = "models/tiny"
[[env]]
id = "nowhere"
[[env]]
id = "./none.ts"
[trainer.args]
filters = ["./none.ts", "zero_varianze"]`
  const message = errorOf(() => parseConfig(text, 'a.toml'))
  expect(message).toMatch(/^4 mistakes .*:3:1: .*nowhere.*:5:1: .*none\.ts.*:7:1: .*none\.ts.*:7:1: .*zero_varianze/s)
})

test("PyTorch's names of AdamW are AdamW, and ours are kept", () => {
  for (const name of ['adamw_torch', 'adamw_torch_fused', 'adamw_hf']) {
    const { config, notices } = parseConfig(withArgs(`optim = "${name}"\nrollouts_per_example = 16`), 'a.toml')
    expect(config.trainer.args.optim).toBe('adamw')
    expect(notices[0]).toMatch(/^a\.toml:\d+:1: trainer\.args\.optim is ignored: this value .* means AdamW in float32/)
  }
  for (const name of ['adamw', 'adamw_8bit']) {
    const { config, notices } = parseConfig(withArgs(`optim = "${name}"`), 'a.toml')
    expect([config.trainer.args.optim, notices]).toEqual([name, []])
  }
})

describe('one mistake is one sentence', () => {
  test.each([
    ['batch_size = 100', 'trainer.args.batch_size is 100, not a multiple of rollouts_per_example (16). Use 96 or 112.'],
    ['batch_size = 10', 'trainer.args.batch_size is 10, not a multiple of rollouts_per_example (16). Use 16.'],
    ['rollouts_per_example = 1', 'trainer.args.rollouts_per_example is 1; it must be an integer >= 2.'],
    ['batch_size = 9000000000000000', 'batch_size is 9000000000000000; it must be an integer >= 2 and <= 1048576.'],
    ['lora_alpha = 1e308', "trainer.args.lora_alpha is 1e+308, which float32, the GPU's numbers, cannot hold."],
    ['temperature = 1e-308', "trainer.args.temperature is 1e-308, which float32, the GPU's numbers, cannot hold."],
    ['learning_rate = 1e39', "trainer.args.learning_rate is 1e+39, which float32, the GPU's numbers, cannot hold."],
    ['rollouts_per_example = 24', 'trainer.args.batch_size is 512, not a multiple of rollouts_per_example (24). Use 504 or 528.'],
    [
      'max_seq_len = 1024\nmax_tokens = 1000\nmax_prompt_len = 100',
      'max_prompt_len (100) + max_tokens (1000) is 1100, more than max_seq_len (1024). Use max_tokens = 924, or max_seq_len = 1100.',
    ],
    ['micro_batch_tokens = 512', 'trainer.args.micro_batch_tokens is 512, less than one sequence of max_seq_len (2048).'],
    ['max_prompt_len = 2048', 'max_prompt_len is 2048, which leaves nothing of max_seq_len (2048) for a completion.'],
    ['mask_ratio_low = 9.0', 'mask_ratio_low is 9, not below mask_ratio_high (8)'],
    ['mask_ratio_low = 8.0', 'mask_ratio_low is 8, not below mask_ratio_high (8)'],
    ['max_async_level = 9', 'max_off_policy_steps is 8, less than max_async_level (9)'],
    ['loss_args = { x = 1 }', 'the built-in loss "cispo" takes none'],
    ['chat_template_kwargs = 1', 'trainer.args.chat_template_kwargs is 1; it must be a table.'],
    ['chat_template_kwargs = { tools = [] }', 'chat_template_kwargs.tools is set for every prompt anyway. Remove it.'],
    [
      'chat_template_kwargs = { enable_thinking = "False" }',
      'enable_thinking is "False", a string, and templates take every string that is not empty as true. Write false.',
    ],
    ['enable_thinking = false', 'go in chat_template_kwargs, as { enable_thinking = false }'],
    ['temperature = 0', 'trainer.args.temperature is 0; it must be a number > 0.'],
    // 0 in float32: a weight whose gradients are all 0 became 0 / 0.
    ['adam_epsilon = 1e-46', 'trainer.args.adam_epsilon is 1e-46; it must be a number >= 1e-37.'],
    ['use_lora = "yes"', 'trainer.args.use_lora is "yes", a string; it must be true or false.'],
    ['run_name = ""', 'trainer.args.run_name is'],
    ['run_name = "a."', 'trainer.args.run_name is "a."; it must be the name of a folder: letters'],
    ['run_name = "a "', 'trainer.args.run_name is "a "; it must be the name of a folder: letters'],
    ...['con', 'NUL', 'aux.2', 'com1', 'Lpt9'].map((name) => [
      `run_name = "${name}"`,
      `trainer.args.run_name is "${name}"; it must be another name: Windows reserves this one for a device, and the run's folder may be copied there.`,
    ]),
    ['advantage = "group_men"', 'Did you mean "group_mean"?'],
    ['optim = "sgd"', 'trainer.args.optim is "sgd"; it must be one of "adamw", "adamw_8bit".'],
    ['optim = "adamw_bnb_8bit"', 'trainer.args.optim is "adamw_bnb_8bit", which is named "adamw_8bit" here'],
    ['fp16 = true', 'trainer.args.fp16 is not supported'],
    ['zzzzzzzz = 1', 'trainer.args.zzzzzzzz is not a key of [trainer.args]. --help lists the keys.'],
    ['max_num_seqs = 1', 'It belongs in [inference].'],
  ])('%s', (text, expected) => {
    const message = errorOf(() => parseConfig(withArgs(text), 'a.toml'))
    expect(message).toContain(expected)
    expect(message).toMatch(/^a\.toml:[567]:1: /)
    expect(message.split('\n')).toHaveLength(1)
  })

  test.each(['console', 'com', 'com10', 'null', 'x.con', 'con-1'])('none of a run that is named %s', (name) => {
    expect(parseConfig(withArgs(`run_name = "${name}"`), 'a.toml').config.trainer.args.run_name).toBe(name)
  })

  test.each([
    'max_seq_len = 1024\nmax_tokens = 924\nmax_prompt_len = 100',
    'micro_batch_tokens = 2048',
    'max_async_level = 8',
    'rollouts_per_example = 4',
    'ref_model = "models/other"\nref_model_sync_steps = 0',
  ])('and what is just allowed is none: %s', (text) => {
    expect(parseConfig(withArgs(text)).notices).toEqual([])
  })

  test('of missing tables, of a file that is missing or no TOML', () => {
    expect(errorOf(() => parseConfig('', 'a.toml'))).toMatchInlineSnapshot(`
      "2 mistakes in the config:
        a.toml: env is missing. It takes a list of tables. One environment as [env], or a mixture as several [[env]] tables.
        a.toml: model is missing. It takes a table. \`model = "folder, hub id or file.gguf"\`, or a table with \`name\` and \`adapter\`."
    `)
    expect(
      errorOf(() => parseConfig('model = "x"\n[[env]]\nid = "reverse-text"\n[[env]]\nweight = 2', 'a.toml')),
    ).toMatchInlineSnapshot(
      `"a.toml:4:1: env.1.id is missing. It takes a string. A bundled environment ("short-answers", "reverse-text", "arithmetic", ...), a file such as "./my_env.ts", an npm package, or a Python environment."`,
    )
    expect(errorOf(() => load('@', join(folder, 'none.toml')))).toMatchInlineSnapshot(
      `"none.toml: there is no such file. Paths are relative to <here>."`,
    )
    expect(errorOf(() => parseConfig('model = "x"\nseed = = 3\n', 'a.toml'))).toMatchInlineSnapshot(`
      "a.toml:2:8 is not valid TOML: invalid value.
      1:  model = "x"
      2:  seed = = 3
                 ^"
    `)
    expect(errorOf(() => load('@', folder))).toBe(`${asPosix(folder)} is a folder. Name a .toml file in it.`)
    // And not each of its keys.
    const given = 'model = "x"\n[data]\npath = "a.jsonl"\n'
    expect(errorOf(() => parseConfig(given, 'a.toml'))).toBe(
      'a.toml:2:1: this config has [data] and no [env], so it is for `node cli.js sft @ FILE`.',
    )
    expect(errorOf(() => parseSftConfig(minimal, 'a.toml'))).toBe(
      'a.toml:2:1: this config has [env] and no [data], so it is for `node cli.js train @ FILE`.',
    )
    // Of a long line what stands around the mistake.
    const long = `x = "${'a'.repeat(500)}" b "${'c'.repeat(500)}"\n`
    const [head, line, mark] = errorOf(() => parseConfig(long, 'a.toml')).split('\n')
    expect(head).toMatch(/^a\.toml:1:508 is not valid TOML: /)
    expect(line).toBe(`1:  ${'a'.repeat(58)}" b "${'c'.repeat(57)}`)
    expect(line[mark.indexOf('^')]).toBe('b')
    expect(errorOf(() => load())).toMatchInlineSnapshot(
      `"No config file. Write it after @, as in \`node cli.js train @ configs/quickstart.toml\`; --help lists the keys."`,
    )
  })

  test('of a path of Windows in double quotes, where a backslash begins an escape', () => {
    for (const path of ['C:\\models\\x', 'C:\\Users\\x']) {
      const told = errorOf(() => parseConfig(`model = "${path}"`, 'a.toml'))
      expect(told).toMatch(/^a\.toml:1:1\d is not valid TOML: .+escape.*\. A path is written with slashes, or in single quotes/)
    }
    expect(parseConfig("model = 'C:\\models\\x'\n[env]\nid = 'reverse-text'").config.model.name).toBe('C:\\models\\x')
  })

  test('in a file that begins with a byte order mark, as editors on Windows write it', () => {
    const text =
      '\ufeff[trainer.args]\r\nmax_steps = 5\r\nseed = "x"\r\n[env]\r\nid = "reverse-text"\r\n[model]\r\nname = "models/tiny"\r\n'
    expect(errorOf(() => load('@', file('marked.toml', text)))).toMatch(/^marked\.toml:3:1: /)
  })

  test('of a file in another encoding, whose letters would be others', () => {
    const path = file('utf16.toml', '')
    for (const bytes of [
      Buffer.from(`\ufeff${minimal}`, 'utf16le'),
      Buffer.from(minimal.replace('tiny', 'm\u00f6del'), 'latin1'),
    ]) {
      writeFileSync(path, bytes)
      expect(errorOf(() => load('@', path))).toBe('utf16.toml is not UTF-8 text. Save the file as UTF-8.')
    }
  })

  test('of a table in the place of which there is a value: its short form', () => {
    expect(errorOf(() => parseConfig('model = 5\nenv = "reverse-text"\n', 'a.toml'))).toMatchInlineSnapshot(`
      "2 mistakes in the config:
        a.toml:1:1: model is 5; it must be a table. \`model = "folder, hub id or file.gguf"\`, or a table with \`name\` and \`adapter\`.
        a.toml:2:1: env is "reverse-text"; it must be a list of tables. One environment as [env], or a mixture as several [[env]] tables."
    `)
  })

  test.each([
    ['--constructor', '3', '--constructor is not a key. --help lists them.'],
    [
      '--trainer.args.constructor',
      '3',
      '--trainer.args.constructor: trainer.args.constructor is not a key of [trainer.args]. --help lists the keys.',
    ],
    [
      '--seed',
      '9007199254740993',
      '--seed: trainer.args.seed is 9007199254740993; an integer must be from -9007199254740991 to 9007199254740991.',
    ],
  ])('of the words %s %s', (key, value, message) => {
    const path = file('whole.toml', minimal)
    expect(errorOf(() => load('@', path, key, value))).toBe(message)
  })

  test('of a table that words write key by key: the place is theirs, not that of the file’s table around it', () => {
    const path = file('around.toml', `${minimal}[trainer.args]\nmax_steps = 5\n`)
    expect(errorOf(() => load('@', path, '--trainer.args.loss_args.clip', '1'))).toMatch(
      /^--trainer\.args\.loss_args\.clip: .* takes none/,
    )
  })

  test('of environments that share a name', () => {
    const twice = 'model = "x"\n[[env]]\nid = "reverse-text"\n[[env]]\nid = "reverse-text"\n'
    expect(errorOf(() => parseConfig(twice, 'a.toml'))).toContain('two environments are named "reverse-text"')
    expect(parseConfig(`${twice}name = "b"\n`).config.env.map((env) => env.name)).toEqual(['reverse-text', 'b'])
  })
})

describe('composition', () => {
  const base = file('base.toml', `${minimal}args = { words = 3, seed = 1 }\n[trainer.args]\nseed = 1\nmax_steps = 5\n`)

  test('later files win, tables merge, an [env] with another id replaces', () => {
    const overlay = file('over.toml', '[model]\nadapter = "x"\n[env.args]\nwords = 4\n[trainer.args]\nseed = 2\n')
    const { config } = load('@', base, '@', overlay)
    expect(config.model).toEqual({ name: 'models/tiny', adapter: 'x' })
    expect(config.env[0].args).toEqual({ words: 4, seed: 1 })
    expect(config.trainer.args).toMatchObject({ seed: 2, max_steps: 5 })
    const other = file('other.toml', '[env]\nid = "arithmetic"\n')
    expect(load('@', base, '@', other).config.env).toMatchObject([{ id: 'arithmetic', args: {} }])
    const list = file('list.toml', '[[env]]\nid = "arithmetic"\n[[env]]\nid = "reverse-text"\n')
    expect(load('@', base, '@', list).config.env).toHaveLength(2)
    // Without the @, which PowerShell does not take.
    expect(load(base, list).config.env).toEqual(load('@', base, '@', list).config.env)
  })

  test('a mistake is reported where the value that won stands', () => {
    const overlay = file('wrong.toml', '# comment\n[trainer.args]\nseed = -1\n')
    expect(errorOf(() => load('@', base, '@', overlay))).toMatch(/^wrong\.toml:3:1: trainer\.args\.seed is -1/)
    expect(load('@', base, '@', overlay, '--seed', '3').config.trainer.args.seed).toBe(3)
  })

  test('overrides: dotted, kebab-case, alone, with =, of lists, of environments, of flags', () => {
    const { config, changed } = load(
      '@', base, '--trainer.args.learning_rate', '1e-4', '--max-steps', '2', '--run-name=123', '--trainer.args.use-lora', 'false', '--stop', '["a", "b"]',
      '--env.args.words', '9', '--env.args.style', 'plain', '--env.args.list=[1, 2]', '--model', 'other', '--lora_target_modules', 'q_proj,v_proj', '--loss-args.x', '1',
      '--loss', 'configs/losses/ppo-clip.ts', '--gradient-checkpointing', '--presence_penalty', '-1.5',
    ) // prettier-ignore
    expect(config.trainer.args).toMatchObject({
      learning_rate: 1e-4, max_steps: 2, run_name: '123', use_lora: false, stop: ['a', 'b'], lora_target_modules: ['q_proj', 'v_proj'], loss_args: { x: 1 }, gradient_checkpointing: true, presence_penalty: -1.5,
    }) // prettier-ignore
    expect(config.env[0].args).toEqual({ words: 9, seed: 1, style: 'plain', list: [1, 2] })
    expect(config.model.name).toBe('other')
    expect(changed).toContain('trainer.args.learning_rate = 0.0001')
  })

  test('overrides that cannot be understood', () => {
    const two = file('two.toml', 'model = "x"\n[[env]]\nid = "arithmetic"\n[[env]]\nid = "reverse-text"\n')
    expect(load('@', two, '--env.1.weight', '2').config.env.map((env) => env.weight)).toEqual([1, 2])
    expect(
      errorOf(() =>
        load(
          '@',
          two,
          '--max-step',
          '2',
          '--env.weight',
          '3',
          '--seed',
          '@',
          base,
          'word',
          '--dry-rum',
          '--trainer.args.sync_ref_model',
          '1',
          '--name',
          'x',
          '--num-generations',
          '4',
        ),
      ),
    ).toMatchInlineSnapshot(`
      "7 mistakes in the config:
        --dry-rum is not a key. Did you mean --dry-run?
        --max-step is not a key. Did you mean --trainer.args.max_steps?
        --name could mean --model.name or --env.name.
        --num-generations: trainer.args.num_generations is named rollouts_per_example here.
        --seed needs a value: an integer >= 0.
        --trainer.args.sync_ref_model: trainer.args.sync_ref_model is not a key here: set ref_model_sync_steps above 0.
        "word" is not understood here. A config file comes after @, a key after --."
    `)
  })

  test('an index of a list beyond its end is refused, not filled up to', () => {
    const two = file('two.toml', 'model = "x"\n[[env]]\nid = "arithmetic"\n[[env]]\nid = "reverse-text"\n')
    expect(errorOf(() => load('@', two, '--env.3000000.weight', '2'))).toBe(
      '--env.3000000.weight: env has 2 elements before it, so the next is --env.2.weight.',
    )
    const ids = load('@', base, '--env.1.id', 'arithmetic', '--env.2.id', 'wordle').config.env.map(({ id }) => id)
    expect(ids.slice(1)).toEqual(['arithmetic', 'wordle'])
  })

  test('a single string of a list keeps its blanks', () => {
    const stopOf = (word: string) => load('@', base, '--stop', word).config.trainer.args.stop
    expect([stopOf('\n'), stopOf(' END'), stopOf('a, b')]).toEqual([['\n'], [' END'], ['a', 'b']])
  })

  test('a list that differs from its default only at its end counts as changed', () => {
    const modules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'in_proj']
    const words = ['@', base, '--lora_target_modules', modules.join()]
    expect(load(...words).changed.join()).toContain('trainer.args.lora_target_modules')
    expect(load(...words, '--use-lora', 'false').notices.join()).toContain('lora_target_modules has no effect')
  })

  test('--resume with an empty word, as of a variable that is not set, is refused', () => {
    for (const words of [['--resume='], ['--resume', '']])
      expect(errorOf(() => load('@', base, ...words))).toMatch(/After --resume comes a run folder/)
  })

  test('an empty table clears what files and earlier words have in it', () => {
    const path = file('vllm.toml', `${minimal}[inference]\nbackend = "vllm"\nargs = { enforce_eager = true, seed = 1 }\n`)
    const { config } = load('@', path, '--inference.args.dtype', 'half', '--inference.args', '{}', '--inference.args.seed', '2')
    expect(config.inference).toMatchObject({ args: { seed: 2 } })
    expect(config.inference).not.toHaveProperty('args.enforce_eager')
    expect(config.inference).not.toHaveProperty('args.dtype')
    const url = ['--inference.base_url', 'http://127.0.0.1:8000']
    expect(errorOf(() => load('@', path, ...url))).toMatch(/inference\.args has flags for a server that the run starts/)
    expect(load('@', path, ...url, '--inference.args', '{}').config.inference).toHaveProperty('base_url')
    const args = file('words.toml', `${minimal}args = { words = 4 }\n`)
    expect(load('@', args, '--env.args', '{}').config.env[0].args).toEqual({})
  })

  test('another id replaces an environment as an overlay does; its keys may come before or after', () => {
    const path = file('args.toml', `${minimal}name = "words"\nargs = { words = 4 }\n`)
    const envOf = (...words: string[]) => load('@', path, ...words).config.env
    const other = { id: 'arithmetic', name: 'arithmetic', args: {}, weight: 1 }
    expect(envOf('--env.id', 'arithmetic')).toEqual([other])
    expect(envOf('@', file('other.toml', '[env]\nid = "arithmetic"\n'))).toEqual([other])
    expect(envOf('--env.id', 'reverse-text')).toMatchObject([{ id: 'reverse-text', name: 'words', args: { words: 4 } }])
    const withArgs = { ...other, args: { digits: 2, terms: 3 } }
    expect(envOf('--env.args.digits', '2', '--env.id', 'arithmetic', '--env.args.terms', '3')).toEqual([withArgs])
    const two = file('two.toml', `model = "x"\n[[env]]\nid = "arithmetic"\n[[env]]\nid = "reverse-text"\nargs = { words = 4 }\n`)
    expect(load('@', two, '--env.1.id', 'short-answers').config.env).toMatchObject([
      { id: 'arithmetic' },
      { id: 'short-answers', args: {} },
    ])
  })

  test('an environment of several that is named instead of numbered', () => {
    const path = file('two.toml', 'model = "x"\n[[env]]\nid = "reverse-text"\nname = "a"\n[[env]]\nid = "arithmetic"\n')
    const said = (word: string) => errorOf(() => load('@', path, word, '3'))
    expect(said('--env.arithmetic.weight')).toBe(
      '--env.arithmetic.weight could mean any of 2: write --env.1.weight for arithmetic.',
    )
    expect(said('--env.a.weight')).toContain('write --env.0.weight for a.')
    expect(said('--env.b.weight')).toContain('write --env.0.weight for the first.')
  })

  test('numbers of overrides as a shell writes them', () => {
    const { config } = load('@', base, '--learning-rate', '.0005', '--temperature', '1.', '--seed', '03', '--beta', '+.5e-1')
    expect(config.trainer.args).toMatchObject({ learning_rate: 0.0005, temperature: 1, seed: 3, beta: 0.05 })
    expect(errorOf(() => load('@', base, '--seed', '.5'))).toContain('trainer.args.seed is 0.5; it must be')
    expect(errorOf(() => load('@', base, '--keep-best', '-loss/mean'))).toContain(
      '"-loss/mean" is not understood here. A value that begins with - comes after =, as in --keep-best=-loss/mean.',
    )
  })

  test('flags', () => {
    expect(load('@', base, '--dry-run').dryRun).toBe(true)
    expect(load('@', base).resume).toBeUndefined()
    const named = ['@', base, '--run_name', 'a']
    expect(load(...named, '--resume').resume).toEqual({ kind: 'latest' })
    expect(load(...named, '--resume', 'latest', '--dry-run').resume).toEqual({ kind: 'latest' })
    expect(load('--resume', 'step', '20', ...named).resume).toEqual({ kind: 'step', step: 20 })
    expect(load('@', base, '--resume', 'outputs/x').resume).toEqual({ kind: 'dir', dir: 'outputs/x' })
    expect(errorOf(() => load('@', base, '--resume'))).toContain('set trainer.args.run_name')
    expect(load('--resume', base, '--run_name', 'a')).toMatchObject({ resume: { kind: 'latest' } })
    expect(load('--trace', base)).toMatchObject({ trace: { level: 'kernels' } })
    expect(errorOf(() => load('--fork', base))).toContain('After --fork comes a run folder')
    expect(load('@', base, '--resume=outputs/x.toml').resume).toEqual({ kind: 'dir', dir: 'outputs/x.toml' })
    expect(load('@', base).trace).toBeUndefined()
    expect(load('@', base, '--trace').trace).toEqual({ level: 'kernels' })
    expect(load('--trace', '5', '@', base).trace).toEqual({ steps: [5, 5], level: 'kernels' })
    expect(load('@', base, '--trace', 'a.json', '5-7', 'passes').trace).toEqual({
      steps: [5, 7],
      file: 'a.json',
      level: 'passes',
    })
    expect(load('@', base, '--trace=5-7,passes').trace).toEqual({ steps: [5, 7], level: 'passes' })
    expect(errorOf(() => load('@', base, '--trace', '7-5'))).toContain('--trace 7-5: after --trace come steps')
    expect(loadConfig(['--help'])).toHaveProperty('help')
  })
})

test('notices: keys without effect, and sampling that is not what is trained on', () => {
  const { notices } = parseConfig(
    withArgs(
      'use_lora = false\nlora_rank = 4\nwarmup_steps = 5\neval_steps = 5\ntop_p = 0.9\nmin_p = 0.1\nmicro_batch_tokens = 4096\nmicro_batch_size = 16\nref_model_sync_steps = 5\n',
    ),
  )
  expect(notices).toMatchInlineSnapshot(`
    [
      "trainer.args.lora_rank has no effect: use_lora is false.",
      "trainer.args.warmup_steps has no effect: lr_scheduler_type is "constant"; write "constant_with_warmup".",
      "trainer.args.micro_batch_size has no effect: micro_batch_tokens is set.",
      "trainer.args.top_p, min_p: changes which tokens are sampled, but not the log-probability used in training (over the full vocabulary); a value far from neutral biases the importance ratio.",
      "trainer.args.eval_steps has no effect: eval_strategy is "no".",
      "trainer.args.ref_model_sync_steps has no effect: beta is 0 and use_ref_model false, so there is no reference model.",
    ]
  `)
})

test('notices of single keys, which are none where the key has its effect', () => {
  const notices = (text: string) => parseConfig(withArgs(text)).notices
  expect(notices('lora_dropout = 0.1')).toEqual([expect.stringContaining('the trainer computes log-probabilities with dropout')])
  expect(notices('use_lora = false\nlora_dropout = 0.1')).toEqual(['trainer.args.lora_dropout has no effect: use_lora is false.'])
  expect(notices('oversampling_factor = 1.02')).toEqual([
    'trainer.args.oversampling_factor has no effect: with 32 groups per step, it does not allow one more group.',
  ])
  expect(notices('oversampling_factor = 1.04')).toEqual([])
  const args = 'filter_args = { least = 1 }\n'
  expect(notices(args)).toEqual(['trainer.args.filter_args has no effect: no filter is a file.'])
  expect(notices(`${args}filters = ["zero_variance", ${JSON.stringify(file('filter.ts', ''))}]`)).toEqual([])
  const warm = (steps: number) => notices(`lr_scheduler_type = "linear"\nwarmup_steps = ${steps}\nmax_steps = 9\n`)
  expect(warm(9)).toEqual(['trainer.args.warmup_steps is 9 and max_steps 9: the learning rate never reaches its peak.'])
  expect(warm(8)).toEqual([])
  expect(notices('rollouts_per_example = 2')).toEqual([expect.stringContaining('8 or more are recommended')])
})

test('weights that are trained are not quantised', () => {
  const { args } = parseConfig(withArgs('quantization = "gguf"\n')).config.trainer
  expect(args.quantization).toBe('gguf')
  expect(errorOf(() => parseConfig(withArgs('use_lora = false\nquantization = "q8_0"\n')))).toContain(
    'trainer.args.quantization is "q8_0", but use_lora is false: weights that are trained cannot be quantised.',
  )
})

test('what others call the entropy bonus, and 8 bits', () => {
  expect(errorOf(() => parseConfig(withArgs('entropy_coeff = 0.1\n')))).toContain('is named entropy_coef here')
  expect(errorOf(() => parseConfig(withArgs('load_in_8bit = true\n')))).toContain(
    'quantization = "q8_0" holds the layers in 8 bits',
  )
})

test("an algorithm's keys in TRL and prime-rl are told as what they are here", () => {
  const said = (text: string) => errorOf(() => parseConfig(withArgs(text)))
  // Clamping the ratio, as CISPO does, is not what a clipped loss does.
  expect(said('epsilon_high = 0.28\n')).toContain('loss_args = { clip_low = 0.2, clip_high = 0.28 }')
  expect(said('scale_rewards = "group"\n')).toContain('reward - group mean, as with false')
  expect(said('loss_type = "dr_grpo"\n')).toContain('"From TRL and prime-rl"')
  expect(said('reward_weights = [1.0]\n')).toContain('the rubric of the environment')
  // A penalty in the reward is another term.
  expect(said('kl_coef = 0.1\n')).toContain('other_kl.ts in docs/algorithms.md')
  expect(said('delta = 4.0\n')).toContain('loss_args = { delta = 4.0 }')
  expect(said('top_entropy_quantile = 0.2\n')).toContain('some_tokens.ts in docs/algorithms.md')
  expect(said('use_adaptive_entropy = true\n')).toContain('entropy_coef adds a bonus')
  expect(said('multi_objective_aggregation = "normalize_then_sum"\n')).toContain('rollout.metrics')
  expect(said('use_bias_correction_kl = true\n')).toContain('not multiplied by the importance ratio')
  expect(parseConfig(withArgs('use_bias_correction_kl = false\n')).notices.join()).toContain('is always false here')
  const orchestrator =
    '[orchestrator]\ngroup_size = 8\noversampling_factor = 2.0\n[orchestrator.train.sampling]\nmax_completion_tokens = 9\n' +
    '[orchestrator.eval.sampling]\nmax_completion_tokens = 9\n[trainer.loss]\ndppo_mask_low = 0.2\n[monitors.wandb]\nname = "x"\n'
  const told = errorOf(() => parseConfig(minimal + orchestrator))
  expect(told).toContain(
    'go to [trainer.args], as rollouts_per_example (for group_size), max_tokens (for max_completion_tokens).\n',
  )
  expect(told).toContain('trainer.loss is not a table here: set trainer.args.loss to')
  expect(told).toContain('trainer.args.report_to sends them')
})

test('what prime-rl and Hosted Training say of evaluations is told as keys of evaluations, and their environments as [[env]]', () => {
  const hosted =
    '[eval]\ninterval = 20\nnum_examples = 64\nrollouts_per_example = 4\n[[eval.env]]\nid = "owner/aime"\n' +
    '[buffer]\neasy_threshold = 0.8\n[val]\ninterval = 5\n[checkpoints]\ninterval = 100\n[resume]\nstep = 3\n'
  expect(errorOf(() => parseConfig(minimal + hosted, 'a.toml'))).toMatchInlineSnapshot(`
    "5 mistakes in the config:
      a.toml:4:1: eval is not a table here: its keys go to [trainer.args], as eval_steps (for interval), eval_examples (for num_examples), eval_rollouts_per_example (for rollouts_per_example). Environments of evaluations are [[env]] too; with weight = 0 they are only evaluated.
      a.toml:10:1: buffer is not a table here: filters drop groups by their rewards, oversampling_factor plays others in their place, and shuffle_dataset = false keeps the order of the rows (docs/algorithms.md, "From prime-rl").
      a.toml:12:1: val is not a table here: its keys go to [trainer.args], as eval_steps (for interval).
      a.toml:14:1: checkpoints is the table [trainer.ckpt] here.
      a.toml:16:1: resume is not a key here: write --resume [latest | step N | folder] on the command line."
  `)
  const prime =
    '[orchestrator]\ngroup_size = 8\n[orchestrator.algo]\ntype = "opd"\n[[orchestrator.train.source]]\nname = "a"\n' +
    '[orchestrator.eval]\ninterval = 5\ngroup_size = 4\n[orchestrator.eval.sampling]\ntemperature = 0.6\nmax_completion_tokens = 9\n' +
    '[[orchestrator.eval.source]]\nname = "b"\n[orchestrator.buffer]\nseed = 1\n[trainer.scheduler]\ntype = "cosine"\n'
  expect(errorOf(() => parseConfig(minimal + prime, 'a.toml'))).toMatchInlineSnapshot(`
    "2 mistakes in the config:
      a.toml:4:1: orchestrator is not a table here: its keys go to [trainer.args], as rollouts_per_example (for group_size), eval_steps (for interval), eval_rollouts_per_example (for group_size), eval_temperature (for temperature). For algo see docs/algorithms.md, "From prime-rl". Environments are [[env]], with id and args. Environments of evaluations are [[env]] too; with weight = 0 they are only evaluated. For buffer see docs/algorithms.md, "From prime-rl".
      a.toml:20:1: trainer.scheduler is not a table here: set lr_scheduler_type and warmup_steps of [trainer.args]."
  `)
  const older = '[orchestrator]\nbatch_size = 8\n[[orchestrator.env]]\nid = "a"\n'
  expect(errorOf(() => parseConfig(minimal + older, 'a.toml'))).toMatchInlineSnapshot(
    `"a.toml:4:1: orchestrator is not a table here: its keys go to [trainer.args], as batch_size. Environments are [[env]], with id and args."`,
  )
  const args = 'eval_on_start = false\nlength_penalty = 0.1\nkl_tau = 0.1\ntoken_batch_size = 9\nmax_inflight = 9\n'
  expect(errorOf(() => parseConfig(withArgs(args), 'a.toml'))).toMatchInlineSnapshot(`
    "5 mistakes in the config:
      a.toml:5:1: trainer.args.eval_on_start is not a key here: an evaluation before the first step is always made.
      a.toml:6:1: trainer.args.length_penalty is not a key here: subtract it from the rewards, in an advantage from a file (length_penalty.ts in docs/algorithms.md) or in the environment's rubric.
      a.toml:7:1: trainer.args.kl_tau is not a key here: prime-rl's loss is dppo.ts in docs/algorithms.md, with loss_args.
      a.toml:8:1: trainer.args.token_batch_size is not a key here: batch_size is in rollouts, and micro_batch_tokens sets memory.
      a.toml:9:1: trainer.args.max_inflight is named max_concurrent here."
  `)
  expect(parseConfig(withArgs('eval_on_start = true\n')).notices.join()).toContain('always evaluates before the first step')
  const [ratio, examples] = ['ratio = 0.5\n', 'num_examples = 9\n'].map((key) => errorOf(() => parseConfig(minimal + key)))
  expect(ratio).toContain('env.ratio is named weight here')
  expect(examples).toContain('env.num_examples is the same for all environments here')
  // The ids of the Hub have their owner before them.
  const owned = minimal.replace('"reverse-text"', '"primeintellect/reverse-text"') + '[sampling]\nenable_thinking = false\n'
  expect(errorOf(() => parseConfig(owned))).toContain('as chat_template_kwargs (for enable_thinking).')
  expect(errorOf(() => parseConfig(owned))).toContain('not found; did you mean reverse-text?')
})

test("chat_template_kwargs of prime-rl's sampling is told as the key that it is here", () => {
  const text =
    '[orchestrator.train.sampling.extra_body]\ntop_k = 3\nchat_template_kwargs = { enable_thinking = false }\n[orchestrator.advantage]\ntype = "x"\n'
  expect(errorOf(() => parseConfig(minimal + text))).toContain('go to [trainer.args], as top_k, chat_template_kwargs.')
})

test('the two ways to size a micro-batch agree', () => {
  const { args } = parseConfig(withArgs('micro_batch_tokens = 5000\n')).config.trainer
  expect([args.micro_batch_tokens, args.micro_batch_size]).toEqual([5000, 2])
})

describe('sft', () => {
  const fresh =
    '[model.new]\nfamily = "qwen3"\nhidden_size = 64\nintermediate_size = 128\nnum_hidden_layers = 2\nnum_attention_heads = 4\n'

  test('another id of the environment leaves the arguments of the first, in an overlay as in a word', () => {
    const path = file('answers.toml', 'model = "x"\n[data.env]\nid = "arithmetic"\nargs = { digits = 2 }\n')
    const envOf = (...words: string[]) => {
      const loaded = loadSftConfig(['@', path, ...words])
      return 'help' in loaded ? undefined : loaded.config.data.env
    }
    const other = file('other-answers.toml', '[data.env]\nid = "reverse-text"\n')
    expect(envOf('@', other)).toEqual({ id: 'reverse-text', args: {} })
    expect(envOf('--data.env.id', 'reverse-text')).toEqual({ id: 'reverse-text', args: {} })
    const words = ['--data.env.args.words', '3', '--data.env.id', 'reverse-text']
    expect(envOf(...words)).toEqual({ id: 'reverse-text', args: { words: 3 } })
    expect(envOf('--data.env.id', 'arithmetic', '--data.env.args.terms', '3')?.args).toEqual({ digits: 2, terms: 3 })
  })

  test('a new model on the answers of an environment', () => {
    const { config } = parseSftConfig(`${fresh}[data.env]\nid = "reverse-text"\n[trainer.args]\nuse_lora = false\n`)
    expect(config.model.new).toMatchObject({
      num_key_value_heads: 4,
      head_dim: 16,
      tie_word_embeddings: true,
      tokenizer: 'bytes',
    })
    expect(config.data).toEqual({ env: { id: 'reverse-text', args: {} } })
    expect(config.trainer.args).toMatchObject({ batch_size: 32, use_lora: false })
    expect(config.trainer.ckpt).toEqual({ interval: 50, keep_last: 3 })
  })

  test('mistakes', () => {
    expect(errorOf(() => parseSftConfig(`${fresh.replace('= 4', '= 6')}[data]\npath = "none.jsonl"\n`, 'a.toml')))
      .toMatchInlineSnapshot(`
      "2 mistakes in the config:
        a.toml:1:1: model.new.hidden_size is 64; divided by num_attention_heads (6) it gives no even head size. Set model.new.head_dim, or change one of them.
        a.toml:8:1: data.path is "none.jsonl", but there is no such file in <here>."
    `)
    const wrong = (from: string, to: string) =>
      errorOf(() => parseSftConfig(`${fresh.replace(from, to)}[data.env]\nid = "reverse-text"\n`, 'a.toml'))
    expect(wrong('= 4', '= 4\nnum_key_value_heads = 3')).toContain(
      'model.new.num_key_value_heads is 3; num_attention_heads (4) must be a multiple of it.',
    )
    expect(wrong('= 64', '= 60')).toContain('it gives no even head size')
    expect(wrong('[model.new]', '[model]\nadapter = "a"\n[model.new]')).toContain('model.adapter cannot be used with model.new.')
    // A mistake elsewhere makes no second one of a new model.
    expect(
      errorOf(() => parseSftConfig(`${fresh}[data.env]\nid = "reverse-text"\n[trainer.args]\nlora_rnk = 8\n`, 'a.toml')),
    ).toBe('a.toml:10:1: trainer.args.lora_rnk is not a key of [trainer.args]. Did you mean lora_rank?')
    expect(errorOf(() => parseSftConfig('model = "x"\n[data]\n[trainer.args]\nloss = "cispo"\n', 'a.toml')))
      .toMatchInlineSnapshot(`
      "2 mistakes in the config:
        a.toml:2:1: data is empty. Write path = "file.jsonl", or [data.env] with the id of an environment.
        a.toml:4:1: trainer.args.loss is not a key of [trainer.args]. --help lists the keys."
    `)
    expect(errorOf(() => loadSftConfig([]))).toContain('configs/tiny-sft.toml')
  })
})

test("TOML's days and times of day reach an environment as they are, by a file and by a word", () => {
  const dates = file(
    'dates.toml',
    `${minimal}args = { day = 2024-02-29, times = [10:00:00], at = { moment = 2024-02-29T10:00:00+01:00 } }\n`,
  )
  const { config } = load('@', dates, '--env.args.until', '2024-03-01')
  const text =
    '{"day":"2024-02-29","times":["10:00:00.000"],"at":{"moment":"2024-02-29T10:00:00.000+01:00"},"until":"2024-03-01"}'
  expect(JSON.stringify(config.env[0].args)).toBe(text)
  expect(JSON.stringify(parseConfig(stringifyConfig(config)).config.env[0].args)).toBe(text)
})

test('__proto__ is told, and changes no other object', () => {
  for (const [text, place] of [
    ['[__proto__]\nx = 1', '4:1'],
    ['args = { a = { __proto__ = { x = 1 } } }', '4:16'],
    ['[trainer.args]\n__proto__ = 1', '5:1'],
  ])
    expect(errorOf(() => parseConfig(minimal + text))).toBe(
      `config.toml:${place}: __proto__ is no name for a key. Give it another name.`,
    )
  const run = file('run.toml', minimal)
  for (const words of [
    ['--env.args.__proto__.x', '1'],
    ['--env.args.a', '{ __proto__ = { x = 1 } }'],
  ])
    expect(errorOf(() => load('@', run, ...words))).toBe(`${words[0]}: __proto__ is no name for a key. Give it another name.`)
  expect(({} as { x?: number }).x).toBeUndefined()
})

describe('an environment that is only evaluated', () => {
  const two = (weight: string, args = 'eval_strategy = "steps"\n') =>
    `model = "models/tiny"\n[[env]]\nid = "reverse-text"\n[[env]]\nid = "arithmetic"\n${weight}[trainer.args]\n${args}`

  test('has the weight 0', () => {
    const { config, notices } = parseConfig(two('weight = 0\n'))
    expect(config.env.map(({ weight }) => weight)).toEqual([1, 0])
    expect(notices).toEqual([])
    expect(errorOf(() => parseConfig(two('weight = -1\n'), 'a.toml'))).toContain('weight is -1; it must be a number >= 0.')
  })

  test('is not the only one', () => {
    expect(errorOf(() => parseConfig(`${minimal}weight = 0\n`, 'a.toml'))).toMatchInlineSnapshot(
      `"a.toml:2:1: env: every environment has weight = 0, which means that it is only evaluated, so none is left to train on. Set a weight above 0 for one."`,
    )
  })

  test('without evaluations is told', () => {
    expect(parseConfig(two('weight = 0\n', '')).notices).toMatchInlineSnapshot(`
      [
        "the environment arithmetic is only evaluated (weight = 0), but eval_strategy is "no", so it is not played.",
      ]
    `)
  })
})

test.each([
  ['env = { id = "./configs/environments/coin.ts" }', /^sft-configs-environments-coin\.ts--tiny--[0-9a-f]{6}$/],
  ['env = { id = "reverse-text" }', /^sft-reverse-text--tiny--[0-9a-f]{6}$/],
  ['path = "models/tiny/tokenizer.json"', /^sft-data--tiny--[0-9a-f]{6}$/],
])('the name of a supervised run on %s', (data, name) => {
  expect(parseSftConfig(`model = "models/tiny"\n[data]\n${data}`).config.trainer.args.run_name).toMatch(name)
})
