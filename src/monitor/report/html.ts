/**
 * `report.html`: curves, evaluations, samples and config of a run, several runs compared, and benchmarks, in one file that opens from disk,
 * loads nothing and runs no script. It contains its plots as SVG and PNG to save; they also lie beside it as files.
 */
import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { numbersIn } from '../../common/folders.ts'
import type { Message } from '../../common/types.ts'
import { isReplaceable, writeFileAtomic } from '../../common/atomic.ts'
import { textOf } from '../files.ts'
import { formatDuration, formatNumber, formatPercent } from '../format.ts'
import { readMetrics, type MetricsRow } from '../metrics-writer.ts'
import { metricInfo, METRICS } from '../metrics-table.ts'
import { benchPlots } from './bench.ts'
import { chart, escapeHtml, type Series } from './chart.ts'
import { comparedPlots, comparedTables, compareTitle, readRuns } from './compare.ts'
import { evalKeys, FIRST, keysOf, rewardEnds, section, table, values } from './parts.ts'
import { figure, PLOT_STYLE, plotFiles, writePlots, type Plot, type PlotFiles } from './plots.ts'
import { answerPairs, readBriefs, type RolloutBrief } from '../rollout-writer.ts'
import { callsOf, messagesOf, plain } from '../row-messages.ts'

/** Samples of each environment, and characters of one answer. */
const SAMPLES = 4
const CHARS = 2000

interface ReportOptions {
  /** Default: report.html in the folder, with plots/ beside it. Needed for several runs, or none. */
  out?: string
  /** The folder for plots as files; no files where only `out` is given. */
  plots?: string
  /** JSON files of benchmarks. */
  bench?: readonly string[]
}

export interface Report {
  /** What was written: the page, and the folder with the plots. */
  path: string
  plots?: string
  /** Why there is no PNG. */
  note?: string
}

/**
 * Writes the report of one run folder, or of several together.
 * @throws UserError for a benchmark that holds nothing to draw
 */
export async function writeReport(paths: readonly string[], options: ReportOptions = {}): Promise<Report> {
  const { out = join(paths[0], 'report.html') } = options
  const folder = options.plots ?? (options.out === undefined ? join(paths[0], 'plots') : undefined)
  const { html, files, note } = await reportHtml(paths, options.bench)
  if (isReplaceable(out)) writeFileAtomic(out, html)
  else writeFileSync(out, html)
  if (folder !== undefined && files.length > 0) writePlots(folder, files)
  return { path: out, ...(folder !== undefined && { plots: folder }), ...(note !== undefined && { note }) }
}

