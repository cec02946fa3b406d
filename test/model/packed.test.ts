/** Packing: what each row reads and each entry scores is what the sequences have that are computed one by one, whatever they share and however they are split. */
import { expect, test } from 'vitest'
import type { TrainingSample } from '../../src/common/types.ts'
import { groupByPrompt, listsByKey, listsByToken, microBatches, pack, type PackedBatch } from '../../src/model/decoder/packed.ts'
import fc from '../fast-check.ts'

const token = fc.nat(4)
/** A prompt, and completions of it. */
const prompt = fc.record({
  prompt: fc.array(token, { maxLength: 7 }),
  keyed: fc.boolean(),
  completions: fc.array(
    fc.record({
      ids: fc.array(token, { maxLength: 6 }),
      mask: fc.infiniteStream(fc.boolean()),
      place: fc.nat(),
    }),
    { minLength: 1, maxLength: 5 },
  ),
})
type Prompt = typeof prompt extends fc.Arbitrary<infer T> ? T : never

/** The samples of all prompts, those of one not side by side. */
const samplesOf = (prompts: Prompt[]): TrainingSample[] =>
  prompts
    .flatMap(({ prompt: first, keyed, completions }, p) =>
      completions.map(({ ids: end, mask, place }) => {
        const ids = Int32Array.from([...first, ...end])
        const zeros = new Float32Array(ids.length)
        const lossMask = Uint8Array.from(ids, () => Number(mask.next().value))
        const key = keyed ? { promptKey: `prompt ${p}`, promptLength: first.length } : undefined
        return { place, sample: { ids, lossMask, inferenceLogprobs: zeros, advantages: zeros, ...key } }
      }),
    )
    .toSorted((a, b) => a.place - b.place)
    .map(({ sample }) => sample)

/** The rows that a row sees, in order, as kernels/attention/common.wgsl finds them. */
const seen = ({ info }: PackedBatch, row: number): number[] => {
  const [prefixStart, prefix, own, position] = info.subarray(4 * row, 4 * row + 4)
  return Array.from({ length: position + 1 }, (_, j) => (j < prefix ? prefixStart + j : own + j - prefix))
}

test('rows and entries are those of the sequences by themselves', () => {
  const most = fc.integer({ min: 1, max: 24 })
  const scored = fc.constantFrom('loss' as const, 'all' as const)
  fc.assert(
    fc.property(fc.array(prompt, { maxLength: 5 }), most, fc.boolean(), scored, (prompts, rowsAtMost, shared, which) => {
      const samples = samplesOf(prompts)
      const split = microBatches(samples, rowsAtMost, shared)
      const found: string[] = []
      for (const groups of split) {
        if (!shared) expect(groups.map(({ prefix }) => prefix)).toEqual(groups.map(() => 0))
        const packed = pack(samples, groups, which)
        const sees = Array.from({ length: packed.rows }, (_, row) => seen(packed, row))
        // A row's numbers depend on what the rows that it sees have seen, and they have seen what stands before them, and no more.
        const begins = (rows: number[], other: number, j: number) =>
          sees[other].length === j + 1 && sees[other].every((seenToo, i) => seenToo === rows[i])
        const right = sees.map((rows, row) => rows.at(-1) === row && rows.every((other, j) => begins(rows, other, j)))
        expect(right).not.toContain(false)
        const seers = sees.map((_, row) => sees.flatMap((rows, by) => (rows.includes(row) ? [by] : [])))
        const range = (end: number, row: number) => Array.from({ length: end - row }, (_, i) => row + i)
        expect(seers).toEqual(Array.from(packed.keyEnd, range))
        for (const [i, row] of packed.hiddenRow.entries()) {
          const [{ ids }, at] = [samples[packed.sample[i]], packed.token[i]]
          expect(packed.targets[i]).toBe(ids[at])
          expect(sees[row].map((other) => packed.ids[other])).toEqual([...ids.subarray(0, at)])
          found.push(`${packed.sample[i]} ${at}`)
        }
      }
      const wanted = samples.flatMap(({ ids, lossMask }, s) =>
        Array.from(ids.keys()).flatMap((at) => (at > 0 && (which === 'all' || lossMask[at]) ? [`${s} ${at}`] : [])),
      )
      expect(found.toSorted()).toEqual(wanted.toSorted())
    }),
    { numRuns: 100 },
  )
})

test('no micro-batch is too large that could be split, and none ends while the next sample fits', () => {
  fc.assert(
    fc.property(fc.array(prompt, { maxLength: 5 }), fc.integer({ min: 1, max: 24 }), (prompts, rowsAtMost) => {
      const samples = samplesOf(prompts)
      const split = microBatches(samples, rowsAtMost)
      // Each sample once, in the order of the prompts that they share.
      expect(split.flat().flatMap(({ members }) => members)).toEqual(groupByPrompt(samples).flatMap(({ members }) => members))
      // The rows of a prompt once, however many completions it has; the last token of a completion has none.
      const distinct = new Set(
        samples.flatMap(({ ids, promptKey, promptLength = 0 }, i) =>
          [...ids.keys()].flatMap((at) =>
            at < promptLength ? [`${promptKey} ${at}`] : at + 1 < ids.length ? [`sample ${i} ${at}`] : [],
          ),
        ),
      )
      expect(pack(samples, groupByPrompt(samples), 'loss').rows).toBe(distinct.size)
      const rowsOf = (groups: (typeof split)[number]) => pack(samples, groups, 'loss').rows
      for (const [b, groups] of split.entries()) {
        if (groups.flatMap(({ members }) => members).length > 1) expect(rowsOf(groups)).toBeLessThanOrEqual(rowsAtMost)
        if (b + 1 === split.length) continue
        const next = { ...split[b + 1][0], members: split[b + 1][0].members.slice(0, 1) }
        const last = groups.at(-1)!
        const goesOn = groupByPrompt(samples).some(({ members }) => [last, next].every((g) => members.includes(g.members[0])))
        const joined = goesOn
          ? [...groups.slice(0, -1), { ...last, members: [...last.members, ...next.members] }]
          : [...groups, next]
        expect(rowsOf(joined)).toBeGreaterThan(rowsAtMost)
      }
    }),
    { numRuns: 100 },
  )
})

test('lists by key have every place once, under its own key', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(9), { maxLength: 20 }), (ids) => {
      const places = (id: number) => ids.flatMap((other, i) => (other === id ? [i] : []))
      const listOf = (start: Uint32Array, source: Uint32Array, i: number) => [...source.subarray(start[i], start[i + 1])]
      const byKey = listsByKey(Uint32Array.from(ids), 10)
      for (let key = 0; key < 10; key++) expect(listOf(byKey.start, byKey.source, key)).toEqual(places(key))
      const { tokens, start, source } = listsByToken(Uint32Array.from(ids))
      expect([...tokens]).toEqual([...new Set(ids)].toSorted((a, b) => a - b))
      tokens.forEach((id, i) => expect(listOf(start, source, i)).toEqual(places(id)))
    }),
  )
})
