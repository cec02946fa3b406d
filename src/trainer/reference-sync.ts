/**
 * A reference model that is updated: every `every` steps it takes the policy's weights, as TRL's sync_ref_model with a mixup of 1 (the hard
 * update of TR-DPO, arXiv 2404.09656). A KL term then bounds how far the policy moves within that many steps, and no longer over the whole run.
 *
 * The weights go through a folder of the run, `reference/`: what a resumed run reads there is what this one has. Checkpoints hold the same files.
 */
import { copyFileSync, existsSync, linkSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { pad, type ParameterStore } from '../autograd/parameters.ts'
import { UserError } from '../common/errors.ts'
import { reloadDecoder } from '../model/decoder-reload.ts'
import { projectionsOf, type Decoder } from '../model/decoder.ts'
import { writeFolderWhole } from '../model/files.ts'
import { openModel } from '../model/open.ts'
import { readAdapter } from '../model/peft.ts'
import type { WeightsAbout } from './checkpoint.ts'
import { writeSamplerWeights } from './sampler-weights.ts'

/** Subfolder of the run's folder and of a checkpoint's. */
const FOLDER = 'reference'

interface ReferenceSyncParts {
  policy: Decoder
  /** Made by `loadReference` with `moves`. */
  reference: Decoder
  about: WeightsAbout
  runFolder: string
  /** Steps from one move to the next; 0: it stays where it is. */
  every: number
}

export class ReferenceSync {
  readonly #parts: ReferenceSyncParts
  readonly #path: string
  #moved = false

  constructor(parts: ReferenceSyncParts) {
    this.#parts = parts
    this.#path = join(parts.runFolder, FOLDER)
  }

  /** Whether the reference moves between a step and the next one. A checkpoint of the step has it where it was: who goes on from that moves it again. */
  isDue(step: number): boolean {
    const { every } = this.#parts
    return every > 0 && step > 0 && step % every === 0
  }

  /** Gives the reference the policy's weights as they are now. No step of either may be under way. */
  async follow(): Promise<void> {
    const { policy, about, runFolder } = this.#parts
    // Left by a process that was killed while it wrote.
    for (const name of readdirSync(runFolder))
      if (/^reference\.(partial|old)-\d+$/.test(name)) rmSync(join(runFolder, name), { recursive: true, force: true })
    await writeFolderWhole(this.#path, (aside) => writeSamplerWeights(aside, policy, about), { replace: true })
    await this.#read()
  }

  /** Puts the files of the reference into a checkpoint's folder, unless it is still what the run began with: they take no room of their own where the disk can link. */
  saveTo(checkpoint: string): void {
    if (this.#moved) link(this.#path, join(checkpoint, FOLDER))
  }

  /**
   * Brings the reference to where a checkpoint has it.
   * @throws UserError where this run's reference cannot be moved
   */
  async restore(checkpoint: string): Promise<void> {
    const [{ reference, about }, saved] = [this.#parts, join(checkpoint, FOLDER)]
    rmSync(this.#path, { recursive: true, force: true })
    if (!existsSync(saved)) return
    if (about.lora && !frozenStore(reference)) {
      throw new UserError(
        `The reference model of ${checkpoint} was moved on, and this run keeps none of its own: set trainer.args.ref_model_sync_steps (above max_steps it moves no further).`,
      )
    }
    link(saved, this.#path)
    await this.#read()
  }

  async #read(): Promise<void> {
    const { reference, about } = this.#parts
    if (about.lora) {
      const store = frozenStore(reference)!
      const { tensors } = await readAdapter(this.#path)
      for (const parameter of store.parameters) {
        const [, path, factor] = /^(.*)\.lora_([AB])\.weight$/.exec(parameter.name)!
        store.write(parameter, pad(tensors.get(path)![factor as 'A' | 'B'], parameter))
      }
    } else {
      const files = await openModel(this.#path)
      try {
        await reloadDecoder(reference, files)
      } finally {
        files.close()
      }
    }
    this.#moved = true
  }
}

/** Where a reference holds an adapter of its own. */
const frozenStore = ({ layers }: Decoder): ParameterStore | undefined =>
  layers.flatMap((layer) => projectionsOf(layer).flat()).find(({ lora }) => lora)?.lora?.store

function link(from: string, to: string): void {
  mkdirSync(to)
  for (const name of readdirSync(from)) {
    try {
      linkSync(join(from, name), join(to, name))
    } catch {
      copyFileSync(join(from, name), join(to, name))
    }
  }
}
