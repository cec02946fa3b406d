/** Generation with the engine, as in a run. */
import { Engine } from '../../src/inference/engine.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { sampling, secondsOf, type Bench } from './ours-shared.ts'

/** An engine without an end of sequence, so that both sides make the same number of tokens. */
export const engineOf = (decoder: Decoder, maxSequences: number, maxLength: number): Engine =>
  new Engine(decoder, { maxSequences, full: true, prefixCaching: false, maxLength, eosTokenIds: [], decode: () => '' })

export async function greedy(engine: Engine, prompts: number[][], tokens: number): Promise<number[][]> {
  const params = sampling({ temperature: 0, max_tokens: tokens })
  const all = await Promise.all(prompts.map((promptIds) => engine.generate({ promptIds, sampling: params })))
  return all.map(({ ids }) => ids)
}

export async function generate({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true })
  for (const batch of job.batches) {
    const prompts = job.windows.slice(0, batch)
    const engine = engineOf(decoder, batch, prompts[0].length + job.tokens)
    let answers: number[][] = []
    await greedy(engine, prompts, 4)
    const seconds = await secondsOf(async () => (answers = await greedy(engine, prompts, job.tokens)), job.repeats, 0)
    await engine.close()
    report({ name: `generate ${batch}`, value: (batch * job.tokens) / seconds, answers })
  }
}
