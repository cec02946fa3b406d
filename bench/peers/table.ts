/** From figures to the table: medians, ratios, and whether a target was met. */

/** The middle value; of an even number of values the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length / 2
  return (sorted[Math.ceil(middle) - 1] + sorted[Math.floor(middle)]) / 2
}

/** One contestant's figures over all rounds. */
export interface Side {
  values: number[]
  peakBytes: number[]
  generation: number[]
}

/** One line of the table: a case against one peer. */
export interface Row {
  name: string
  peer: string
  unit: string
  /** Medians. */
  ours: number
  theirs: number
  /** How many times as fast we are: above 1 is faster. */
  ratio: number
  target: number | null
  met: boolean | null
  oursBytes: number
  theirsBytes: number
  memoryRatio: number
  memoryTarget: number | null
  memoryMet: boolean | null
  /** Seconds of a step spent in generation, where that was measured. */
  oursGeneration: number | null
  theirsGeneration: number | null
  /** Every value, in the order of the rounds. */
  values: { ours: number[]; theirs: number[] }
}

/** A case's unit and targets. */
export interface Target {
  unit: 'tokens/s' | 's' | 'GFLOP/s'
  /** The least speed compared with the peer's; null without a target. */
  speed: number | null
  /** The largest share of the peer's peak memory. */
  memory: number | null
}

/** Compares the two sides of a case. */
export function rowOf(name: string, peer: string, target: Target, ours: Side, theirs: Side): Row {
  const [a, b] = [median(ours.values), median(theirs.values)]
  const ratio = target.unit === 's' ? b / a : a / b
  const [oursBytes, theirsBytes] = [median(ours.peakBytes), median(theirs.peakBytes)]
  const memoryRatio = oursBytes / theirsBytes
  const seconds = (side: Side) => (side.generation.length > 0 ? median(side.generation) : null)
  return {
    name,
    peer,
    unit: target.unit,
    ours: a,
    theirs: b,
    ratio,
    target: target.speed,
    met: target.speed === null ? null : ratio >= target.speed,
    oursBytes,
    theirsBytes,
    memoryRatio,
    memoryTarget: target.memory,
    memoryMet: target.memory === null ? null : memoryRatio <= target.memory,
    oursGeneration: seconds(ours),
    theirsGeneration: seconds(theirs),
    values: { ours: ours.values, theirs: theirs.values },
  }
}

const gigabytes = (bytes: number): string => `${(bytes / 1e9).toFixed(2)} GB`
const verdict = (met: boolean | null): string => (met === null ? '' : met ? 'met' : 'not met')
const figure = (value: number): string => value.toPrecision(3).replace(/\.?0+e\+?/, 'e')

/** Right-aligned columns. */
const NUMERIC = [2, 3, 4, 5, 7, 8, 9, 10]

/** The table as lines, its columns as wide as their widest cell. */
export function tableLines(rows: readonly Row[]): string[] {
  const cells = [
    ['case', 'peer', 'ours', 'theirs', 'ratio', 'target', '', 'memory', 'theirs', 'ratio', 'target', ''],
    ...rows.map((row) => [
      row.name,
      row.peer,
      `${figure(row.ours)} ${row.unit}`,
      `${figure(row.theirs)} ${row.unit}`,
      `${row.ratio.toFixed(2)} x`,
      row.target === null ? '' : `${row.target} x`,
      verdict(row.met),
      gigabytes(row.oursBytes),
      gigabytes(row.theirsBytes),
      `${row.memoryRatio.toFixed(2)} x`,
      row.memoryTarget === null ? '' : `${row.memoryTarget} x`,
      verdict(row.memoryMet),
    ]),
  ]
  const widths = cells[0].map((_, column) => Math.max(...cells.map((line) => line[column].length)))
  return cells.map((line) =>
    line
      .map((cell, column) => (NUMERIC.includes(column) ? cell.padStart(widths[column]) : cell.padEnd(widths[column])))
      .join('  ')
      .trimEnd(),
  )
}
