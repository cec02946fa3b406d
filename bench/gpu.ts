/**
 * What a GPU should reach, in one command: each part is measured, compared with its aim, and written to the file at once.
 *
 *     node bench/gpu.ts [--out bench/results/gpu.json] [--only dispatch,compile,peaks,tune,matmul,attention,decode,step,peers] [--quick] [--python python3]
 *
 * - dispatch: microseconds of a dispatch (recording; sending; on the device, each waiting for the one before), of a submit and of a read-back
 * - compile: the first training step of a small model less the second, with an empty shader cache and with the cache that this left
 * - peaks: multiply-adds and matrix units in registers, copies;  tune: the tuner's choice and its seconds
 * - matmul: 4096 x 4096 x 4096 on matrix units and in register tiles, beside cuBLAS where --python has PyTorch with CUDA
 * - attention: backward beside forward, Qwen3-0.6B's heads, 2048 and 8192 tokens; backward on matrix units, at 2048 tokens in each of its shapes
 * - decode: Qwen3-0.6B's shape, 32 sequences: bytes that a step must read (weights, keys, values) a second, beside the copy
 * - step: a LoRA step of that shape on 16k packed tokens, in micro-batches of 4096 and of 16k
 * - peers: the same step through PEFT, and transformers' generate, where --python has them and PyTorch with CUDA
 * A part that fails says why, and the others go on; the exit code is then 1. Without a GPU, `--quick` shows that everything works (tiny sizes, no aims).
 */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { attentionCase, attentionTakesUnits, unitShapes } from '../src/bench/attention.ts'
import { runCase, type KernelCase } from '../src/bench/case.ts'
import { benchDecode } from '../src/bench/decode.ts'
import { hasUnits, matmulCase, type MatmulForm } from '../src/bench/matmul.ts'
import { measurePeaks, peakOf, type Peaks } from '../src/bench/peaks.ts'
import { modelFor, modelShapes } from '../src/bench/shapes.ts'
import { benchStep, benchTrainer, loraOptions, randomSamples } from '../src/bench/step.ts'
import { messageOf } from '../src/common/errors.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { dispatchFlat } from '../src/kernels/common/lanes.ts'
import { useMatrixUnits } from '../src/kernels/common/matrix-units.ts'
import { loadDecoder } from '../src/model/decoder/load.ts'
import { weightCount } from '../src/model/decoder/shapes.ts'
import { wordsOf } from './words.ts'

const parts = ['dispatch', 'compile', 'peaks', 'tune', 'matmul', 'attention', 'decode', 'step', 'peers'] as const
type Part = (typeof parts)[number]
const { values } = wordsOf(import.meta.filename, {
  options: {
    out: { type: 'string', default: 'bench/results/gpu.json' },
    only: { type: 'string', default: parts.join(',') },
    quick: { type: 'boolean', default: false },
    python: { type: 'string', default: 'python3' },
    /** The child process of the compile part, which prints its figures. */
    child: { type: 'boolean', default: false },
  },
})
const { quick } = values
const only = values.only.split(',')
const unknown = only.filter((name) => !parts.includes(name as Part))
if (unknown.length > 0) {
  console.error(`--only ${unknown.join(',')}: the parts are ${parts.join(', ')}.`)
  process.exit(2)
}

/** Compares a figure with its aim: at least that, or at most where `most` is set. */
interface Aim {
  name: string
  value: number
  unit: string
  aim?: number
  most?: boolean
}

const gpu = await Gpu.open()
const { facts } = gpu
const shape = quick ? 'tiny' : 'qwen3-0.6b'
const report: Record<string, unknown> = {
  date: new Date().toISOString(),
  adapter: facts,
  quick,
  aims: [] as Aim[],
}
let failed = false

function show(aim: Aim): void {
  ;(report.aims as Aim[]).push(aim)
  const { name, value, unit, most } = aim
  const asked =
    aim.aim === undefined || quick
      ? ''
      : `aim ${most ? 'at most' : 'at least'} ${aim.aim} ${unit}: ${met(aim) ? 'reached' : 'NOT reached'}`
  console.log(`${name.padEnd(52)} ${value.toPrecision(4).padStart(9)} ${unit.padEnd(10)} ${asked}`.trimEnd())
}
const met = ({ value, aim = 0, most }: Aim): boolean => (most ? value <= aim : value >= aim)

