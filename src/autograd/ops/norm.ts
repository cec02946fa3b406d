/** RMSNorm over rows, or over each head of a row. */
import type { BufferRange } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { times } from '../../gpu/size.ts'
import * as kernels from '../../kernels/norm/norm.ts'
import { rope as ropeKernel } from '../../kernels/rope/rope.ts'
import type { Parameter, ParameterStore } from '../parameters.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import { rope, type RowLayout } from './attention.ts'
import { roomInHalf } from './linear.ts'

export interface Norm {
  name: string
  /** Factors of the normalised values. */
  gain: GpuBuffer | BufferRange
  /** Whether the gain is 1 + the weight in files and in `trained`. refreshWeights (model/decoder/trained.ts) then computes the gain. */
  fromOne?: boolean
  channels: number
  eps: number
  trained?: { store: ParameterStore; gain: Parameter }
}

/** `rmsNorm` of whole rows with the output in f16, for products on matrix units only (`takesHalf`). Only on a tape that does not record. */
export function rmsNormInHalf(tape: Tape, x: Tensor, { name, gain, channels, eps }: Norm): Tensor {
  const y = roomInHalf(tape, x)
  const rstd = tape.tensor(x.rows, 1, `${name} rstd`, false)
  kernels.rmsNorm(tape.gpu, x.buffer, gain, y.buffer, rstd.buffer, x.rows, channels, eps, { half: true })
  tape.done(rstd)
  return y
}

/** `rmsNorm` over heads or whole rows, then `rope`. One dispatch (and one backward) for head sizes that the kernels support; same bits. */
export function rmsNormTurned(
  tape: Tape,
  x: Tensor,
  norm: Norm,
  { info }: RowLayout,
  table: GpuBuffer,
  headDim = norm.channels,
  rotaryDim = headDim,
): Tensor {
  const heads = x.columns / headDim
  if (norm.channels === headDim && rotaryDim === headDim && kernels.takesTurn(tape.gpu, headDim))
    return rmsNorm(tape, x, norm, { turn: { info, table, heads } })
  return rope(tape, rmsNorm(tape, x, norm), { info }, table, heads, headDim, false, rotaryDim)
}

/**
 * y = x / rms(x) * gain over groups of `norm.channels` columns: a whole row, or each head of it.
 * @param more.turn rotates the heads afterwards (`rmsNormTurned`) @param more.residual is added afterwards; with norms of whole rows only
 */
export function rmsNorm(tape: Tape, x: Tensor, norm: Norm, more: { turn?: kernels.HeadTurn; residual?: Tensor } = {}): Tensor {
  const { gpu } = tape
  const { channels, trained } = norm
  const { turn, residual } = more
  const groups = times(x.rows, x.columns / channels)
  const y = tape.tensor(x.rows, x.columns, norm.name, x.needsGrad || !!trained || !!residual?.needsGrad)
  const rstd = tape.tensor(groups, 1, `${norm.name} rstd`, false)
  kernels.rmsNorm(gpu, x.buffer, norm.gain, y.buffer, rstd.buffer, groups, channels, norm.eps, {
    turn,
    residual: residual?.buffer,
  })
  tape.node(y, [x, rstd], (given) => {
    const dgain = trained?.store.gradient(trained.gain)
    const atOnce = dgain && x.needsGrad && kernels.takesGain(gpu, channels)
    // If the gain's gradient has a kernel of its own, that needs the gradient before rotation.
    const apart = dgain && !atOnce
    const dy = apart && turn ? turnedBack(tape, given, turn) : given.keep()
    if (apart) kernels.rmsNormGain(gpu, dy.buffer, x.buffer, rstd.buffer, dgain, groups, channels)
    if (x.needsGrad) {
      // If the gradient of the residual path is there already, it is added in the same pass.
      const skip = x.grad
      const dx = tape.tensor(x.rows, x.columns, `d ${norm.name}`, false)
      const read = { dy: dy.buffer, x: x.buffer, gain: norm.gain, rstd: rstd.buffer, skip: skip?.buffer }
      const t = { ...read, dx: dx.buffer, dgain: atOnce ? dgain : undefined }
      kernels.rmsNormBackward(gpu, t, groups, channels, apart ? undefined : turn)
      x.grad = dx
      skip?.drop()
    }
    dy.drop()
    if (residual) tape.giveGrad(residual, given)
  })
  tape.done(rstd)
  return y
}

function turnedBack(tape: Tape, dy: Tensor, { info, table, heads }: kernels.HeadTurn): Tensor {
  const own = tape.ownGrad(dy)
  ropeKernel(tape.gpu, own.buffer, info, table, dy.rows, heads, dy.columns / heads, true)
  return own
}
