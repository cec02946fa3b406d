/** Opens the folder of a run of `train` or `sft`, and checks that the disk has room for it. */
import { basename, dirname, resolve } from 'node:path'
import { whenThereIsRoom } from '../common/faults.ts'
import { diskLine, folderBytes } from '../config/disk.ts'
import type { Loaded, Resume } from '../config/load.ts'
import type { RunConfig } from '../config/schema.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { stringifyConfig } from '../config/toml-write.ts'
import type { ModelConfig } from '../model/types.ts'
import type { RunConsole } from '../monitor/terminal/console.ts'
import { openRunFolder, type Origin, type RunFolder } from '../monitor/run-folder.ts'
import { cut } from '../monitor/terminal/text-width.ts'
import { compareConfigs, readConfig } from '../monitor/view/config.ts'
import type { FlatValue } from '../monitor/view/types.ts'

/** output_dir and run_name of the run's folder: from the config, or from the folder to resume, which may have been moved since. */
export function placeOf(
  resume: Resume | undefined,
  { output_dir, run_name }: { output_dir: string; run_name: string },
): { output_dir: string; run_name: string } {
  if (resume?.kind !== 'dir') return { output_dir, run_name }
  const dir = resolve(resume.dir)
  const isThere = resolve(output_dir) === dirname(dir)
  return { output_dir: isThere ? output_dir : dirname(dir), run_name: basename(dir) }
}

/** Opens the run's folder, new or to resume. @param origin of a fork @throws UserError if it cannot be opened */
export function openFolder(
  config: RunConfig | SftConfig,
  { resume }: Pick<Loaded<unknown>, 'resume'>,
  origin: Origin | undefined,
): RunFolder {
  const { args } = config.trainer
  const place = placeOf(resume, args)
  // The type assertion keeps the kind of config, which the spread loses.
  const named = { ...config, trainer: { ...config.trainer, args: { ...args, ...place } } } as typeof config
  const options = { outputDir: place.output_dir, runName: place.run_name, resume: !!resume, origin }
  return openRunFolder({ ...options, configText: stringifyConfig(named) })
}

/** Writes the config of this start into the folder and prints how it differs from the previous one: accidental changes are not refused. */
export async function keepConfig(folder: RunFolder, out: Pick<RunConsole, 'print' | 'warn'>): Promise<void> {
  const texts = await whenThereIsRoom(
    'the config of this start',
    () => folder.keepConfig(),
    (line) => out.warn(line),
  )
  const flats = texts.map((text) => readConfig(text).flat)
  const changes = compareConfigs([], flats).keys.map(({ key, values }) => `${key} ${values.map(shown).join(' -> ')}`)
  if (changes.length > 0) out.print(`config   changed since the last start: ${changes.join(', ')}`)
}

const shown = (value: FlatValue) => (value === null ? 'unset' : cut(String(value), 60))

/** Prints what the run will need on disk, and warns if there is less. */
export function tellDisk(
  config: RunConfig | SftConfig,
  model: { config: ModelConfig; path: string },
  folder: RunFolder,
  out: Pick<RunConsole, 'print' | 'warn'>,
): void {
  const { line, short } = diskLine(config, model.config, model.path, folder.path, folderBytes(folder.path))
  out.print(`disk     ${line}`)
  if (short === undefined) return
  out.warn(
    `${short} will not fit on this disk: lower keep_last under [trainer.ckpt], or choose another output_dir. If the disk fills up, the run waits until there is room.`,
  )
}