let known: Peaks | undefined
const peaks = async (): Promise<Peaks> => (known ??= await measurePeaks(gpu, { repeats: quick ? 1 : 3 }))
const timing = { repeats: quick ? 1 : 3, seconds: quick ? 0.02 : 0.1 }
/** float32 register tiles, and f16 matrix units where the adapter has them. */
const ways = hasUnits(gpu, 1024) ? [false, true] : [false]
const wayName = (units: boolean): string => (units ? 'matrix units' : 'register tiles')

async function dispatches(): Promise<unknown> {
  const kernel = fileURLToPath(new URL('../src/bench/copy.wgsl', import.meta.url))
  const [a, b] = ['a', 'b'].map((label) => gpu.pool.acquire(1024, label))
  // Few enough that nothing is sent automatically, so that recording, sending and the device are measured separately.
  const count = quick ? 200 : 500
  const run = (n: number): void => {
    // Back and forth between two buffers, so that each dispatch needs the one before.
    for (let i = 0; i < n; i++) dispatchFlat(gpu, kernel, {}, i % 2 ? [b, a] : [a, b], { count: 64 }, 64)
  }
  const plan = gpu.record(() => run(count))
  const best = { record: Infinity, send: Infinity, device: Infinity, submit: Infinity, read: Infinity }
  for (let round = 0; round < (quick ? 4 : 100); round++) {
    const begin = performance.now()
    run(count)
    best.record = Math.min(best.record, ((performance.now() - begin) * 1e3) / count)
    await gpu.sync('dispatches')
    const from = performance.now()
    gpu.replay(plan)
    gpu.flush()
    const sent = performance.now()
    await gpu.sync('dispatches')
    const end = performance.now()
    best.send = Math.min(best.send, ((sent - from) * 1e3) / count)
    best.device = Math.min(best.device, ((end - from) * 1e3) / count)
  }
  for (let round = 0; round < 3; round++) {
    const submits = count / 10
    const start = performance.now()
    for (let i = 0; i < submits; i++) {
      run(1)
      gpu.flush()
    }
    await gpu.sync('submits')
    best.submit = Math.min(best.submit, ((performance.now() - start) * 1e3) / submits)
    for (let i = 0; i < 10; i++) {
      const from = performance.now()
      run(1)
      await gpu.read({ buffer: b, offset: 0, bytes: 256 }, 'read-back')
      best.read = Math.min(best.read, (performance.now() - from) * 1e3)
    }
  }
  gpu.releasePlan(plan)
  for (const buffer of [a, b]) buffer.release()
  show({ name: 'recording a dispatch', value: best.record, unit: 'us' })
  show({ name: 'encoding and submitting one of a recorded plan', value: best.send, unit: 'us' })
  show({ name: 'that and running it, each after another', value: best.device, unit: 'us' })
  show({ name: 'a submit of one dispatch', value: best.submit, unit: 'us' })
  show({ name: 'a dispatch and its read-back', value: best.read, unit: 'us' })
  return best
}

/** The last line that another process prints, as JSON. @throws Error with the last line of its errors */
function answerOf(program: string, words: string[], options: { env?: NodeJS.ProcessEnv; timeout?: number } = {}): unknown {
  const { status, stdout, stderr, error } = spawnSync(program, words, { ...options, encoding: 'utf8' })
  if (error) throw error
  if (status !== 0) throw new Error(`${program} ended with ${status}: ${stderr.trim().split('\n').at(-1)}`)
  return JSON.parse(stdout.trim().split('\n').at(-1)!)
}

