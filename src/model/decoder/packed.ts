/**
 * Packed batches: sequences one after another without padding, and the rows of a shared prompt only once.
 * - A prompt that several samples share (same `promptKey`) stands right before all of them; each sample attends to it and to itself.
 *   The result is the same as for separate sequences, bit for bit, at a fraction of the rows.
 * - The last token of a sequence is predicted but predicts nothing, so it has no row.
 */
import type { TrainingBatch, TrainingSample } from '../../common/types.ts'
import { statefulLayers } from './shapes.ts'
import type { ModelConfig } from '../types.ts'

/** Rows of a packed batch, on the host. All arrays are as long as `rows` (info: 4 values a row). */
interface PackedRows {
  rows: number
  ids: Uint32Array
  /** prefix start, prefix length, own start, position; see kernels/attention/common.wgsl. */
  info: Uint32Array
  /** Rows r .. keyEnd[r] - 1 see row r. */
  keyEnd: Uint32Array
}

/** A packed batch with the tokens that are scored: entry i is about predicting targets[i] from row hiddenRow[i]. */
export interface PackedBatch extends PackedRows {
  hiddenRow: Uint32Array
  targets: Uint32Array
  /** Which sample and which of its tokens each entry is about. */
  sample: Uint32Array
  token: Uint32Array
}

/** A sample whose tokens may be scored, and none of which has a loss. */
export const untrained = (ids: Int32Array): TrainingSample => ({
  ids,
  lossMask: new Uint8Array(ids.length),
  inferenceLogprobs: new Float32Array(ids.length),
  advantages: new Float32Array(ids.length),
})

/** One optimizer step's batch; its N counts the tokens that have a loss. */
export const batchOf = (step: number, samples: TrainingSample[]): TrainingBatch => ({
  step,
  samples,
  lossTokenCount: samples.reduce((sum, s) => sum + s.lossMask.reduce((a, b) => a + b, 0), 0),
})

/** Samples that are computed together: alone, or around one prompt. */
interface PackGroup {
  /** Rows of the shared prompt; 0 where nothing is shared. */
  prefix: number
  /** Indices into the samples. */
  members: number[]
}

/** Groups samples by prompt key, in order of first appearance. Samples without a key stand alone, and all do where nothing is `shared`. */
export function groupByPrompt(samples: TrainingSample[], shared = true): PackGroup[] {
  const groups: PackGroup[] = []
  const byKey = new Map<string, PackGroup>()
  samples.forEach(({ promptKey, promptLength = 0 }, i) => {
    if (!shared || promptKey === undefined) {
      groups.push({ prefix: 0, members: [i] })
      return
    }
    const known = byKey.get(promptKey)
    if (known) known.members.push(i)
    else {
      const group = { prefix: promptLength, members: [i] }
      byKey.set(promptKey, group)
      groups.push(group)
    }
  })
  return groups
}

/** Rows that a group takes in a packed batch. */
export function rowsOfGroup(group: PackGroup, samples: TrainingSample[]): number {
  return group.members.reduce((sum, i) => sum + Math.max(0, samples[i].ids.length - 1 - group.prefix), group.prefix)
}

/**
 * Packs groups of samples.
 * @param scored which tokens get an entry: those of the loss mask, or all but the first of each sequence (`score`)
 */
