/** Loads a loss by name or from a file, and runs built-in losses on the GPU. */
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { messageWithPlace, UserError } from '../../common/errors.ts'
import { importOf } from '../../common/loading.ts'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { map, type Count } from '../../gpu/size.ts'
import { dispatchFlat } from '../../kernels/common/lanes.ts'
import cispo from './cispo.ts'
import cispoMask from './cispo_mask.ts'
import type { LossFunction, LossInputs, LossOutputs, RatioBounds } from './types.ts'

/** A loss that is ready to run. Built-in losses have a GPU kernel; a loss from a file runs on the host. */
export interface Loss {
  name: string
  run: LossFunction
  args: Record<string, unknown>
  kernel?: LossKernel
  /**
   * Whether to check the gradient by finite differences. False for built-ins, and for a file with `export const checkGradient = false`, whose
   * gradient is deliberately not the derivative of its loss.
   */
  checked: boolean
}

interface LossKernel {
  /** Path of the .wgsl file. */
  path: string
  bounds: RatioBounds
}

const builtIns = { cispo, cispo_mask: cispoMask }
const isBuiltIn = (name: string): name is keyof typeof builtIns => Object.hasOwn(builtIns, name)

function builtIn(name: keyof typeof builtIns, { mask_ratio_low, mask_ratio_high }: RatioBounds): Loss {
  const bounds = { mask_ratio_low, mask_ratio_high }
  const path = fileURLToPath(new URL(`${name}.wgsl`, import.meta.url))
  return { name, run: (inputs) => builtIns[name](inputs, bounds), args: bounds, kernel: { path, bounds }, checked: false }
}

/**
 * Loads a loss: `cispo`, `cispo_mask`, or the path of a .ts or .js file whose default export is a LossFunction.
 * @throws UserError that names the file and what is wrong with it
 */
export async function loadLoss(name: string, bounds: RatioBounds, args: Record<string, unknown> = {}): Promise<Loss> {
  if (isBuiltIn(name)) return builtIn(name, bounds)
  const path = resolve(name)
  if (!existsSync(path)) {
    const known = Object.keys(builtIns).join(', ')
    throw new UserError(`loss is '${name}': there is no such file, and the built-in losses are ${known}.`)
  }
  const module = await importOf(`The loss ${name}`, path)
  if (typeof module.default !== 'function') {
    throw new UserError(
      `The loss ${name} must export a function as its default: (inputs, args) => ({ gradient, loss, metrics }).`,
    )
  }
  return { name, run: module.default as LossFunction, args, checked: module.checkGradient !== false }
}

/** The loss of supervised training, -logprob / N: CISPO with every weight clamped to 1. All advantages of the batch are 1. */
export const negativeLogLikelihood: Loss = { ...builtIn('cispo', { mask_ratio_low: 1, mask_ratio_high: 1 }), name: 'nll' }

/** Runs a built-in loss's kernel, which writes gradient and loss of `count` tokens. With `beta`, adds the KL term (kl.ts) of refLogprobs. */
export function runLossKernel(
  gpu: Gpu,
  { path, bounds }: LossKernel,
  t: {
    logprobs: Binding
    inferenceLogprobs: Binding
    advantages: Binding
    refLogprobs?: Binding
    gradient: Binding
    loss: Binding
  },
  count: Count,
  { lossTokenCount, beta }: { lossTokenCount: Count; beta?: number },
): void {
  const params = { count, ...bounds, inverse_tokens: map(lossTokenCount, (n) => 1 / n) }
  const bindings = [t.logprobs, t.inferenceLogprobs, t.advantages, t.gradient, t.loss]
  if (beta) dispatchFlat(gpu, path, { KL: 1 }, [...bindings, t.refLogprobs!], { ...params, beta }, count)
  else dispatchFlat(gpu, path, {}, bindings, params, count)
}

/** Copies all arrays: a loss that writes to its inputs would otherwise change the batch for its next call and for the metrics. */
const ownArrays = (x: LossInputs): LossInputs => ({
  ...x,
  logprobs: x.logprobs.slice(),
  frozenLogprobs: x.frozenLogprobs.slice(),
  inferenceLogprobs: x.inferenceLogprobs.slice(),
  refLogprobs: x.refLogprobs?.slice(),
  advantages: x.advantages.slice(),
  lossMask: x.lossMask.slice(),
  entropy: x.entropy.slice(),
})

/**
 * Calls a loss on one sequence.
 * @throws UserError if the loss throws or returns something invalid
 */
export function runHostLoss(loss: Loss, inputs: LossInputs): LossOutputs {
  let out: LossOutputs
  try {
    out = loss.run(ownArrays(inputs), loss.args)
  } catch (error) {
    const unknown = !inputs.refLogprobs && loss.run.toString().includes('refLogprobs')
    const hint = unknown ? '. It reads refLogprobs, which exist only with trainer.args.use_ref_model = true or beta above 0.' : ''
    throw new UserError(`The loss ${loss.name} threw: ${messageWithPlace(error)}${hint}`)
  }
  const length = inputs.logprobs.length
  if (!(out?.gradient instanceof Float32Array) || out.gradient.length !== length || typeof out.loss !== 'number') {
    throw new UserError(
      `The loss ${loss.name} must return { gradient: Float32Array of ${length} values (one per token), loss: number }; it returned ${describe(out)}.`,
    )
  }
  return out
}

function describe(out: unknown): string {
  if (out instanceof Promise) return 'a promise (the function must not be async)'
  if (typeof out !== 'object' || out === null) return String(out)
  const { gradient, loss } = out as { gradient?: ArrayLike<number>; loss?: unknown }
  return `gradient: ${gradient ? `${gradient.constructor.name} of ${gradient.length}` : 'none'}, loss: ${String(loss)}`
}
