/**
 * How much memory an adapter has for a run. WebGPU does not tell, so the system is asked: free system memory for a software adapter,
 * the driver's tool or files for NVIDIA and AMD, two thirds of the shared memory of an Apple chip.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { totalmem } from 'node:os'
import { join } from 'node:path'
import { UserError } from '../common/errors.ts'
import type { Loaded, Resume } from '../config/load.ts'
import { keepMicroBatch, keptMicroBatch, sizeMicroBatch, type Room } from '../config/micro-batch.ts'
import type { MemoryLimits, SizedModel } from '../config/memory.ts'
import type { RunConfig } from '../config/schema.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { isOutOfMemory } from '../gpu/errors.ts'
import type { Gpu } from '../gpu/gpu.ts'

const GIB = 2 ** 30

/** The names by which an adapter is looked up. */
interface AdapterWords {
  /** The driver's name and version. */
  name: string
  /** The GPU's name in WebGPU's spelling: lower case with hyphens. */
  device: string
  vendor: string
  software: boolean
}

/**
 * A loaded config in which `micro_batch_tokens = "auto"` is replaced by a number, and one line that says which and why. A config with a number
 * stays as it is; a resumed run keeps its number.
 * @throws UserError where nothing fits, or nobody knows how much memory there is
 */
export function withMicroBatch<Config extends RunConfig | SftConfig>(
  loaded: Loaded<Config>,
  model: SizedModel,
  adapter: AdapterWords & { limits: MemoryLimits },
): { config: Config; line?: string } {
  const { config } = loaded
  if (!loaded.autoMicroBatch) return { config }
  const given = config.trainer.args.gpu_memory
  const room = given === undefined ? roomOf(adapter) : { bytes: given * GIB, from: 'trainer.args.gpu_memory' }
  const kept = loaded.resume && keptMicroBatch(folderToResume(loaded, loaded.resume), config.trainer.args)
  if (kept !== undefined) return keepMicroBatch(config, model, kept, room, adapter.limits)
  if (room) return sizeMicroBatch(config, model, room, adapter.limits)
  throw new UserError(
    `trainer.args.micro_batch_tokens is "auto", but this machine does not report how much memory ${adapter.name} has. Set trainer.args.gpu_memory to the GiB that the run may use, or micro_batch_tokens to a number.`,
  )
}

const folderToResume = ({ config }: Loaded<RunConfig | SftConfig>, resume: Resume): string =>
  resume.kind === 'dir' ? resume.dir : join(config.trainer.args.output_dir, config.trainer.args.run_name)

/** The same for an open device, with its limits. */
export function adapterWords({ facts, device: opened }: Gpu): AdapterWords & { limits: MemoryLimits } {
  const { name, vendor, software, limits } = facts
  const { device } = opened.adapterInfo
  return {
    name,
    device,
    vendor,
    software,
    limits: { maxStorageBufferBindingSize: limits.maxBinding, maxBufferSize: limits.maxBuffer, software },
  }
}

/** Limits the buffers on the device to `gib`; undefined: no limit but the device's own. */
export function limitMemory(gpu: Gpu, gib: number | undefined): void {
  if (gib !== undefined) gpu.pool.limitBytes = gib * GIB
}

/** An error from opening a run; out of memory becomes a sentence that says what to lower. */
export function tellMemory(error: unknown): unknown {
  if (!isOutOfMemory(error)) return error
  return new UserError(
    `The run does not fit into memory, even before its first step: ${error.message}. Lower inference.max_num_seqs (or kv_cache_bytes), trainer.args.max_seq_len or lora_rank, take a smaller model, or raise gpu_memory where that is the limit; --dry-run lists what takes the memory.`,
  )
}

/** The memory that is free for a run on an adapter; undefined where the system does not tell. */
export function roomOf(adapter: AdapterWords): Room | undefined {
  if (adapter.software) return { bytes: process.availableMemory(), from: 'free memory of the system' }
  const words = `${adapter.vendor} ${adapter.name}`.toLowerCase()
  if (words.includes('nvidia')) {
    const { status, stdout } = spawnSync('nvidia-smi', ['--query-gpu=name,memory.free', '--format=csv,noheader,nounits'], { encoding: 'utf8', timeout: 20_000 }) // prettier-ignore
    return status === 0 ? nvidiaRoom(stdout, adapter.device) : undefined
  }
  if (words.includes('apple')) return { bytes: (totalmem() * 2) / 3, from: 'two thirds of the memory of the system' }
  return /\bamd\b|radeon/.test(words) ? amdRoom('/sys/class/drm') : undefined
}

/** From nvidia-smi's lines "name, free MiB"; of several GPUs with this name, the one with the least. */
export function nvidiaRoom(lines: string, device: string): Room | undefined {
  const all = lines.split('\n').flatMap((line) => {
    const [, gpu, free] = /^(.+),\s*(\d+)\s*$/.exec(line) ?? []
    return gpu === undefined ? [] : [{ gpu: gpu.replaceAll(/[^a-z0-9]+/gi, '-').toLowerCase(), bytes: Number(free) * 2 ** 20 }]
  })
  const named = all.filter(({ gpu }) => gpu === device)
  const some = named.length > 0 ? named : all
  return some.length > 0 ? { bytes: Math.min(...some.map(({ bytes }) => bytes)), from: 'nvidia-smi' } : undefined
}

/** From the files of Linux's amdgpu driver; of several cards, the one with the least free. */
export function amdRoom(folder: string): Room | undefined {
  if (!existsSync(folder)) return undefined
  const free = readdirSync(folder).flatMap((card) => {
    const file = (what: string) => join(folder, card, 'device', `mem_info_vram_${what}`)
    if (!/^card\d+$/.test(card) || !existsSync(file('total')) || !existsSync(file('used'))) return []
    return [Number(readFileSync(file('total'), 'utf8')) - Number(readFileSync(file('used'), 'utf8'))]
  })
  return free.length > 0 ? { bytes: Math.min(...free), from: 'the amdgpu driver' } : undefined
}
