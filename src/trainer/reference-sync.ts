/**
 * A reference model that is updated: every `every` steps it takes over the policy's weights, as with TRL's sync_ref_model and a mixup of 1 (the hard
 * update of TR-DPO, arXiv 2404.09656). The KL term then limits how far the policy moves within that many steps, not over the whole run.
 *
 * The weights go through files in the run folder, `reference/`, so that a resumed run reads exactly what this one has. Checkpoints contain them too.
 */
import { copyFileSync, existsSync, linkSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { pad, type ParameterStore } from '../autograd/parameters.ts'
import { UserError } from '../common/errors.ts'
import { syncFolder } from '../common/folders.ts'
import { reloadDecoder } from '../model/decoder/reload.ts'
import { projectionsOf, type Decoder } from '../model/decoder/decoder.ts'
import { writeFolderWhole } from '../model/files/files.ts'
import { openModel } from '../model/files/open.ts'
import { readAdapter } from '../model/files/peft.ts'
import { settleFile } from '../monitor/files.ts'
import type { WeightsAbout } from './checkpoint.ts'
import { writeSamplerWeights } from './sampler-weights.ts'

/** Subfolder of the run folder and of a checkpoint. */
const FOLDER = 'reference'

interface ReferenceSyncParts {
  policy: Decoder
  /** Made by `loadReference` with `moves`. */
  reference: Decoder
  about: WeightsAbout
  runFolder: string
  /** Steps between two updates of the reference; 0: it is never updated. */
  every: number
}

/** Updates, saves and restores a reference model. */
export class ReferenceSync {
  readonly #parts: ReferenceSyncParts
  readonly #path: string
  #moved = false

  constructor(parts: ReferenceSyncParts) {
    this.#parts = parts
    this.#path = join(parts.runFolder, FOLDER)
  }

  /** Whether the reference is updated after `step`. The checkpoint of `step` holds it before that update, which a resumed run makes first. */
  isDue(step: number): boolean {
    const { every } = this.#parts
    return every > 0 && step > 0 && step % every === 0
  }

  /** Gives the reference the policy's current weights. No step of either may be in progress. */
  async follow(): Promise<void> {
    const { policy, about, runFolder } = this.#parts
    // Left by a process that was killed while writing.
    for (const name of readdirSync(runFolder))
      if (/^reference\.(partial|old)-\d+$/.test(name)) rmSync(join(runFolder, name), { recursive: true, force: true })
    await writeFolderWhole(this.#path, (aside) => writeSamplerWeights(aside, policy, about), { replace: true })
    await this.#read()
  }

  /**
   * Adds the reference's files to a checkpoint folder, unless the reference was never updated. They are hard links where the disk supports them.
   * Resolves when they are on disk.
   */
  async saveTo(checkpoint: string): Promise<void> {
    if (!this.#moved) return
    const to = join(checkpoint, FOLDER)
    for (const copied of link(this.#path, to)) await settleFile(copied)
    await syncFolder(to)
  }

  /**
   * Restores the reference from a checkpoint.
   * @throws UserError if this run's reference cannot be updated
   */
  async restore(checkpoint: string): Promise<void> {
    const [{ reference, about }, saved] = [this.#parts, join(checkpoint, FOLDER)]
    rmSync(this.#path, { recursive: true, force: true })
    if (!existsSync(saved)) return
    if (about.lora && !frozenStore(reference)) {
      throw new UserError(
        `The reference model of ${checkpoint} was updated during training, but this run does not update its own: set trainer.args.ref_model_sync_steps (above max_steps, the reference model stays as it is).`,
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

/** The store of the reference's own adapter, if it has one. */
const frozenStore = ({ layers }: Decoder): ParameterStore | undefined =>
  layers.flatMap((layer) => projectionsOf(layer).flat()).find(({ lora }) => lora)?.lora?.store

/** Fills a new folder with hard links to the files of another, or copies. @returns the paths of the copies */
function link(from: string, to: string): string[] {
  mkdirSync(to)
  return readdirSync(from).flatMap((name) => {
    try {
      linkSync(join(from, name), join(to, name))
      return []
    } catch {
      copyFileSync(join(from, name), join(to, name))
      return [join(to, name)]
    }
  })
}
