/**
 * What runs learned: held-out reward before and after, and the reward of every step, from the folders that `train` leaves.
 *
 *     node bench/learning.ts OUT.json outputs/run-a outputs/run-b ...
 *
 * Prints a table, and writes OUT.json: one object a run with its seed, environment, curve and seconds.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { parseConfig } from '../src/config/load.ts'
import { formatDuration, sparkline } from '../src/monitor/format.ts'
import { readMetrics } from '../src/monitor/metrics-writer.ts'

const [out, ...folders] = process.argv.slice(2)
if (!out || folders.length === 0) {
  console.error('usage: node bench/learning.ts OUT.json RUN_FOLDER ...')
  process.exit(2)
}

const runs = folders.map((folder) => {
  const { config } = parseConfig(readFileSync(join(folder, 'config.toml'), 'utf8'))
  const rows = readMetrics(join(folder, 'metrics.jsonl'))
  const env = config.env[0].name
  const held = rows.flatMap((row) => row[`eval/${env}/avg@${config.trainer.args.eval_rollouts_per_example}`] ?? [])
  const steps = rows.filter((row) => row.step > 0)
  return {
    run: basename(folder),
    model: config.model.name,
    env,
    backend: config.inference.backend,
    trains: config.trainer.args.use_lora ? 'lora' : 'full',
    seed: config.trainer.args.seed,
    held_out_before: held[0] ?? null,
    held_out_after: held.at(-1) ?? null,
    reward: steps.map((row) => row.reward ?? null),
    mismatch_kl: steps.map((row) => row['mismatch_kl/all/mean'] ?? null),
    mismatch_kl_max: steps.map((row) => row['mismatch_kl/all/max'] ?? null),
    clipped: steps.map((row) => row['is_masked/mean'] ?? null),
    wait_for_batch: steps.map((row) => row['time/wait_for_batch'] ?? null),
    wait_for_trainer: steps.map((row) => row['time/wait_for_trainer'] ?? null),
    push_seconds: steps.map((row) => row['time/broadcast_weights'] ?? null),
    probe_error: steps.map((row) => row['inference/probe_error'] ?? null),
    step_seconds: steps.map((row) => row['time/step'] ?? null),
    seconds: rows.length > 1 ? rows.at(-1)!.time - rows[0].time : null,
  }
})
for (const r of runs) {
  const number = (value: number | null) => (value === null ? '-' : value.toFixed(2))
  const line = `seed ${String(r.seed).padStart(4)}  held out ${number(r.held_out_before)} -> ${number(r.held_out_after)}`
  console.log(
    `${r.run.padEnd(24)} ${line}  ${sparkline(r.reward.map((v) => v ?? 0))}  ${r.seconds === null ? '' : formatDuration(r.seconds)}`,
  )
}
writeFileSync(out, `${JSON.stringify(runs, null, 1)}\n`)
