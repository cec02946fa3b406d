/** The output of `doctor`: a report as one block of text, or as JSON. */
import { isLavapipe } from '../gpu/driver-cache.ts'
import type { AdapterFacts } from '../gpu/inventory.ts'
import { fusesMultiplyAdd } from '../gpu/vector-width.ts'
import type { Report } from './doctor.ts'

/** The limits that decide what fits; the rest is in `--json`. */
const mainLimits = [
  'maxBufferSize',
  'maxStorageBufferBindingSize',
  'maxStorageBuffersPerShaderStage',
  'maxComputeWorkgroupStorageSize',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupsPerDimension',
  'maxTextureDimension2D',
  'maxImmediateSize',
]
/** The features that matter for compute; texture formats and the like are left out. */
const computeFeatures =
  /f16|subgroup|timestamp|atomic|bindless|resource-table|immediate|integer_dot|subgroup|memory|pointer|sized_binding/

/** The whole report as indented JSON. */
export function json(report: Report): string {
  return JSON.stringify(report, null, 2)
}

/** The report as lines of text between two marker lines, for a bug report. */
export function block(report: Report): string {
  const { webgpu, memoryGiB } = report
  const lines = [
    '--- dawn-rl doctor ---',
    row('dawn-rl', report.dawnRl),
    row('node', report.node),
    row('webgpu', `${webgpu.version ?? 'not installed'}${webgpu.problem ? `, does not load: ${webgpu.problem}` : ''}`),
    row('system', `${report.os}, ${report.kernel}${report.glibc ? `, glibc ${report.glibc}` : ''}`),
    row('cpu', report.cpu),
    row('memory', `${memoryGiB.total} GiB, ${memoryGiB.free} GiB free`),
  ]
  const set = Object.entries(report.environment).map(([name, value]) => `${name}=${value}`)
  if (set.length > 0) lines.push(row('environment', set.join(' ')))
  lines.push(
    row(
      'adapters',
      report.adapters.length === 0 ? 'none' : `${report.adapters.length}; a run takes: ${report.chosen ?? 'none of them'}`,
    ),
  )
  for (const adapter of report.adapters) lines.push(...adapterLines(adapter))
  for (const words of report.driverWords.slice(0, 12)) lines.push(`  driver said: ${words.trim()}`)
  if (report.problems.length === 0) lines.push(row('missing', 'nothing'))
  for (const { what, command } of report.problems) lines.push(row('missing', what), row('fix with', command))
  lines.push('--- end ---')
  return lines.join('\n')
}

function adapterLines(a: AdapterFacts): string[] {
  const lines = [
    `  ${a.name}${a.software ? ' (software)' : ''}`,
    item(
      'driver',
      `${a.backend}; ${a.description || 'unnamed'}; vendor ${a.vendor || '?'}, architecture ${a.architecture || '?'}`,
    ),
    item('f16', `${yes(a.f16)}; timestamps ${yes(a.timestamps)}; subgroups ${a.subgroupSizes ? sizes(a.subgroupSizes) : 'no'}`),
    item('matrix units', a.subgroupMatrixConfigs.join(', ') || 'none'),
    item('features', [...a.features, ...a.wgslFeatures].filter((f) => computeFeatures.test(f)).join(' ') || 'none'),
  ]
  for (let i = 0; i < mainLimits.length; i += 2) {
    const pair = mainLimits.slice(i, i + 2).filter((name) => name in a.limits)
    lines.push(item(i === 0 ? 'limits' : '', pair.map((name) => `${name} ${amount(name, a.limits[name])}`).join(', ')))
  }
  if (a.problem) lines.push(item('problem', a.problem))
  // Mesa before 26 computes a multiply-add in two instructions.
  if (isLavapipe(a.description) && !a.problem && !fusesMultiplyAdd(a.description)) {
    lines.push(item('faster', 'with Mesa 26 or newer, 1.1 to 1.4 times: docs/performance.md, "On a newer Mesa"'))
  }
  return lines
}

function yes(is: boolean): string {
  return is ? 'yes' : 'no'
}

function sizes([low, high]: [number, number]): string {
  return low === high ? `of ${low}` : `of ${low} to ${high}`
}

/** Sizes in MiB or KiB, counts as they are. */
function amount(name: string, value: number): string {
  if (!name.endsWith('Size') || value < 1024) return String(value)
  return value >= 2 ** 20 ? `${Math.round(value / 2 ** 20)} MiB` : `${Math.round(value / 1024)} KiB`
}

function row(name: string, text: string): string {
  return `${name.padEnd(12)} ${text}`
}

function item(name: string, text: string): string {
  return `    ${name.padEnd(13)} ${text}`
}
