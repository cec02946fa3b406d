/**
 * What runs with many turns and with tools learned, over seeds: turns the run folders of `train` into one object for each config, with the
 * held-out reward of each seed before and after, its gain, kl of the first step (fresh rollouts: 0), and seconds.
 *
 *     node bench/environments.ts bench/results/environments.json configs/tiny-turns.toml outputs/turns-1 outputs/turns-2 ...
 *
 * An object of the same config in the file is replaced; others stay.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseConfig } from '../src/config/load.ts'
import { readMetrics } from '../src/monitor/metrics-writer.ts'

interface Learned {
  config: string
  rise: { mean: number; least: number }
  [key: string]: unknown
}

const [out, config, ...folders] = process.argv.slice(2)
if (!out || !config?.endsWith('.toml') || folders.length === 0) {
  console.error('usage: node bench/environments.ts OUT.json CONFIG.toml RUN_FOLDER ...')
  process.exit(2)
}
const round = (value: number) => Number(value.toFixed(4))
const mean = (values: number[]) => round(values.reduce((a, b) => a + b, 0) / values.length)

const runs = folders
  .map((folder) => {
    const settings = parseConfig(readFileSync(join(folder, 'config.toml'), 'utf8')).config
    const rows = readMetrics(join(folder, 'metrics.jsonl'))
    const prefix = `eval/${settings.env[0].name}/`
    const held = rows.filter((row) => typeof row[`${prefix}avg@1`] === 'number')
    const steps = rows.filter((row) => row.step > 0)
    const { seed, max_steps } = settings.trainer.args
    const ofHeld = (row: (typeof rows)[number]) =>
      Object.fromEntries(
        Object.entries(row).flatMap(([key, value]) =>
          key.startsWith(`${prefix}reward/`) ? [[key.slice(`${prefix}reward/`.length), round(Number(value))]] : [],
        ),
      )
    if (held.length < 2 || steps.length < max_steps) throw new Error(`${folder} was not run to its end with evaluations`)
    return {
      seed,
      base: round(Number(held[0][`${prefix}avg@1`])),
      final: round(Number(held.at(-1)![`${prefix}avg@1`])),
      parts_base: ofHeld(held[0]),
      parts_final: ofHeld(held.at(-1)!),
      kl_first_step: Number(steps[0]['mismatch_kl/all/max']),
      seconds: Math.round(rows.at(-1)!.time - rows[0].time),
      reward: steps.map((row) => round(Number(row.reward))),
      steps: max_steps,
    }
  })
  .toSorted((a, b) => a.seed - b.seed)

const rises = runs.map(({ base, final }) => final - base)
const learned: Learned = {
  config,
  command: `node train.js @ ${config} --trainer.args.seed SEED`,
  date: new Date().toISOString().slice(0, 10),
  seeds: runs.map(({ seed }) => seed),
  base: mean(runs.map(({ base }) => base)),
  final: mean(runs.map(({ final }) => final)),
  rise: { mean: mean(rises), least: round(Math.min(...rises)) },
  kl_first_step_max: Math.max(...runs.map((run) => run.kl_first_step)),
  runs,
}
for (const run of runs) {
  console.log(
    `${config} seed ${run.seed}: held out ${run.base} -> ${run.final}, kl of step 1 ${run.kl_first_step}, ${run.seconds} s`,
  )
}
console.log(`rise ${learned.rise.mean} in the mean, ${learned.rise.least} at least`)
const before = existsSync(out) ? (JSON.parse(readFileSync(out, 'utf8')) as Learned[]) : []
const all = [...before.filter((one) => one.config !== config), learned]
const text = JSON.stringify(all, null, 1).replaceAll(
  /\[\s+(-?[\d.,\s-]+?)\s+\]/gu,
  (_, numbers: string) => `[${numbers.replaceAll(/\s+/gu, ' ')}]`,
)
writeFileSync(out, `${text}\n`)
