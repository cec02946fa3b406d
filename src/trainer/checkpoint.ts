/**
 * Checkpoints hold everything that the rest of a run depends on, so that a resumed run gives the numbers of an uninterrupted one.
 *
 *   checkpoints/step_N/
 *     adapter_model.safetensors, adapter_config.json   the adapter in PEFT's format; in full training a Hugging Face model folder
 *     optimizer.safetensors                            both moments of each parameter: float32, or 8-bit codes with their scales (`.absmax`);
 *                                                      in full training also its float32 value
 *     state.json                                       step, counters, and what the caller adds (its position in the data)
 *     reference/                                       the weights of a reference model that was updated (reference-sync.ts)
 *     crc32.json                                       a checksum of each of these files (checkpoint-sums.ts)
 *     STABLE                                           written last: the files and their sizes
 *
 * A folder is written under a temporary name, synced and renamed. It does not count as a checkpoint if STABLE is missing, or if a file has another
 * size or does not begin as its format must. Before a checkpoint is loaded, its files are read completely and their checksums compared.
 */
import { closeSync, openSync, readdirSync, readFileSync, readSync, statSync } from 'node:fs'
import { basename, join } from 'node:path'
import { messageOf, UserError } from '../common/errors.ts'
import { stepFolders } from '../common/folders.ts'
import { matrixDtypes, readLora, refreshWeights } from '../model/decoder/trained.ts'
import { pad } from '../autograd/parameters.ts'
import { writeModelFiles, type TensorMaker } from '../model/files/export.ts'
import { jsonText, writeFolderWhole, writeWhole } from '../model/files/files.ts'
import { readAdapter, scaleOf, writeAdapterFiles, type LoraConfig } from '../model/files/peft.ts'
import { openSafetensors, writeSafetensors, type SafetensorsSource, type TensorToWrite } from '../model/files/safetensors.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { Uploads } from '../model/decoder/uploads.ts'
import { BLOCK, type Codes } from '../kernels/optimizer/codes.ts'
import {
  clearLeftovers,
  clearSuperseded,
  pointAtBest,
  removeFolder,
  stepsToDelete,
  type Best,
  type KeepRules,
} from './checkpoint-keep.ts'
import { changedBecause, readTable, writeSums } from './checkpoint-sums.ts'
import { MOMENTS, type MomentData } from './optimizer.ts'
import type { Trainer } from './trainer.ts'

/** Format 2 added `best`, and the caller's `tasks_done`. Format 1 can be read as it is. */
const FORMAT = 2
const MARKER = 'STABLE'

/** The configs that a folder of weights contains besides the weights. */
export interface WeightsAbout {
  /** The adapter's config; absent in full training. */
  lora?: LoraConfig
  /** The model's config.json and generation_config.json, for full training. */
  rawConfig: Record<string, unknown>
  rawGenerationConfig?: Record<string, unknown> | null
  /** The dtype of a tensor in the model's files (such as "F32"), if they specify one. */
  dtypeOf?: (name: string) => string | undefined
  tokenizer?: Tokenizer | null
}

/** The contents of state.json. */
export interface CheckpointState {
  format: number
  step: number
  /** The model's name, for the error message if another model is to be resumed. */
  model: string
  trains: 'adapter' | 'all weights'
  optimizer_steps: number
  bad_steps: number
  /** The best step up to this one, if the run keeps the best checkpoint. */
  best?: Best
  /** The caller's own state: its position in the data, which also determines its random draws. */
  extra: Record<string, unknown>
}

/**
 * Writes what is trained into an existing folder: a PEFT adapter, or the whole model.
 * @param dtype for all tensors. Default: for matrices the dtype in which they run; other tensors stay float32 if they were so in the model's files
 *   (A_log of Qwen3.5)
 */
export async function writeWeights(dir: string, decoder: Decoder, about: WeightsAbout, dtype?: 'bf16'): Promise<void> {
  const { lora, tokenizer } = about
  if (lora) {
    await writeAdapterFiles(dir, { config: lora, tensors: await readLora(decoder), tokenizer })
    return
  }
  const matrices = matrixDtypes(decoder)
  const others = [...matrices.values()].includes('f32') ? 'f32' : 'bf16'
  const asItCame = (name: string) => (about.dtypeOf?.(name) === 'F32' ? 'f32' : others)
  const tensors = weightTensors(decoder, (name) => dtype ?? matrices.get(name) ?? asItCame(name))
  await writeModelFiles(dir, { ...about, tensors })
}

