/** `tune`: finds the tile sizes of this adapter's kernels and keeps them in the user's cache. */
import type { Command } from 'commander'
import type { TuneRow } from '../autograd/tune.ts'

export function register(program: Command): void {
  program
    .command('tune')
    .description('Measure tile sizes of the matmul kernels on this adapter, within a minute, and keep the best for later runs.')
    .option('--json', 'the table as JSON')
    .addHelpText(
      'after',
      '\nThis changes the speed of runs, not their results. A run with DAWN_RL_TUNE=0 in its environment uses the built-in sizes.',
    )
    .action(async (options: { json?: boolean }) => {
      const { Gpu } = await import('../gpu/gpu.ts')
      const { tileText, tileWords, tuneKernels } = await import('../autograd/tune.ts')
      const gpu = await Gpu.open()
      const say = (line: string): void => {
        if (!options.json) console.log(line)
      }
      const rows: TuneRow[] = []
      say(`adapter  ${gpu.facts.name}`)
      say(`${'kernel'.padEnd(36)}${'tile'.padEnd(28)}${gpu.facts.software ? 'GFLOP/s*' : ' GFLOP/s'}`)
      const { path, tiles } = await tuneKernels(gpu, (row) => {
        rows.push(row)
        const speed = Number.isNaN(row.gflops) ? 'wrong' : row.gflops.toFixed(1)
        say(`${tileWords[row.name].padEnd(36)}${tileText(row).padEnd(28)}${speed.padStart(8)}${row.chosen ? '  chosen' : ''}`)
      })
      if (gpu.facts.software) say('* by processor time: what an idle machine gives')
      say(`kept in ${path}`)
      if (process.env.DAWN_RL_TUNE === '0') say('DAWN_RL_TUNE=0 is set: while it is, runs use the built-in sizes.')
      if (options.json) console.log(JSON.stringify({ adapter: gpu.facts.name, path, tiles, rows }))
      gpu.close()
    })
}