/** The page as text, and the files of its plots. Where files are missing in the folder, those parts are left out. */
export async function reportHtml(
  paths: readonly string[],
  bench: readonly string[] = [],
): Promise<{ html: string; files: PlotFiles[]; note?: string }> {
  const one = paths.length === 1 ? paths[0] : undefined
  const rows = one === undefined ? [] : readMetrics(join(one, 'metrics.jsonl'))
  const runs = one === undefined ? readRuns(paths) : []
  const measured = bench.map(benchPlots)
  const curves = one === undefined ? comparedPlots(runs) : firstPlots(rows)
  const { files, note } = await plotFiles([...curves, ...measured.flatMap(({ plots }) => plots)])
  let used = 0
  const cards = (plots: readonly Plot[]) =>
    plots.length === 0 ? '' : `<div class="cards">${plots.map((plot) => figure(plot, files[used++])).join('')}</div>`
  const name = one === undefined ? compareTitle(runs) || 'Benchmarks' : escapeHtml(basename(one))
  const config = one === undefined ? '' : textOf(join(one, 'config.toml'))
  const body = [
    `<h1>${name}</h1>`,
    note && `<p class="env">${escapeHtml(note)}</p>`,
    one === undefined ? runs.length > 0 && comparedTables(runs) : summary(rows) + environments(rows),
    section('Curves', [cards(curves), otherCurves(rows)].filter(Boolean).join('\n')),
    ...measured.map(({ title, about, plots }) =>
      section(escapeHtml(title), `<p class="env">${escapeHtml(about)}</p>${cards(plots)}`),
    ),
    one !== undefined && section('Samples', samples(one)),
    config && section('Config', `<pre>${escapeHtml(config)}</pre>`),
  ]
  const html = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>${name}</title><style>${STYLE}</style></head>
<body><main>${body.filter(Boolean).join('\n')}</main></body></html>
`
  return { html, files, ...(note !== undefined && { note }) }
}

function summary(rows: readonly MetricsRow[]): string {
  if (rows.length === 0) return '<p>No step is done yet.</p>'
  const [first, last] = [rows[0], rows.at(-1)!]
  const facts: [string, string][] = [
    ['steps', String(last.step)],
    ['began', `${new Date(first.time * 1000).toISOString().replace('T', ' ').slice(0, 16)} UTC`],
    ['time', formatDuration(last.time - first.time)],
  ]
  const { steps, text } = rewardEnds(rows)
  if (steps > 0) facts.push([`mean reward, first to last ${steps === 1 ? 'step' : `${steps} steps`}`, text])
  const tokens = values(rows, 'progress/total_tokens').at(-1)
  if (tokens) facts.push(['tokens', tokens[1].toLocaleString('en')])
  return `<dl>${facts.map(([term, value]) => `<div><dt>${escapeHtml(term)}</dt><dd>${escapeHtml(value)}</dd></div>`).join('')}</dl>`
}

/** One line for each environment: its first, last and best evaluation. */
function environments(rows: readonly MetricsRow[]): string {
  const keys = keysOf(rows)
  const lines = evalKeys(rows).flatMap((key) => {
    const points = values(rows, key)
    if (points.length === 0) return []
    const [env, k] = [key.slice('eval/'.length, key.lastIndexOf('/')), key.slice(key.lastIndexOf('/') + 1)]
    const [before, after] = [points[0], points.at(-1)!]
    const best = points.reduce((a, b) => (b[1] > a[1] ? b : a))
    const cut = values(rows, `eval/${env}/is_truncated/mean`)
    const passes = keys
      .filter((name) => name.startsWith(`eval/${env}/pass@`))
      .map((name) => `${name.slice(name.lastIndexOf('/') + 1)} ${formatNumber(values(rows, name).at(-1)?.[1])}`)
    const cells = [
      env, k, `${formatNumber(before[1])} (step ${before[0]})`, `${formatNumber(after[1])} (step ${after[0]})`, formatNumber(after[1] - before[1]),
      `${formatNumber(best[1])} (step ${best[0]})`, passes.join(', '), cut.length > 0 ? `${formatPercent(cut[0][1])} to ${formatPercent(cut.at(-1)![1])}` : '',
    ] // prettier-ignore
    return [cells]
  })
  if (lines.length === 0) return ''
  const head = ['environment', '', 'before', 'after', 'change', 'best', 'pass@k after', 'cut off']
  return section('Evaluations', table(head, lines))
}

function plotOf(key: string, series: readonly Series[]): Plot {
  const info = metricInfo(key)
  const about = info && `${info.unit} · ${info.healthy}`
  return { title: key, series: series.map(({ name }) => name), about, axis: 'step', svg: chart(key, series, key === 'reward') }
}

/** The curves at the top, and all evaluations in one. */
function firstPlots(rows: readonly MetricsRow[]): Plot[] {
  const keys = keysOf(rows)
  const one = (key: string) => plotOf(key, [{ name: key, points: values(rows, key) }])
  const [reward, ...rest] = FIRST.filter((key) => keys.includes(key)).map(one)
  const held = evalKeys(rows)
  const evals = plotOf(held.length === 1 ? held[0] : 'eval', held.map((key) => ({ name: key, points: values(rows, key) }))) // prettier-ignore
  return [reward, evals, ...rest].filter((plot) => plot !== undefined && plot.svg !== '')
}

/** All other metrics, collapsed by group. */
function otherCurves(rows: readonly MetricsRow[]): string {
  const shown = [...FIRST, ...evalKeys(rows), 'step', 'time']
  const rest = keysOf(rows).filter((key) => !shown.includes(key))
  const groups = Map.groupBy(rest, (key) => metricInfo(key)?.group ?? 'Others')
  const order = [...new Set([...Object.values(METRICS).map(({ group }) => group), 'Others' as const])]
  const folded = order.flatMap((group) => {
    const own = (groups.get(group) ?? [])
      .map((key) => figure(plotOf(key, [{ name: key, points: values(rows, key) }])))
      .filter(Boolean)
    return own.length > 0 ? [`<details><summary>${group} (${own.length})</summary><div class="cards">${own.join('')}</div></details>`] : [] // prettier-ignore
  })
  return folded.join('\n')
}

/** Held-out questions with their first and last answer; without evaluations, the best and worst answers of the last step. */
function samples(path: string): string {
  const folder = join(path, 'rollouts')
  if (!existsSync(folder)) return ''
  const steps = numbersIn(readdirSync(folder), /^step_(\d+)\.jsonl$/)
  const read = (step: number) => readBriefs(join(folder, `step_${step}.jsonl`))
  const evals = (step: number | undefined) => (step === undefined ? [] : read(step).filter(({ split }) => split === 'eval'))
  // Looks at both ends only, so that not every file of a long run is read.
  const before = evals(steps[0])
  const after = before.length > 0 ? evals(steps.findLast((step, i) => i > 0 && evals(step).length > 0)) : []
  if (after.length > 0) {
    const chosen = [...Map.groupBy(answerPairs(before, after), (pair) => pair.before.env).values()].flatMap((own) => {
      const sorted = own.toSorted((x, y) => y.gain - x.gain)
      // The largest gains and the largest losses.
      return sorted.length <= SAMPLES ? sorted : [...sorted.slice(0, SAMPLES - 1), sorted.at(-1)!]
    })
    return chosen.map(({ before, after }) => sample([['before', before], ['after', after]])).join('\n') // prettier-ignore
  }
  const last = steps.at(-1)
  if (last === undefined) return ''
  const sorted = read(last)
    .filter(({ reward }) => typeof reward === 'number')
    .toSorted((x, y) => y.reward! - x.reward!)
  const chosen = sorted.length <= SAMPLES ? sorted : [...sorted.slice(0, SAMPLES / 2), ...sorted.slice(-SAMPLES / 2)]
  return chosen.map((brief) => sample([[`step ${last}`, brief]])).join('\n')
}

/** One question with some answers. */
function sample(briefs: [string, RolloutBrief][]): string {
  const answers = briefs.map(([when, brief]) => [when, brief.row()] as const)
  const [[, row]] = answers
  const cut = (text: string) =>
    escapeHtml(text.length > CHARS ? `${text.slice(0, CHARS)} [${text.length - CHARS} more characters]` : text)
  const turns = (messages: readonly Message[]) =>
    messages
      .map((message) => {
        const lines = [plain(message.content), ...callsOf(message).map(([name, args]) => `${name}(${args})`)]
        return `<div class="turn"><b>${escapeHtml(plain(message.role))}</b> ${cut(lines.filter(Boolean).join('\n'))}</div>`
      })
      .join('')
  const columns = answers.map(([when, { reward, completion, is_truncated: truncated }]) => {
    const said = turns(messagesOf(completion, 'assistant'))
    return `<div><i>${when}: reward ${formatNumber(reward)}${truncated ? ', cut off' : ''}</i>${said}</div>`
  })
  const answer = plain(row.answer)
  const expected = answer === '' ? '' : `<p>expected: ${cut(answer)}</p>`
  const task = [plain(row.env), row.example_id === undefined ? '' : `#${plain(row.example_id)}`].filter(Boolean).join(' ')
  return `<article><p class="env">${escapeHtml(task)}</p>${turns(messagesOf(row.prompt))}${expected}<div class="answers">${columns.join('')}</div></article>`
}