/** All weights of full training, in the dtype that `dtypeOf` gives for a name. Each is read from the GPU only when it is written. */
export function weightTensors({ store }: Decoder, dtypeOf: (name: string) => TensorMaker['dtype']): TensorMaker[] {
  return store!.parameters.map((parameter) => ({
    name: parameter.name,
    dtype: dtypeOf(parameter.name),
    shape: parameter.shape,
    read: async () => ({ dtype: 'f32', shape: parameter.shape, data: await store!.read(parameter) }),
  }))
}

/**
 * Writes `<root>/step_N/` for the trainer's current step, points `best` to the best step, and deletes complete checkpoints that no rule keeps.
 * @returns the path of the folder
 */
export async function saveCheckpoint(
  root: string,
  trainer: Trainer,
  about: WeightsAbout,
  options: {
    keep: KeepRules
    best?: Best
    extra?: Record<string, unknown>
    /** Adds more files to the folder before it is complete. */
    fill?: (aside: string) => Promise<void> | void
  },
): Promise<string> {
  const { decoder, optimizer, step } = trainer
  const dir = join(root, `step_${step}`)
  clearLeftovers(root)
  const state: CheckpointState = {
    format: FORMAT,
    step,
    model: decoder.name,
    trains: about.lora ? 'adapter' : 'all weights',
    optimizer_steps: optimizer.steps,
    bad_steps: trainer.badSteps,
    ...(options.best && { best: options.best }),
    extra: options.extra ?? {},
  }
  const fill = async (aside: string) => {
    await writeWeights(aside, decoder, about)
    const tensors = optimizerTensors(trainer, !about.lora)
    await writeSafetensors(join(aside, 'optimizer.safetensors'), tensors, { format: 'pt' })
    await writeWhole(join(aside, 'state.json'), [jsonText(state)])
    await options.fill?.(aside)
    await writeSums(aside, Object.keys(sizesIn(aside)))
    await writeWhole(join(aside, MARKER), [jsonText(sizesIn(aside))])
  }
  await writeFolderWhole(dir, fill, { replace: true })
  tidyCheckpoints(root, options.keep, options.best)
  return dir
}

function sizesIn(dir: string): Record<string, number> {
  const there = readdirSync(dir, { recursive: true, encoding: 'utf8' }).map((name) => ({ name, stat: statSync(join(dir, name)) }))
  return Object.fromEntries(there.flatMap(({ name, stat }) => (stat.isFile() ? [[name, stat.size]] : [])))
}

/**
 * Points `best` to the best step, and deletes complete checkpoints that no rule keeps, those that were set aside and saved again, and leftovers of a
 * process that was killed while saving. Called after each save, and when a run resumes, as the last one may have been killed in the middle of this.
 */
export function tidyCheckpoints(root: string, rules: KeepRules, best: Best | undefined): void {
  clearLeftovers(root)
  pointAtBest(root, best)
  const whole = wholeSteps(root)
  for (const step of stepsToDelete(whole, rules, best)) removeFolder(join(root, `step_${step}`))
  clearSuperseded(root, whole.at(-1) ?? -1)
}

/** Each parameter's moments, and its float32 value if the folder of weights contains a rounded one. Read from the GPU only when written. */
function optimizerTensors({ decoder, optimizer }: Trainer, withValues: boolean): Map<string, TensorToWrite> {
  const tensors = new Map<string, TensorToWrite>()
  const store = decoder.store!
  for (const parameter of store.parameters) {
    const { name, shape } = parameter
    for (const moment of MOMENTS) {
      const read = () => optimizer.read(parameter, moment)
      if (optimizer.is8bit(parameter)) {
        const blocks = [Math.ceil((parameter.rows * parameter.columns) / BLOCK)]
        tensors.set(`${name}.${moment}`, { dtype: 'U8', shape, data: async () => ((await read()) as Codes).codes })
        tensors.set(`${name}.${moment}.absmax`, {
          dtype: 'F32',
          shape: blocks,
          data: async () => ((await read()) as Codes).scales,
        })
      } else tensors.set(`${name}.${moment}`, { dtype: 'F32', shape, data: async () => (await read()) as Float32Array })
    }
    if (withValues) tensors.set(`${name}.master`, { dtype: 'F32', shape, data: () => store.read(parameter) })
  }
  return tensors
}

