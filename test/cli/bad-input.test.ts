/**
 * What a user can get wrong: one clear sentence, exit code 2, nothing left behind. Most of it shows before a device is opened, so these
 * processes are short.
 */
import { cpSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { beforeAll, describe, expect, test } from 'vitest'
import { openAdapter } from '../../src/cli/train-inputs.ts'
import { parseConfig } from '../../src/config/load.ts'
import { openModel } from '../../src/model/files/open.ts'
import { writeAdapter, type LoraPair } from '../../src/model/files/peft.ts'
import { TinyRuns, type Outcome } from './tiny-run.ts'
import { isWindows } from '../windows.ts'

const runs = new TinyRuns()

beforeAll(async () => {
  await runs.prepare()
})

/** Dawn itself says on stderr which Vulkan drivers it does not find. */
const fromDawn = /^Warning: (vk|maxDynamic)| \(.*dawn\/native.*\)$/
const sentences = ({ stderr }: Outcome) => stderr.split('\n').filter((line) => line !== '' && !fromDawn.test(line))

/** Runs into a mistake: exactly one line on stderr, exit code 2, no run folder. */
async function refused(words: string[], message: RegExp, env: NodeJS.ProcessEnv = {}): Promise<Outcome> {
  const outcome = await runs.run(words, env)
  expect(outcome, outcome.stderr + outcome.stdout).toMatchObject({ code: 2 })
  expect(sentences(outcome)).toEqual([expect.stringMatching(message)])
  expect(runs.runs()).toEqual([])
  return outcome
}

describe('the config', () => {
  test('an unknown key', async () => {
    await refused(['learnin_rate=1'], /learnin_rate is not a key of \[trainer\.args\]\. Did you mean learning_rate\?/)
  })

  test('a wrong type, with its line', async () => {
    runs.write('wrong.toml', '[trainer.args]\n\nmax_steps = "many"\n')
    await refused(['@', 'wrong.toml'], /^wrong\.toml:3:1: trainer\.args\.max_steps is "many", a string; it must be an integer/)
  })

  test('arguments of an environment, and what goes wrong in its file, with the line', async () => {
    runs.write('args.toml', '[env]\nid = "arithmetic"\n[env.args]\nmin = 1\nmaxx = 3\n')
    await refused(
      ['@', 'args.toml'],
      /^args\.toml:5:1: environment arithmetic: maxx is not one of its arguments \(did you mean max\?\)\.$/,
    )
    await refused(
      ['@', 'args.toml', '--env.args.maxx', '4', '--env.args.min', 'x'],
      /^--env\.args\.min: environment arithmetic: min is "x"/,
    )
    runs.write('throwing.ts', 'export default () => { throw new Error("no data here") }\n')
    runs.write('file.toml', '[env]\nid = "./throwing.ts"\n')
    await refused(['@', 'file.toml'], /^file\.toml:2:1: environment \.\/throwing\.ts loadEnvironment threw: no data here/)
  })

  test('all mistakes at once', async () => {
    const { code, stderr } = await runs.run(['max_steps=0', 'batch_size=9'])
    expect(code).toBe(2)
    expect(stderr).toMatch(/^2 mistakes in the config:\n.*batch_size.*\n.*max_steps/)
  })
})

describe('files', () => {
  test('a missing model', async () => {
    await refused(['--model.name', 'nowhere'], /^There is no model at nowhere: no such folder or file/)
  })

  test('a cut-off safetensors file', async () => {
    cpSync(runs.path('tiny'), runs.path('cut'), { recursive: true })
    const whole = readFileSync(runs.path('tiny/model.safetensors'))
    runs.write('cut/model.safetensors', whole.subarray(0, whole.length - 100))
    await refused(['--model.name', 'cut'], /^cut\/model\.safetensors is not a complete safetensors file: .* the file ends at/)
  })

  test('a dtype that no weight has', async () => {
    cpSync(runs.path('tiny'), runs.path('odd'), { recursive: true })
    const file = readFileSync(runs.path('tiny/model.safetensors'))
    const length = Number(file.readBigUInt64LE())
    const header = JSON.parse(file.subarray(8, 8 + length).toString()) as Record<string, { dtype: string }>
    header['model.norm.weight'].dtype = 'I16'
    file.write(JSON.stringify(header).padEnd(length), 8)
    runs.write('odd/model.safetensors', file)
    await refused(['--model.name', 'odd'], /^Tensor model\.norm\.weight in odd\/model\.safetensors has dtype I16; /)
  })

  test('a row without a prompt', async () => {
    runs.write('rows.jsonl', '{"prompt": "hi", "answer": "a"}\n{"answer": "b"}\n')
    await refused(
      ['--env.args.dataset', 'rows.jsonl'],
      /^rows\.jsonl:2 has neither a prompt nor a question \(columns found: answer\)/,
    )
  })

  test('an adapter for another model, and one that was made with another rank', async () => {
    const adapter = async (dir: string, inputs: number) => {
      const pair: LoraPair = {
        A: new Float32Array(2 * inputs),
        B: new Float32Array(32 * 2),
        r: 2,
      }
      const config = { r: 2, loraAlpha: 32, loraDropout: 0, targetModules: ['q_proj'], useRslora: false, baseModel: 'other' }
      await writeAdapter(runs.path(dir), { config, tensors: new Map([['model.layers.0.self_attn.q_proj', pair]]) })
    }
    await adapter('other', 48)
    await refused(
      ['--model.adapter', 'other'],
      /^The adapter other is for another model: .*q_proj\.lora_A has shape \[2, 48\], but tiny needs \[2, 32\]/,
    )
    await adapter('rank2', 32)
    await refused(
      ['--model.adapter', 'rank2'],
      /^The adapter rank2 was made with lora_rank = 2, lora_target_modules = \["q_proj"\], but this config says otherwise/,
    )
  })

  test("modules as PEFT may name them in an adapter's file are those of its tensors", async () => {
    const model = await openModel(runs.path('tiny'))
    const pair: LoraPair = { A: new Float32Array(8 * 32), B: new Float32Array(32 * 8), r: 8 }
    const path = 'model.layers.0.self_attn.q_proj'
    const config = { r: 8, loraAlpha: 32, loraDropout: 0, targetModules: [path], useRslora: false, baseModel: 'tiny' }
    await writeAdapter(runs.path('named'), { config, tensors: new Map([[path, pair]]) })
    const file = runs.path('named', 'adapter_config.json')
    const open = (modules: string) =>
      openAdapter(
        parseConfig(
          `model = { name = "tiny", adapter = '${runs.path('named')}' }\n[env]\nid = "reverse-text"\n[trainer.args]\n${modules}`,
        ).config,
        model,
      )
    for (const named of [[path], '.*self_attn\\.q_proj', 'all-linear']) {
      writeFileSync(file, JSON.stringify({ ...(JSON.parse(readFileSync(file, 'utf8')) as object), target_modules: named }))
      // A module that the model has not is nobody's.
      for (const asked of ['["q_proj"]', '["q_proj", "in_proj_z"]'])
        expect((await open(`lora_target_modules = ${asked}`)).tensors.size).toBe(1)
      await expect(open('')).rejects.toThrow(/was made with lora_target_modules = \["q_proj"\], but this config says otherwise/)
    }
    model.close()
  })
})

test('prompts of megabytes are refused by what they begin with: to count their tokens took minutes', async () => {
  runs.write(
    'books.ts',
    `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
    const rows = Array.from({ length: 20 }, (_, i) => ({ question: i + ' lorem ipsum'.repeat(80_000), answer: '' }))
    export default () => SingleTurnEnv.create({ id: 'books', rubric: new Rubric({ one: () => 1 }), dataset: rows })`,
  )
  runs.write('books.toml', '[env]\nid = "./books.ts"\nname = "books"\n')
  await refused(
    ['@', 'books.toml'],
    /^The prompts of books are too long and max_prompt_len is \d+: none fits\. Some have more than \d+ tokens: shorten them, or leave them out\.$/,
  )
}, 30_000)

test('prompts that are all too long', async () => {
  await refused(
    ['max_seq_len=16', 'max_prompt_len=3', 'max_tokens=13'],
    /max_prompt_len is 3: none fits\. Set trainer\.args\.max_prompt_len to 9 and trainer\.args\.max_seq_len to 22 or more\.$/,
  )
  await refused(
    ['max_prompt_len=3'],
    /^The prompts of even are up to 9 tokens long and max_prompt_len is 3: none fits\. Set trainer\.args\.max_prompt_len to 9 or more\.$/,
  )
})

describe('the machine', () => {
  test.skipIf(isWindows)('no adapter', async () => {
    const none = { VK_DRIVER_FILES: '/nonexistent', VK_ICD_FILENAMES: '/nonexistent' }
    await refused([], /^No WebGPU adapter was found on this machine\. Run .*doctor/, none)
  })

  test('an adapter that is not here', async () => {
    await refused([], /^No WebGPU adapter has 'voodoo' in its name \(DAWN_RL_ADAPTER\)/, { DAWN_RL_ADAPTER: 'voodoo' })
  })
})

describe('files of the algorithm', () => {
  test('a loss with a syntax error, and one without a default export', async () => {
    runs.write('broken.ts', 'export default ((((\n')
    await refused(['loss=./broken.ts'], /^The loss \.\/broken\.ts cannot be loaded: /)
    runs.write('named.ts', 'export const loss = () => 0\n')
    await refused(['loss=./named.ts'], /^The loss \.\/named\.ts must export a function as its default/)
  })

  test('a loss of the wrong shape', async () => {
    runs.write('shape.ts', 'export default (x) => ({ gradient: [1, 2], loss: 0 })\n')
    await refused(['loss=./shape.ts'], /^The loss \.\/shape\.ts must return \{ gradient: Float32Array of 6 values/)
  })

  test('an advantage of NaN', async () => {
    runs.write('nan.ts', 'export default (group) => group.map((r) => r.reward / 0 - Infinity)\n')
    await refused(
      ['advantage=./nan.ts'],
      /^The advantage \.\/nan\.ts gave rollout 0 the value NaN\. It must return one finite number/,
    )
  })

  test('a filter that says nothing', async () => {
    runs.write('mute.ts', 'export default (group) => {}\n')
    await refused(['filters=["./mute.ts"]'], /^The filter \.\/mute\.ts must return true or false, not undefined\./)
  })

  test('an environment that throws, with the line', async () => {
    runs.write('throws.ts', 'export default () => {\n  throw new Error("no tasks today")\n}\n')
    await refused(
      ['--env.id', './throws.ts'],
      /^--env\.id: environment \.\/throws\.ts loadEnvironment threw: no tasks today \(.*throws\.ts:2/,
    )
  })
})

test('nothing to resume', async () => {
  await refused(['run_name=never', '--resume'], /^Nothing to resume: outputs\/never does not exist/)
  expect(existsSync(runs.path('outputs/never'))).toBe(false)
})
