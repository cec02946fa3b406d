/** Finds a loss by name or file, and runs built-ins on the GPU. */
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { messageOf, UserError } from '../../common/errors.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { flat } from '../../kernels/common/lanes.ts'
import cispo from './cispo.ts'
import cispoMask from './cispo_mask.ts'
import type { LossFunction, RatioBounds } from './types.ts'

/** A loss ready to run. Built-ins have a kernel; a file of the user's runs on the host. */
export interface Loss {
  name: string
  run: LossFunction
  args: Record<string, unknown>
  kernel?: string
}

const builtIns: Record<string, { run: LossFunction<never>; wgsl: string }> = {
  cispo: { run: cispo, wgsl: 'cispo.wgsl' },
  cispo_mask: { run: cispoMask, wgsl: 'cispo_mask.wgsl' },
  // Negative log-likelihood (SFT) is CISPO with every ratio's weight pinned to 1 and an advantage of 1: see `negativeLogLikelihood`.
}

/**
 * Loads a loss: `cispo`, `cispo_mask`, or the path of a .ts or .js file that exports a LossFunction as its default.
 * @throws UserError naming the file and what is wrong with it
 */
export async function loadLoss(name: string, bounds: RatioBounds, args: Record<string, unknown> = {}): Promise<Loss> {
  const builtIn = builtIns[name]
  if (builtIn) {
    const kernel = fileURLToPath(new URL(builtIn.wgsl, import.meta.url))
    return { name, run: builtIn.run as LossFunction, args: { ...bounds, ...args }, kernel }
  }
  const path = resolve(name)
  if (!existsSync(path)) {
    const known = Object.keys(builtIns).join(', ')
    throw new UserError(`loss is '${name}': there is no such file, and the built-in losses are ${known}.`)
  }
  let module: { default?: unknown }
  try {
    module = (await import(pathToFileURL(path).href)) as { default?: unknown }
  } catch (error) {
    throw new UserError(`The loss ${name} cannot be loaded: ${messageOf(error)}`)
  }
  if (typeof module.default !== 'function') {
    throw new UserError(
      `The loss ${name} must export a function as its default: (inputs, args) => ({ gradient, loss, metrics }).`,
    )
  }
  return { name, run: module.default as LossFunction, args: { ...bounds, ...args } }
}

/** The loss of supervised training: -logprob / N on every counted token, whatever was sampled. */
export const negativeLogLikelihood: Loss = {
  name: 'nll',
  args: { mask_ratio_low: 1, mask_ratio_high: 1 },
  run: cispo as unknown as LossFunction,
  kernel: fileURLToPath(new URL('cispo.wgsl', import.meta.url)),
}

/** gradient and loss of each of `count` tokens, by a built-in's kernel. */
export function runLossKernel(
  gpu: Gpu,
  kernel: string,
  t: { logprobs: GpuBuffer; inferenceLogprobs: GpuBuffer; advantages: GpuBuffer; gradient: GpuBuffer; loss: GpuBuffer },
  count: number,
  args: RatioBounds & { lossTokenCount: number },
): void {
  const { mask_ratio_low, mask_ratio_high } = args
  const params = { count, mask_ratio_low, mask_ratio_high, inverse_tokens: 1 / args.lossTokenCount }
  gpu.dispatch(gpu.kernel(kernel), [t.logprobs, t.inferenceLogprobs, t.advantages, t.gradient, t.loss], params, flat(count))
}