const STYLE = `
:root{color-scheme:light dark;--line:#d8dbe0;--dim:#5b626d;--back:#f6f7f9}
@media(prefers-color-scheme:dark){:root{--line:#3a3f47;--dim:#a0a7b3;--back:#22262c}}
body{font:15px/1.5 system-ui,sans-serif;margin:0}main{max-width:1340px;margin:auto;padding:1rem}
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid var(--line)}
dl{display:flex;flex-wrap:wrap;gap:.5rem 2rem}dt{color:var(--dim);font-size:.85rem}dd{margin:0;font-weight:600}
.wide{overflow-x:auto}table{border-collapse:collapse}th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:1rem}
figure{margin:0;padding:.5rem;background:var(--back);border-radius:6px}figcaption{font-weight:600;overflow-wrap:anywhere}figure p{margin:0;color:var(--dim);font-size:.8rem}
svg{width:100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:var(--dim)}.grid{stroke:var(--line)}
${PLOT_STYLE}
figcaption span{font-weight:400;font-size:.8rem}.get{float:right}.get a{margin-left:.6em;color:var(--dim)}
details{margin-top:1rem}summary{cursor:pointer;padding:.3rem 0}pre{overflow-x:auto;background:var(--back);padding:1rem;border-radius:6px;font-size:.85rem}
article{border:1px solid var(--line);border-radius:6px;padding:.7rem;margin:.8rem 0}.env,article i,article p{color:var(--dim);font-size:.85rem;margin:0}
.turn{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0}.turn b{color:var(--dim);font-weight:600}
.answers{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:1rem;border-top:1px solid var(--line);padding-top:.4rem}
`