export function pack(samples: TrainingSample[], groups: PackGroup[], scored: 'loss' | 'all'): PackedBatch {
  const rows = groups.reduce((sum, g) => sum + rowsOfGroup(g, samples), 0)
  const packed = { rows, ids: new Uint32Array(rows), info: new Uint32Array(rows * 4), keyEnd: new Uint32Array(rows) }
  const entries: { hiddenRow: number[]; targets: number[]; sample: number[]; token: number[] } = {
    hiddenRow: [],
    targets: [],
    sample: [],
    token: [],
  }
  let row = 0
  for (const { prefix, members } of groups) {
    const start = row
    const end = start + rowsOfGroup({ prefix, members }, samples)
    const first = samples[members[0]].ids
    for (let i = 0; i < prefix; i++, row++) fillRow(packed, row, first[i], [start, 0, start, i], end)
    for (const member of members) {
      const { ids, lossMask } = samples[member]
      const own = row
      const ownEnd = own + ids.length - 1 - prefix
      for (let i = prefix; i < ids.length - 1; i++, row++) fillRow(packed, row, ids[i], [start, prefix, own, i], ownEnd)
      for (let i = 1; i < ids.length; i++) {
        if (scored === 'loss' && !lossMask[i]) continue
        entries.hiddenRow.push(i - 1 < prefix ? start + i - 1 : own + i - 1 - prefix)
        entries.targets.push(ids[i])
        entries.sample.push(member)
        entries.token.push(i)
      }
    }
  }
  const { hiddenRow, targets, sample, token } = entries
  return {
    ...packed,
    hiddenRow: Uint32Array.from(hiddenRow),
    targets: Uint32Array.from(targets),
    sample: Uint32Array.from(sample),
    token: Uint32Array.from(token),
  }
}

function fillRow(packed: PackedRows, row: number, id: number, info: [number, number, number, number], keyEnd: number): void {
  packed.ids[row] = id
  packed.info.set(info, row * 4)
  packed.keyEnd[row] = keyEnd
}

/**
 * For each key 0 .. outs - 1 the places i with keys[i] = key, in order: source[start[key] .. start[key + 1]).
 */
export function listsByKey(keys: Uint32Array, outs: number): { start: Uint32Array; source: Uint32Array } {
  const start = new Uint32Array(outs + 1)
  for (const key of keys) start[key + 1]++
  for (let k = 0; k < outs; k++) start[k + 1] += start[k]
  const next = start.slice()
  const source = new Uint32Array(keys.length)
  keys.forEach((key, i) => (source[next[key]++] = i))
  return { start, source }
}

/** The distinct tokens of a batch, ascending, and for each the rows it stands in. */
export function listsByToken(ids: Uint32Array): { tokens: Uint32Array; start: Uint32Array; source: Uint32Array } {
  const tokens = Uint32Array.from(new Set(ids)).sort()
  const place = new Map([...tokens].map((token, i) => [token, i]))
  const { start, source } = listsByKey(
    ids.map((id) => place.get(id)!),
    tokens.length,
  )
  return { tokens, start, source }
}

/** Whether the rows of a prompt serve several completions: not of a Gated DeltaNet, which goes on from its state behind them. */
export const sharesPrompts = (config: ModelConfig): boolean => statefulLayers(config).length === 0

/** Splits groups into micro-batches of at most `rowsAtMost` rows, in order; a larger group is split by members, its prompt repeated. */
export function microBatches(samples: TrainingSample[], rowsAtMost: number, shared = true): PackGroup[][] {
  const batches: PackGroup[][] = []
  let current: PackGroup[] = []
  let rows = 0
  const flush = () => {
    if (current.length > 0) batches.push(current)
    current = []
    rows = 0
  }
  for (const group of groupByPrompt(samples, shared)) {
    let part: PackGroup = { prefix: group.prefix, members: [] }
    const close = () => {
      if (part.members.length === 0) return
      current.push(part)
      rows += rowsOfGroup(part, samples)
    }
    for (const member of group.members) {
      const wider = { prefix: group.prefix, members: [...part.members, member] }
      if (rows + rowsOfGroup(wider, samples) <= rowsAtMost) part = wider
      else {
        close()
        flush()
        part = { prefix: group.prefix, members: [member] }
      }
    }
    close()
  }
  flush()
  return batches
}

/** Samples as the micro-batches of a model take them. */
export const packedBatches = (
  config: ModelConfig,
  samples: TrainingSample[],
  rowsAtMost: number,
  scored: 'loss' | 'all',
): PackedBatch[] => microBatches(samples, rowsAtMost, sharesPrompts(config)).map((groups) => pack(samples, groups, scored))
