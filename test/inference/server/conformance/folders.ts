/** Adapters and weights that the conformance suite's requests name: the same ones in every run, for their answers are kept. */
import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { hashSeed, Random } from '../../../../src/common/random.ts'

import { writeAdapter, type LoraPair } from '../../../../src/model/files/peft.ts'
import { linearShapes } from '../../../../src/model/decoder/shapes.ts'
import type { ModelConfig } from '../../../../src/model/types.ts'
import { tinyPath } from '../helpers.ts'
import type { Folders } from './answers.ts'

/** Writes them below a folder. */
export async function writeFolders(root: string, config: ModelConfig): Promise<Folders> {
  const adapters = join(root, 'adapters')
  for (const [name, rank] of [['style', 8], ['other', 8], ['wide', 16]] as const) await writeRandom(adapters, name, rank, config) // prettier-ignore
  const weights = join(root, 'weights')
  cpSync(tinyPath, weights, { recursive: true })
  reverseNorm(join(weights, 'model.safetensors'))
  return { adapters, weights }
}

/** A random adapter, strong enough to change what is said. */
async function writeRandom(folder: string, name: string, rank: number, model: ModelConfig): Promise<void> {
  const tensors = new Map<string, LoraPair>()
  const targetModules = ['q_proj', 'v_proj']
  for (const [path, [outputs, inputs]] of linearShapes(model)) {
    if (!targetModules.some((module) => path.includes(module))) continue
    const random = new Random(hashSeed(rank, name + path))
    const values = (n: number) => Float32Array.from({ length: n }, () => 0.3 * random.normal())
    tensors.set(path, { A: values(rank * inputs), B: values(outputs * rank), r: rank })
  }
  await writeAdapter(join(folder, name), { config: { r: rank, loraAlpha: rank, loraDropout: 0, targetModules, useRslora: false, baseModel: 'tiny' }, tensors }) // prettier-ignore
}

/** The last norm's weights (bf16) in the other order: a file of the same size, and another model. */
function reverseNorm(file: string): void {
  const bytes = readFileSync(file)
  const head = Number(bytes.readBigUInt64LE(0))
  const tensors = JSON.parse(bytes.subarray(8, 8 + head).toString()) as Record<string, { dtype: string; data_offsets: number[] }>
  const { dtype, data_offsets: [begin, end] } = tensors['model.norm.weight'] // prettier-ignore
  if (dtype !== 'BF16') throw new Error(`model.norm.weight is ${dtype}`)
  const norm = bytes.subarray(8 + head + begin, 8 + head + end)
  norm.set(Buffer.from(norm).swap16().reverse())
  writeFileSync(file, bytes)
}
