/** The gated delta rule (arXiv 2412.06464), which takes the place of attention in a Gated DeltaNet; scan.wgsl says what it computes. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { groupsOf, map, times, type Count } from '../../gpu/size.ts'
import { cpuLanes, dispatchFlat, perRow } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  scan: file('scan.wgsl'),
  back: file('scan_back.wgsl'),
  read: file('read_gradients.wgsl'),
  write: file('write_gradients.wgsl'),
  moved: file('moved.wgsl'),
  beta: file('beta_gradient.wgsl'),
  flow: file('flow.wgsl'),
  decay: file('decay_gradient.wgsl'),
  key: file('key_gradients.wgsl'),
}

/**
 * Heads of q and k (`keyHeads`), and of v and the states (`heads`, a multiple of keyHeads); channels of each, multiples of 4. Head h reads key head
 * floor(h / (heads / keyHeads)).
 */
export interface DeltaShape {
  keyHeads: number
  heads: number
  keyDim: number
  valueDim: number
}

/** Where a pass finds the states of sequences, and leaves them. */
export interface DeltaCache {
  /**
   * (rows) vec4u: slot of the row's sequence, its first row in the pass, its number of rows in the pass, 1 if they continue from the slot's state.
   * The rows of a sequence are contiguous.
   */
  runs: GpuBuffer
  /** (slots, heads, keyDim, valueDim). */
  states: GpuBuffer
}

/** Sequences that lie whole in a pass and share nothing: the sequence of a row ends before row keyEnd, (rows) u32, where the next one begins. */
interface WholeSequences {
  keyEnd: GpuBuffer
}

/** (rows, keyHeads * keyDim) q and k, (rows, heads * valueDim) v, (rows, heads) beta and decay, which is the logarithm of the decay. */
interface DeltaInputs {
  q: GpuBuffer
  k: GpuBuffer
  v: GpuBuffer
  decay: GpuBuffer
  beta: GpuBuffer
}

/**
 * Columns or rows of a state per workgroup: a GPU's subgroup, or two of a CPU driver's. Below: number of tokens whose vectors lie in workgroup
 * memory, which has at least 16 KiB.
 */
const widthOf = (gpu: Gpu): number => (gpu.facts.software ? 16 : 32)
const tokensFor = (vectors: number, channels: number): number =>
  Math.max(1, Math.min(8, Math.floor(16_384 / (vectors * channels * 4))))

/**
 * A workgroup takes the sequences that begin in this many rows: most rows of a training batch begin none, and almost all rows of a generation step
 * begin one.
 */
const ROWS = { whole: 16, cached: 1 }

/**
 * Constants, parameters and workgroups of a scan whose invocations each hold `held` values of one of the state's `lines` lines: one workgroup for
 * some rows, a head and a block of lines.
 */
function scanOf(gpu: Gpu, shape: DeltaShape, rows: Count, lines: number, vectors: number, held: number, each = ROWS.whole) {
  const { keyHeads, heads, keyDim: KEY, valueDim: VALUE } = shape
  const WIDTH = widthOf(gpu)
  const BLOCKS = Math.ceil(lines / WIDTH)
  // In each subgroup, either all lanes have lines or none.
  const { LANES: subgroup } = cpuLanes(gpu)
  const LANES = lines % subgroup === 0 ? subgroup : 0
  const [across, deep] = perRow(groupsOf(rows, each))
  return {
    constants: { KEY, VALUE, WIDTH, LANES, BLOCKS, ROWS: each, TOKENS: tokensFor(vectors, held) },
    params: { rows, heads, ratio: heads / keyHeads },
    groups: [across, heads * BLOCKS, deep] as [Count, number, Count],
  }
}

/** Computes o (rows, heads * valueDim). `u`, of the same size, is kept for the backward pass. */
export function deltaRule(
  gpu: Gpu,
  t: DeltaInputs & { o: GpuBuffer; u?: GpuBuffer },
  from: WholeSequences | DeltaCache,
  rows: Count,
  shape: DeltaShape,
): void {
  const cached = 'runs' in from
  const each = cached ? ROWS.cached : ROWS.whole
  const { constants, params, groups } = scanOf(gpu, shape, rows, shape.valueDim, 2, shape.keyDim, each)
  const kernel = gpu.kernel(paths.scan, { ...constants, CACHE: Number(cached), KEEP: Number(!!t.u) })
  const where = cached ? [from.runs, from.states] : [from.keyEnd]
  gpu.dispatch(kernel, [t.q, t.k, t.v, t.decay, t.beta, t.o, ...where, ...(t.u ? [t.u] : [])], params, groups)
}

/** What the backward pass reads and writes, and its scratch buffers. */
interface DeltaGradients {
  /** `u` as kept by `deltaRule`, and the gradient of the output: (rows, heads * valueDim). */
  u: GpuBuffer
  dO: GpuBuffer
  dq: GpuBuffer
  dk: GpuBuffer
  dv: GpuBuffer
  dDecay: GpuBuffer
  dBeta: GpuBuffer
  /** Scratch: two of (rows, heads * valueDim), three of (rows, heads * keyDim), one of (rows, heads). */
  dd: GpuBuffer
  moved: GpuBuffer
  ofQ: GpuBuffer
  read: GpuBuffer
  written: GpuBuffer
  flow: GpuBuffer
}

/** Computes the gradients of all inputs. */
export function deltaRuleBackward(
  gpu: Gpu,
  t: DeltaInputs & WholeSequences & DeltaGradients,
  rows: Count,
  shape: DeltaShape,
): void {
  const { keyDim, valueDim, keyHeads, heads } = shape
  const whole = { CACHE: 0 }
  const byColumn = scanOf(gpu, shape, rows, valueDim, 2, keyDim)
  const byRow = scanOf(gpu, shape, rows, keyDim, 3, valueDim)
  const back = gpu.kernel(paths.back, { ...byColumn.constants, ...whole })
  const given = [t.q, t.k, t.dO, t.decay, t.beta, t.keyEnd, t.dd, t.dv]
  gpu.dispatch(back, given, byColumn.params, byColumn.groups)
  const [read, write] = [paths.read, paths.write].map((path) => gpu.kernel(path, { ...byRow.constants, ...whole }))
  const values = map(rows, (n) => (n * heads * valueDim) / 4)
  dispatchFlat(gpu, paths.moved, { VALUE: valueDim }, [t.beta, t.u, t.moved], { count: values }, values)
  const known = [t.decay, t.moved, t.dv, t.dO, t.keyEnd]
  gpu.dispatch(read, [t.k, ...known, t.ofQ, t.read], byRow.params, byRow.groups)
  gpu.dispatch(write, [t.q, t.k, ...known, t.written], byRow.params, byRow.groups)

  const ratio = heads / keyHeads
  const count = times(rows, heads)
  dispatchFlat(gpu, paths.beta, { VALUE: valueDim }, [t.dd, t.u, t.dBeta], { count }, count)
  const flows = [t.q, t.k, t.ofQ, t.read, t.written, t.flow]
  dispatchFlat(gpu, paths.flow, { KEY: keyDim }, flows, { count, heads, ratio }, count)
  dispatchFlat(gpu, paths.decay, whole, [t.flow, t.keyEnd, t.dDecay], { rows, heads }, count)
  const fours = map(rows, (n) => (n * keyHeads * keyDim) / 4)
  dispatchFlat(gpu, paths.key, { KEY: keyDim }, [t.ofQ, t.read, t.written, t.dq, t.dk], { count: fours, ratio }, fours)
}
