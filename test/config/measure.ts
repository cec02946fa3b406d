/** Runs a step of generation and one of training at the full size that a config allows, as `train` would, and reports the memory that it took. */
import { checkpointingOf } from '../../src/cli/trainer-options.ts'
import { hashSeed, Random } from '../../src/common/random.ts'
import { neutralSampling } from '../../src/common/sampling.ts'
import type { TrainingSample } from '../../src/common/types.ts'
import type { RunConfig } from '../../src/config/schema.ts'
import { Engine } from '../../src/inference/engine.ts'
import { loadDecoder, type ModelTensors } from '../../src/model/decoder/load.ts'
import { adapterModules } from '../../src/model/decoder/shapes.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { newFolder } from '../folders.ts'
import { freshGpu } from '../gpu/fresh.ts'
import { idleKernels } from '../gpu/idle-kernels.ts'

export interface Measured {
  /** Before the first step. */
  resident: number
  /** Bytes held at once, at most. */
  peak: number
  /** Bytes that the device holds for us, free buffers of the pool included. */
  reserved: number
}

/**
 * @param idle whether kernels do nothing (idle-kernels.ts): the same memory, and neither compiling nor computing
 * @param promptTokens of each prompt; fewer save time where a model is large, as long as a step of the engine gets its 256 rows
 */
export async function measureRun(
  files: ModelTensors,
  config: RunConfig,
  { idle = false, promptTokens = config.trainer.args.max_seq_len - 2 } = {},
): Promise<Measured> {
  const { args } = config.trainer
  const gpu = await freshGpu()
  const computeAgain = idle ? idleKernels(gpu.device) : undefined
  try {
    const lora = {
      rank: args.lora_rank,
      alpha: args.lora_alpha,
      dropout: args.lora_dropout,
      targetModules: adapterModules(files.config, args.lora_target_modules),
      seed: 1,
    }
    const decoder = await loadDecoder(gpu, files, {
      round: args.bf16,
      quantization: args.quantization,
      ...(args.use_lora ? { lora } : { full: true }),
    })
    const engine = new Engine(decoder, {
      maxSequences: config.inference.max_num_seqs,
      maxLength: args.max_seq_len,
      eosTokenIds: [],
      decode: () => '',
    })
    const trainer = new Trainer(decoder, {
      loss: await loadLoss('cispo', args),
      temperature: 1,
      microBatchTokens: args.micro_batch_tokens,
      checkpointing: checkpointingOf(args),
      optimizer: {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weightDecay: 0,
        maxGradNorm: 1,
        moments: args.optim === 'adamw_8bit' ? '8bit' : 'float32',
      },
      schedule: { type: 'constant', learningRate: 1e-4, warmupSteps: 0, maxSteps: 10 },
      seed: 1,
      // A step of kernels that do nothing has no norm, and is noted there as one that is not finite.
      runFolder: newFolder('measured'),
    })
    const resident = gpu.pool.bytesInUse
    const { vocabSize } = files.config
    const tokens = (name: string, count: number) => {
      const random = new Random(hashSeed(name))
      return Array.from({ length: count }, () => random.int(vocabSize))
    }
    const sampling = { ...neutralSampling, max_tokens: 2, seed: 1 }
    const ask = (i: number) => engine.generate({ promptIds: tokens(`prompt ${i}`, promptTokens), sampling })
    await Promise.all(Array.from({ length: config.inference.max_num_seqs }, (_, i) => ask(i)))
    const samples = Array.from({ length: Math.floor(args.micro_batch_tokens / args.max_seq_len) }, (_, i): TrainingSample => {
      const lossMask = new Uint8Array(args.max_seq_len).fill(1)
      lossMask[0] = 0
      return {
        ids: Int32Array.from(tokens(`sample ${i}`, args.max_seq_len)),
        lossMask,
        inferenceLogprobs: new Float32Array(args.max_seq_len).fill(-1),
        advantages: new Float32Array(args.max_seq_len).fill(i % 2 ? 1 : -1),
      }
    })
    await trainer.trainStep({ step: 1, samples, lossTokenCount: samples.length * (args.max_seq_len - 1) })
    const measured = { resident, peak: gpu.pool.peakBytes, reserved: gpu.pool.bytesReserved }
    await engine.close()
    return measured
  } finally {
    computeAgain?.()
    gpu.close()
  }
}