/** Each in a new process, without the driver's cache in memory; its cache on disk is in a folder made for this. */
function compiling(): unknown {
  const cache = mkdtempSync(join(tmpdir(), 'dawn-rl-shaders-'))
  const places = ['XDG_CACHE_HOME', '__GL_SHADER_DISK_CACHE_PATH', 'MESA_SHADER_CACHE_DIR', 'AMD_SHADER_DISK_CACHE_PATH']
  const env = { ...process.env, ...Object.fromEntries(places.map((place) => [place, cache])) }
  const child = () =>
    answerOf(process.execPath, [import.meta.filename, '--child'], { env }) as { firstSeconds: number; secondSeconds: number }
  try {
    const [cold, warm] = [child(), child()]
    const compile = (one: typeof cold): number => one.firstSeconds - one.secondSeconds
    show({ name: 'compiling the kernels of a LoRA step, no cache', value: compile(cold), unit: 's' })
    show({ name: 'the same from the cache', value: compile(warm), unit: 's' })
    return { cold, warm }
  } finally {
    rmSync(cache, { recursive: true, force: true })
  }
}

async function compileChild(): Promise<void> {
  const files = await modelFor('tiny')
  const decoder = await loadDecoder(gpu, files, { round: true, lora: loraOptions })
  const size = { sequences: 4, length: 64 }
  const samples = randomSamples(size, files.config.vocabSize)
  const trainer = benchTrainer(decoder, { microBatchTokens: 256, checkpointing: true, runFolder: tmpdir() })
  const seconds: number[] = []
  for (let step = 1; step <= 2; step++) {
    const begin = performance.now()
    await trainer.trainStep({ step, samples, lossTokenCount: size.sequences * size.length })
    seconds.push((performance.now() - begin) / 1000)
  }
  console.log(JSON.stringify({ firstSeconds: seconds[0], secondSeconds: seconds[1] }))
}

async function peaksOfAdapter(): Promise<unknown> {
  const { fma, units, copy } = await peaks()
  show({ name: 'multiply-adds in registers, float32', value: peakOf(fma), unit: 'GFLOP/s' })
  if (units) show({ name: 'matrix units in registers, f16 into float32', value: peakOf(units), unit: 'GFLOP/s' })
  show({ name: 'copy, read and written', value: peakOf(copy), unit: 'GB/s' })
  return { fma, units, copy }
}

function tuning(): unknown {
  const begin = performance.now()
  const cli = fileURLToPath(new URL('../cli.js', import.meta.url))
  const table = answerOf(process.execPath, [cli, 'tune', '--json'])
  show({ name: 'the tuner', value: (performance.now() - begin) / 1000, unit: 's', aim: 60, most: true })
  return table
}

const torch = `
import json, sys, time, torch
n = int(sys.argv[1]); torch.backends.cuda.matmul.allow_tf32 = False; out = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
for name, dtype in (("f16", torch.float16), ("f32", torch.float32)):
    a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2)); best = float("inf")
    for _ in range(5):
        for _ in range(3): a @ b
        torch.cuda.synchronize(); begin = time.perf_counter()
        for _ in range(20): a @ b
        torch.cuda.synchronize(); best = min(best, (time.perf_counter() - begin) / 20)
    out[name] = 2 * n ** 3 / best / 1e9
print(json.dumps(out))`

/** GFLOP/s of cuBLAS through PyTorch, or why there is none. */
function cublas(n: number): { f16?: number; f32?: number; why?: string } {
  try {
    return answerOf(values.python, ['-c', torch, String(n)], { timeout: 120_000 }) as { f16: number; f32: number }
  } catch (error) {
    return { why: messageOf(error) }
  }
}

const rowOf = async (one: KernelCase) => await runCase(gpu, one, await peaks(), timing)

async function matmuls(): Promise<unknown> {
  const n = quick ? 256 : 4096
  const rows: Awaited<ReturnType<typeof rowOf>>[] = []
  const peer = cublas(n)
  for (const units of ways) {
    for (const form of (units ? ['nt', 'nn'] : ['nt', 'nn', 'tn']) satisfies MatmulForm[]) {
      const row = await rowOf(matmulCase(form, n, { n, k: n, of: 'square' }, units))
      rows.push(row)
      const name = `${row.name} ${row.shape}, ${wayName(units)}`
      show({ name, value: row.gflops, unit: 'GFLOP/s' })
      // The aim for forward is a share of the peak.
      if (!units)
        show({
          name: '  share of multiply-adds in registers',
          value: row.ofPeak * 100,
          unit: '%',
          ...(form === 'nt' && { aim: 60 }),
        })
      if (units && peer.f16) show({ name: '  share of cuBLAS in f16', value: (row.gflops / peer.f16) * 100, unit: '%', aim: 45 })
    }
  }
  if (peer.why) console.log(`cuBLAS was not measured: ${peer.why}`)
  else show({ name: 'cuBLAS in f16', value: peer.f16!, unit: 'GFLOP/s' })
  return { rows, cublas: peer }
}

