/** PEFT folders with random adapters, for models of any shape, in a folder that goes with the tests. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import { hashSeed, Random } from '../../src/common/random.ts'
import { writeAdapter, type LoraPair } from '../../src/model/files/peft.ts'
import { adapterModules, LINEAR_MODULES, linearShapes } from '../../src/model/decoder/shapes.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { seed } from '../seed.ts'

export interface AdapterShape {
  rank?: number
  alpha?: number
  modules?: readonly string[]
  /** Put in place of one value. */
  spoil?: number
}

const root = mkdtempSync(join(tmpdir(), 'dawn-rl-adapters-'))
afterAll(() => rmSync(root, { recursive: true, force: true }))

/** Writes an adapter whose effect is about as large as the layers' own; the same name gives the same values in a run. */
export async function randomAdapter(config: ModelConfig, name: string, shape: AdapterShape = {}): Promise<string> {
  const { rank = 8, alpha = 16, modules = adapterModules(config, LINEAR_MODULES), spoil } = shape
  const random = new Random(hashSeed(seed, name))
  const normals = (count: number, scale: number) => Float32Array.from({ length: count }, () => random.normal() * scale)
  const tensors = new Map<string, LoraPair>()
  for (const [path, [outputs, inputs]] of linearShapes(config)) {
    if (!modules.includes(path.slice(path.lastIndexOf('.') + 1))) continue
    tensors.set(path, { A: normals(rank * inputs, inputs ** -0.5), B: normals(outputs * rank, 0.05), r: rank })
  }
  if (spoil !== undefined) [...tensors.values()][0].B[3] = spoil
  const dir = join(root, name)
  const written = { r: rank, loraAlpha: alpha, loraDropout: 0, targetModules: [...modules], useRslora: false, baseModel: null }
  await writeAdapter(dir, { config: written, tensors }, { replace: true })
  return dir
}
