/** The matmul tier of GPUs: the register tile. It also takes what the CPU kernels do not. */
import { fileURLToPath } from 'node:url'
import type { Binding, BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { kindOf, type Weight } from '../common/weight.ts'
import { addParts } from '../norm/norm.ts'
import { blockConstants, scalesAt } from '../quantised/quantised.ts'
import { bufferOf, type Extras, type Part } from './part.ts'
import { tileConstants, tileFor } from './register-tile.ts'
import type { Rows } from './stage.ts'

const path = fileURLToPath(new URL('tile.wgsl', import.meta.url))
const forms = {
  nt: { FORM_NT: 1, FORM_TN: 0 },
  nn: { FORM_NT: 0, FORM_TN: 0 },
  tn: { FORM_NT: 0, FORM_TN: 1 },
}
const nothing = { LORA: 0, BIAS: 0, RESIDUAL: 0, ACCUMULATE: 0 }

function run(
  gpu: Gpu,
  constants: Record<string, number>,
  bindings: Binding[],
  params: Record<string, Count>,
  parts: Count = 1,
): void {
  const VEC = Number(inFours(params, !!constants.FORM_TN))
  const tile = tileFor(gpu, params.rows, params.columns, parts, !!VEC && !!constants.FORM_NT)
  const kernel = gpu.kernel(path, { ...tileConstants(gpu, tile), VEC, NORM: 0, ...nothing, ...constants })
  gpu.dispatch(kernel, bindings, params, [groupsOf(params.columns, tile.columns), groupsOf(params.rows, tile.rows), parts])
}

/** Whether both operands and the output can be read and written as vec4. It depends on the weight's shape, never on the number of rows. */
function inFours(params: Record<string, Count>, tn: boolean): boolean {
  const names = ['columns', 'a_stride', 'a_column', 'b_stride', 'out_stride', 'out_column', 'first_row', tn ? 'rows' : 'depth']
  return names.every((name) => capacityOf(params[name]) % 4 === 0)
}

/** Where W is read from: a slice, or the weight's blocks. `place`: its part of the kernel's parameters. */
function operandOf(weight: Weight, { slice, row, blocks }: Part): { kind: Constants; w: Binding; place: Record<string, number> } {
  const b_stride = weight.columns
  if (!blocks) {
    return { kind: kindOf(weight), w: bufferOf(slice), place: { b_stride, b_row: row - slice.row, scales: 0 } }
  }
  const kind = { W_BF16: 0, W_BLOCKS: 1, ...blockConstants(blocks.format) }
  return { kind, w: blocks.storage, place: { b_stride, b_row: row, scales: scalesAt(blocks.format, weight.rows, b_stride) } }
}

/** y = alpha * (x Wᵀ + LoRA) + bias + residual of one part. */
export function forward(gpu: Gpu, x: Binding, rows: Count, weight: Weight, y: Binding, part: Part, options: Extras): void {
  const { alpha, rank, flags, extra } = options
  const k = weight.columns
  const { kind, w, place } = operandOf(weight, part)
  const of_a = { a_stride: k, a_column: 0 }
  const of_out = { out_stride: part.width, out_row: 0, out_column: part.column, first_row: part.row }
  const params = { rows, columns: part.rows, depth: k, rank, alpha, ...of_a, ...place, ...of_out }
  run(gpu, { ...forms.nt, ...kind, ...flags }, [x, y, w, ...extra], params)
}

/** dx (+)= alpha * (dy W + LoRA) of one part. @param parts if `flags` has SPLIT_K: dx is (parts, rows, K), with that many terms in each part */
export function backwardInput(
  gpu: Gpu,
  dy: Binding,
  rows: Count,
  weight: Weight,
  dx: Binding,
  part: Part,
  options: Extras,
  parts = 1,
): void {
  const { alpha, rank, flags, extra } = options
  const k = weight.columns
  const { kind, w, place } = operandOf(weight, part)
  const of_a = { a_stride: part.width, a_column: part.column }
  const of_out = { out_stride: k, out_row: 0, out_column: 0, first_row: 0 }
  const params = { rows, columns: k, depth: part.rows, rank, alpha, ...of_a, ...place, ...of_out }
  run(gpu, { ...forms.nn, ...kind, ...flags }, [dy, dx, w, ...extra], params, parts)
}

/** dW (+)= alpha * dyᵀ x. */
export function backwardWeight(
  gpu: Gpu,
  dy: Required<Rows>,
  x: Rows,
  dw: GpuBuffer | BufferRange,
  options: { alpha: number; accumulate: boolean; row: number },
): void {
  const { alpha, accumulate, row } = options
  const [n, k] = [dy.columns, x.columns]
  const of_a = { a_stride: dy.stride, a_column: dy.column }
  const of_out = { out_stride: k, out_row: row, out_column: 0, first_row: 0 }
  const params = { rows: n, columns: k, depth: dy.rows, rank: 0, alpha, ...of_a, b_stride: k, b_row: 0, scales: 0, ...of_out }
  const constants = { ...forms.tn, W_BF16: 0 }
  if (!accumulate || row > 0 || n * k > mostInParts || capacityOf(dy.rows) <= SPLIT_K)
    return run(gpu, { ...constants, ACCUMULATE: Number(accumulate) }, [dy.data, dw, x.data], params)
  const parts = groupsOf(dy.rows, SPLIT_K)
  addParts(gpu, dw, parts, n * k, (sums) => run(gpu, { ...constants, SPLIT_K }, [dy.data, sums, x.data], params, parts))
}

/**
 * Tokens of a partial product of split-K, for a small dW: LoRA's A and B have only a few tiles, so a few workgroups would go through all tokens while
 * the rest of a GPU is idle. Parts begin at token 0, so the bits do not depend on the capacity of a plan.
 */
const SPLIT_K = 1024
/** A dW with more outputs than this has enough workgroups without split-K. */
const mostInParts = 2 ** 18