async function attentions(): Promise<unknown> {
  const { heads, kvHeads, headDim } = modelShapes[shape]
  const ofHeads = { heads, kvHeads, headDim }
  const rows: Awaited<ReturnType<typeof rowOf>>[] = []
  const most = { unit: 'x', aim: 2.5, most: true }
  for (const length of quick ? [64] : [2048, 8192]) {
    const forward = await rowOf(attentionCase('forward', length, ofHeads, shape))
    const backward = await rowOf(attentionCase('backward', length, ofHeads, shape))
    rows.push(forward, backward)
    show({ name: `attention forward, ${length} tokens`, value: forward.gflops, unit: 'GFLOP/s' })
    show({ name: `attention backward / forward, ${length} tokens`, value: backward.ms / forward.ms, ...most })
    if (!attentionTakesUnits(gpu, ofHeads)) continue
    const onUnits = await rowOf(attentionCase('backward', length, ofHeads, shape, { units: true }))
    rows.push(onUnits)
    show({ name: `attention backward, matrix units, ${length} tokens`, value: onUnits.gflops, unit: 'GFLOP/s' })
    show({ name: '  beside forward in float32', value: onUnits.ms / forward.ms, ...most })
    // Which shape is best: at one length, as each case is checked in float64 first.
    for (const units of quick || length > 2048 ? [] : unitShapes) {
      if (!attentionTakesUnits(gpu, ofHeads, units)) continue
      const tiles = `tiles of ${units.RT} x ${units.KT}${units.HOLD ? ', rows in registers' : ''}`
      const row = await rowOf(attentionCase('backward', length, ofHeads, `${shape}, ${tiles}`, { units }))
      rows.push(row)
      show({ name: `  in ${tiles}`, value: row.gflops, unit: 'GFLOP/s' })
    }
  }
  return rows
}

async function decodes(): Promise<unknown> {
  const sequences = quick ? 4 : 32
  const [promptTokens, tokens] = quick ? [16, 8] : [64, 64]
  const rows: unknown[] = []
  for (const matrixUnits of ways) {
    const files = await modelFor(shape)
    const decoder = await loadDecoder(gpu, files, { round: true, lora: loraOptions, matrixUnits })
    try {
      const row = await benchDecode(
        decoder,
        { sequences, shared: 1, promptTokens, tokens, matrixUnits },
        await peaks(),
        quick ? 1 : 3,
      )
      const { layers, kvHeads, headDim } = files.config
      const cache = sequences * (promptTokens + tokens / 2) * 2 * kvHeads * headDim * layers * 4
      // Tied weights: the embedding is read as the head; the rows that are looked up hardly count.
      const bytes = 2 * weightCount(files.config) + cache
      const gbs = bytes / (row.stepMs / 1000) / 1e9
      rows.push({ ...row, gbs })
      const rate = (name: string, value: number) => show({ name: `${name}, ${wayName(matrixUnits)}`, value, unit: 'tokens/s' })
      rate(`generation of ${sequences} sequences with their prompts`, row.tokensPerSecond)
      rate(`decode of ${sequences} sequences`, row.decodeTokensPerSecond)
      show({ name: '  bytes read a second, of the copy', value: (gbs / peakOf((await peaks()).copy)) * 100, unit: '%', aim: 70 })
    } finally {
      decoder.release()
      useMatrixUnits(gpu, false)
      files.tensors.close()
      gpu.pool.trim()
    }
  }
  return rows
}