/** Reads a moment in the format that the file has. */
async function readMoment(source: SafetensorsSource, name: string): Promise<MomentData> {
  if (!source.has(`${name}.absmax`)) return (await source.readFloat32(name)).data
  const [codes, scales] = [await source.readRaw(name), await source.readFloat32(`${name}.absmax`)]
  return { codes: codes.data as Uint8Array, scales: scales.data }
}

/**
 * Restores a trainer from a checkpoint: weights, moments, step. If `optim` has changed, float32 moments are converted to 8-bit codes or back.
 * @param intact whether its checksums were verified already
 * @throws UserError if the folder is no complete checkpoint, or one of another model, rank or kind of training
 */
export async function loadCheckpoint(
  dir: string,
  trainer: Trainer,
  about: WeightsAbout,
  intact = false,
): Promise<CheckpointState> {
  const why = intact ? brokenBecause(dir) : await damagedBecause(dir)
  if (why) throw new UserError(`${dir} is not a complete checkpoint: ${why}. Resume from another one.`)
  const state = JSON.parse(readFileSync(join(dir, 'state.json'), 'utf8')) as CheckpointState
  const { decoder, optimizer } = trainer
  const trains = about.lora ? 'adapter' : 'all weights'
  const refuse: Refuse = (what, key) =>
    new UserError(`The checkpoint ${dir} ${what}. Set ${key} to what it was in the run that wrote the checkpoint.`)
  if (!(state.format >= 1 && state.format <= FORMAT))
    throw new UserError(
      `The checkpoint ${dir} has format ${state.format}, but this version of dawn-rl reads 1 to ${FORMAT}. Use the version that wrote it.`,
    )
  if (state.trains !== trains) throw refuse(`trains ${state.trains}, but this run trains ${trains}`, 'trainer.args.use_lora')
  if (baseName(state.model) !== baseName(decoder.name))
    throw refuse(`is of the model ${state.model}, not of ${decoder.name}`, 'model')
  const [modules, sizes] = about.lora ? ['trainer.args.lora_target_modules', 'trainer.args.lora_rank'] : ['model', 'model']
  const values = about.lora ? await adapterValues(dir, about.lora, refuse) : undefined
  const source = await openSafetensors(join(dir, 'optimizer.safetensors'))
  try {
    const store = decoder.store!
    // Compare everything before writing anything.
    for (const { name, shape } of store.parameters) {
      if (!source.has(`${name}.exp_avg`)) throw refuse(`does not train ${name}, but this run does`, modules)
      const found = source.shape(`${name}.exp_avg`)
      if (found.join() !== shape.join())
        throw refuse(`has ${name} in the shape [${found.join(', ')}], but this run has it in [${shape.join(', ')}]`, sizes)
    }
    const count = source.names().filter((name) => name.endsWith('.exp_avg')).length
    if (count !== store.parameters.length)
      throw refuse(`trains ${count} tensors, but this run trains ${store.parameters.length}`, modules)
    const uploads = new Uploads(store.gpu)
    for (const parameter of store.parameters) {
      const { name } = parameter
      await uploads.room()
      const value = values?.get(name) ?? (await source.readFloat32(`${name}.master`)).data
      store.write(parameter, pad(value, parameter))
      const [exp_avg, exp_avg_sq] = [await readMoment(source, `${name}.exp_avg`), await readMoment(source, `${name}.exp_avg_sq`)]
      optimizer.write(parameter, { exp_avg, exp_avg_sq })
      uploads.add(3 * value.byteLength)
    }
    await uploads.done()
  } finally {
    source.close()
  }
  refreshWeights(decoder)
  decoder.gpu.flush()
  optimizer.steps = state.optimizer_steps
  trainer.step = state.step
  trainer.badSteps = state.bad_steps
  return state
}

