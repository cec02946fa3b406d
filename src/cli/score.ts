/** `score`: the log-probability and entropy of every token of a batch. */
import type { Command } from 'commander'
import { reporter, withDecoder, withModelAndBatch, type ModelBatchOptions } from './model-batch.ts'
import { unwritten } from './out-file.ts'

/** Adds the verb to the program. */
export function register(program: Command): void {
  withModelAndBatch(program.command('score'))
    .description("Write each token's log-probability and entropy: tensors logprobs and entropy, the sequences one after another.")
    .action(score)
}

async function score(options: ModelBatchOptions): Promise<void> {
  const { microBatches } = await import('../model/decoder/packed.ts')
  const { scoreSamples } = await import('../trainer/gradients.ts')
  const { writeSafetensors } = await import('../model/files/safetensors.ts')
  await withDecoder(options, false, async ({ decoder, samples }) => {
    const start = performance.now()
    const tokens = samples.reduce((sum, s) => sum + s.ids.length, 0)
    const [logprobs, entropy] = [new Float32Array(tokens), new Float32Array(tokens)]
    const { temperature, microBatchTokens } = options
    const report = reporter('scoring')
    let at = 0
    // One micro-batch for each call, so that progress can be shown in between. Without prompt keys, they hold the samples in order.
    for (const groups of microBatches(samples, microBatchTokens)) {
      const part = groups.flatMap((group) => group.members.map((i) => samples[i]))
      for (const result of await scoreSamples(decoder, part, { temperature, microBatchTokens })) {
        logprobs.set(result.logprobs, at)
        entropy.set(result.entropy, at)
        at += result.logprobs.length
      }
      report(at / tokens)
    }
    await writeSafetensors(options.out, {
      logprobs: { dtype: 'F32', shape: [tokens], data: logprobs },
      entropy: { dtype: 'F32', shape: [tokens], data: entropy },
    }).catch(unwritten(`--out ${options.out}`))
    const scored = tokens - samples.length
    const mean = (values: Float32Array) => (scored === 0 ? 0 : values.reduce((a, b) => a + b, 0) / scored).toFixed(4)
    const seconds = ((performance.now() - start) / 1000).toFixed(1)
    console.log(
      `${options.out}: ${samples.length} sequences, ${scored} scored tokens, mean logprob ${mean(logprobs)}, mean entropy ${mean(entropy)} (${seconds} s)`,
    )
  })
}