async function steps(): Promise<unknown> {
  const [sequences, length] = quick ? [2, 32] : [16, 1024]
  const rows: unknown[] = []
  const kinds = [[4096, true], [4096, 'keep attention'], [16384, true]] as const // prettier-ignore
  for (const matrixUnits of ways) {
    for (const [most, checkpointing] of quick ? kinds.slice(0, 2) : kinds) {
      const microBatchTokens = quick ? 64 : most
      const files = await modelFor(shape)
      const size = { sequences, length, microBatchTokens, checkpointing, matrixUnits }
      const row = await benchStep(gpu, files, 'lora', size, await peaks(), 2)
      files.tensors.close()
      rows.push({ ...row, microBatchTokens })
      const name = `LoRA step, micro-batches of ${microBatchTokens}, ${wayName(matrixUnits)}${checkpointing === true ? '' : ', attention kept'}`
      show({ name, value: row.tokensPerSecond, unit: 'tokens/s', aim: 13_000 })
      show({ name: '  GPU memory at most', value: row.peakBytes / 2 ** 30, unit: 'GiB', aim: 5, most: true })
    }
  }
  return rows
}

/** Our best figure whose name begins so, on these kernels, if this run has measured one. */
function ours(name: string, way: string): number | undefined {
  const found = (report.aims as Aim[]).filter((aim) => aim.name.startsWith(name) && aim.name.includes(way))
  return found.length > 0 ? Math.max(...found.map(({ value }) => value)) : undefined
}

function peers(): unknown {
  if (facts.software) {
    console.log('PEFT and transformers were not measured: they are for a GPU')
    return {}
  }
  const sizes = { sequences: 16, length: 1024, microBatch: 4, steps: 3, decodeSequences: 32, promptTokens: 64, tokens: 64 }
  const script = fileURLToPath(new URL('peers/gpu_peer.py', import.meta.url))
  type Peer = { lora: { tokensPerSecond: number; peakBytes: number }; generate: { tokensPerSecond: number } }
  const got = answerOf(values.python, [script, JSON.stringify({ ...modelShapes[shape], ...sizes })], {
    timeout: 120_000,
  }) as Record<'bf16' | 'float32', Peer>
  for (const kind of ['bf16', 'float32'] as const) {
    const { lora, generate } = got[kind]
    // float32 beside float32, matrix units (f16) beside bf16; transformers' generate includes the prompts.
    const way = wayName(kind === 'bf16' && ways.includes(true))
    const [step, generation] = [ours('LoRA step, micro-batches of 4096', way), ours('generation of', way)]
    show({ name: `PEFT's LoRA step, micro-batches of 4096, ${kind}`, value: lora.tokensPerSecond, unit: 'tokens/s' })
    show({ name: '  GPU memory at most', value: lora.peakBytes / 2 ** 30, unit: 'GiB' })
    if (step) show({ name: '  ours beside it', value: step / lora.tokensPerSecond, unit: 'x' })
    show({ name: `transformers' generate of 32 sequences, ${kind}`, value: generate.tokensPerSecond, unit: 'tokens/s' })
    if (generation) show({ name: '  ours beside it', value: generation / generate.tokensPerSecond, unit: 'x' })
  }
  return got
}

if (values.child) {
  await compileChild()
  gpu.close()
  process.exit(0)
}

const runs: Record<Part, () => unknown> = {
  dispatch: dispatches,
  compile: compiling,
  peaks: peaksOfAdapter,
  tune: tuning,
  matmul: matmuls,
  attention: attentions,
  decode: decodes,
  step: steps,
  peers,
}
console.log(`adapter  ${facts.name}${facts.software ? ' (software: the aims are not for it)' : ''}`)
console.log(
  `f16 ${facts.f16 ? 'yes' : 'no'}, subgroups of ${facts.subgroupSize || 'any size'}, matrix units ${facts.matrixUnits.map(({ m, n, k }) => `${m}x${n}x${k}`).join(', ') || 'none'}`,
)
for (const part of parts.filter((name) => only.includes(name))) {
  const begin = performance.now()
  try {
    report[part] = await runs[part]()
  } catch (error) {
    failed = true
    report[part] = { error: messageOf(error) }
    console.error(`${part} failed: ${messageOf(error)}`)
  }
  console.error(`${part}: ${((performance.now() - begin) / 1000).toFixed(1)} s`)
  const short = (_: string, value: unknown): unknown => (typeof value === 'number' ? Number(value.toPrecision(5)) : value)
  writeFileSync(values.out, `${JSON.stringify(report, short, 1)}\n`)
}
gpu.close()
if (failed) process.exit(1)