/** Makes the error for a checkpoint from how it differs, and the config key to set. */
type Refuse = (what: string, key: string) => UserError

/** The adapter's factors, under the parameters' names. */
async function adapterValues(dir: string, lora: LoraConfig, refuse: Refuse): Promise<Map<string, Float32Array>> {
  const { config, tensors } = await readAdapter(dir)
  if (config.useRslora !== lora.useRslora)
    throw refuse(
      `has use_rslora ${config.useRslora}, but this run has ${lora.useRslora}, from the adapter that it starts from`,
      'model.adapter',
    )
  if (config.loraAlpha !== lora.loraAlpha)
    throw refuse(`has lora_alpha ${config.loraAlpha}, but this run has ${lora.loraAlpha}`, 'trainer.args.lora_alpha')
  const values = new Map<string, Float32Array>()
  for (const [path, { A, B, r, scale }] of tensors) {
    const here = scaleOf(lora, path, r)
    if (here !== scale)
      throw refuse(
        `multiplies ${path} by ${scale}, but this run multiplies it by ${here}, set by alpha_pattern of the adapter that it starts from`,
        'model.adapter',
      )
    values.set(`${path}.lora_A.weight`, A).set(`${path}.lora_B.weight`, B)
  }
  return values
}

const baseName = (name: string) => (name.split(/[\\/]/).at(-1) ?? name).toLowerCase()

export interface Newest {
  newest?: { dir: string; step: number }
  /** Newer folders that do not count, and why. */
  broken: string[]
}

/** Finds the newest complete checkpoint of a run among the steps before `end`. */
export function newestCheckpoint(root: string, end = Infinity): Newest {
  const broken: string[] = []
  const before = stepFolders(root).filter((step) => step < end)
  for (const step of before.toReversed()) {
    const dir = join(root, `step_${step}`)
    const why = brokenBecause(dir)
    if (!why) return { newest: { dir, step }, broken }
    broken.push(`${dir}: ${why}`)
  }
  return { broken }
}

/** Finds the newest complete checkpoint whose checksums match. */
export async function newestIntact(root: string): Promise<Newest> {
  const broken: string[] = []
  for (let end = Infinity; ;) {
    const { newest, broken: more } = newestCheckpoint(root, end)
    broken.push(...more)
    const why = newest && (await changedBecause(newest.dir))
    if (!why) return { newest, broken }
    broken.push(`${newest.dir}: ${why}`)
    end = newest.step
  }
}

/** Why a folder is no complete checkpoint; undefined if it is one. */
export function brokenBecause(dir: string): string | undefined {
  let sizes: Record<string, number>
  try {
    sizes = readTable<number>(join(dir, MARKER))
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ENOENT'
      ? `it has no ${MARKER} file`
      : `its ${MARKER} cannot be read (${messageOf(error)})`
  }
  for (const [name, size] of Object.entries(sizes)) {
    const found = statSync(join(dir, name), { throwIfNoEntry: false })
    if (found?.size !== size) return found ? `${name} has ${found.size} bytes instead of ${size}` : `${name} is missing`
    if (!beginsWell(join(dir, name))) return `${name} has the right size but the wrong content`
  }
  return undefined
}

/** Why a checkpoint cannot be loaded: `brokenBecause`, or a checksum that differs. Reads all files. Undefined if it can. */
export async function damagedBecause(dir: string): Promise<string | undefined> {
  return brokenBecause(dir) ?? (await changedBecause(dir))
}

/**
 * Whether a file begins as JSON or safetensors must. A damaged disk may return a file of the right size filled with zeros or another file's bytes.
 */
function beginsWell(file: string): boolean {
  const tensors = file.endsWith('.safetensors')
  if (!tensors && !['state.json', 'adapter_config.json'].includes(basename(file))) return true
  const fd = openSync(file, 'r')
  try {
    const byte = Buffer.alloc(1)
    readSync(fd, byte, 0, 1, tensors ? 8 : 0)
    return byte.toString() === '{'
  } finally {
    closeSync(fd)
  }
}

const wholeSteps = (root: string) => stepFolders(root).filter((step) => !brokenBecause(join(root, `step_${step}`)))
