/**
 * torchlette (github vinhowe/torchlette) on the same adapter as ours: one product, and a full training step of its GPT-2. It is not part of this
 * project: its source is loaded from the checkout that the job names.
 *
 *     CHECKOUT/node_modules/.bin/tsx bench/peers/torchlette.ts JOB.json     (started by run.ts)
 *
 * On a software adapter it gets a device without subgroups, because it relies on 32 lanes and such an adapter has fewer.
 */
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { MATMUL, SMALL } from './cases.ts'
import { say, type Job } from './job.ts'
import { median } from './table.ts'

/** The part of torchlette that is used here. */
interface Tensor {
  item(): Promise<number>
  cpu(): Promise<number[]>
  backward(): Promise<void>
  narrow(axis: number, at: number, length: number): Tensor
  dispose(): void
}
interface Api {
  tensorFromArray(values: number[], shape: number[], options: { device: string }): Tensor
  matmul(a: Tensor, b: Tensor): Tensor
  tidy<T>(run: () => T): T
  keep(tensor: Tensor): void
  beginStep(): Promise<void>
  endStep(): void
  markStep(): Promise<void>
}
interface Model {
  train(on: boolean): void
  parameters(): unknown[]
  forwardWithLoss(input: Tensor, target: Tensor): { loss: Tensor | null }
}
interface Core {
  initWebGPU(options: { device: GPUDevice }): Promise<boolean>
  getWebGPUInitError(): string | null
  syncWebGPU(): Promise<void>
  webgpuDeviceRequirements(adapter: GPUAdapter): { requiredFeatures: string[]; requiredLimits: Record<string, number> }
  Torchlette: new (device: string, options: { enableFusion: boolean }) => Api
  Adam: new (
    parameters: unknown[],
    options: { lr: number; weightDecay: number; adamW: boolean },
    api: Api,
  ) => { step(): void; zeroGrad(): void }
}

const job = JSON.parse(readFileSync(process.argv[2], 'utf8')) as Job
const checkout = resolve(job.torchlette!)
const load = async <T>(path: string): Promise<T> => (await import(pathToFileURL(join(checkout, path)).href)) as T
const core = await load<Core>('src/index.ts')
const { create, globals } = createRequire(join(checkout, 'package.json'))('webgpu') as typeof import('webgpu')
Object.assign(globalThis, globals)

const name = process.env.DAWN_RL_ADAPTER
const gpu = create(['enable-dawn-features=vulkan_enable_f16_on_nvidia', ...(name ? [`adapter=${name}`] : [])])
const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' })
if (!adapter) throw new Error('torchlette finds no WebGPU adapter')
const { requiredFeatures, requiredLimits } = core.webgpuDeviceRequirements(adapter)
const wanted = requiredFeatures.filter((feature) => job.device === 'gpu' || feature !== 'subgroups') as GPUFeatureName[]
const device = await adapter.requestDevice({ requiredFeatures: wanted, requiredLimits })
if (!(await core.initWebGPU({ device }))) throw new Error(`torchlette: ${core.getWebGPUInitError() ?? 'no WebGPU'}`)
const api = new core.Torchlette('webgpu', { enableFusion: true })
const on = { device: 'webgpu' }
const about = {
  on: `${adapter.info.description}${wanted.includes('subgroups') ? '' : ' (subgroups off)'}`,
  versions: { node: process.version },
}

async function secondsOf(run: () => Promise<unknown>, warmUp: number): Promise<number> {
  for (let i = 0; i < warmUp; i++) await run()
  const times: number[] = []
  for (let i = 0; i < job.repeats; i++) {
    const begin = performance.now()
    await run()
    times.push((performance.now() - begin) / 1000)
  }
  return median(times)
}

/** The product by its definition, at some outputs. */
function checkProduct(a: number[], b: number[], out: ArrayLike<number>): void {
  const { rows, k, columns } = MATMUL
  for (const [i, j] of [[0, 0], [1, 5], [rows - 1, columns - 1]]) {
    let sum = 0
    for (let t = 0; t < k; t++) sum += a[i * k + t] * b[t * columns + j]
    const got = out[i * columns + j]
    if (!(Math.abs(got - sum) < 1e-2)) throw new Error(`torchlette: output ${i}, ${j} of the product is ${got} instead of ${sum}`)
  }
} // prettier-ignore

async function matmul(): Promise<void> {
  const { rows, k, columns } = MATMUL
  const values = (length: number) => Array.from({ length }, (_, i) => ((i * 7919) % 13) / 13 - 0.5)
  const [left, right] = [values(rows * k), values(k * columns)]
  const a = api.tensorFromArray(left, [rows, k], on)
  const b = api.tensorFromArray(right, [k, columns], on)
  const product = api.matmul(a, b)
  checkProduct(left, right, await product.cpu())
  const seconds = await secondsOf(async () => {
    const out = api.matmul(a, b)
    // torchlette is lazy: reading one value computes the whole product, and reads little back.
    await out.narrow(0, 0, 1).cpu()
    out.dispose()
  }, 2)
  say({ name: 'matmul', value: (2 * rows * k * columns) / seconds / 1e9, ...about })
}

async function smallStep(): Promise<void> {
  const { layers, width, heads, vocabulary, sequences, tokens } = SMALL
  const { GPT2 } = await load<{ GPT2: new (api: Api, config: object, options: object) => Model }>('examples/gpt2/model.ts')
  const sizes = { vocabSize: vocabulary, blockSize: tokens, numLayers: layers, numHeads: heads, embedDim: width, dropoutRate: 0 }
  const model = new GPT2(api, sizes, on)
  model.train(true)
  const optimizer = new core.Adam(model.parameters(), { lr: 1e-4, weightDecay: 0, adamW: true }, api)
  const ids = (offset: number) => Array.from({ length: sequences * tokens }, (_, i) => ((i + offset) * 7919) % vocabulary)
  const losses: number[] = []
  const seconds = await secondsOf(async () => {
    await api.beginStep()
    const [input, target] = [0, 1].map((offset) => api.tensorFromArray(ids(offset), [sequences, tokens], on))
    const loss = api.tidy(() => {
      const value = model.forwardWithLoss(input, target).loss!
      api.keep(value)
      return value
    })
    losses.push(await loss.item())
    await loss.backward()
    optimizer.step()
    optimizer.zeroGrad()
    for (const tensor of [input, target]) tensor.dispose()
    api.endStep()
    await api.markStep()
    await core.syncWebGPU()
  }, 1)
  say({ name: 'small step', value: seconds, losses, ...about })
}

await (job.work === 'matmul' ? matmul() : smallStep())
process.exit(0)
