/** A plot of a report: as a figure in the page, and as SVG and PNG files for a paper or a slide. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { makeFolder } from '../../common/folders.ts'
import { escapeHtml } from './chart.ts'
import { openPainter } from './png.ts'

export interface Plot {
  /** Name of its files without extension; default: its title. */
  file?: string
  /** Title on the page and in its picture. */
  title: string
  /** Names of its series in the order of their colours; shown for two or more. */
  series: readonly string[]
  /** One sentence below it. */
  about?: string
  /** Label of the horizontal axis. */
  axis?: string
  /** The chart itself, with the classes of PLOT_STYLE. */
  svg: string
}

/** The files of a plot. */
export interface PlotFiles {
  /** Name without extension. */
  name: string
  svg: string
  png?: Uint8Array
}

const SERIES = ['#2f7ed8', '#d9822b', '#2ca25f', '#c0408e', '#8064c8', '#9a8a2a']

/** Style of the classes in a chart; the page adds its own colours for text and lines. */
export const PLOT_STYLE = `.line{fill:none;stroke-width:1.8}.pale{opacity:.3;stroke-width:1}.dot,.bar{fill:currentColor;stroke:none}
${SERIES.map((colour, i) => `.s${i}{stroke:${colour};color:${colour}}`).join('')}`

const PICTURE_STYLE = `text{font:11px "DejaVu Sans","Helvetica Neue",Arial,sans-serif;fill:#444}.title{font-size:14px;fill:#111}.grid{stroke:#d8dbe0}
${PLOT_STYLE}
${SERIES.map((colour, i) => `.n${i}{fill:${colour}}`).join('')}`

const MARGIN = 12
/** Approximate width of a letter at 11 pixels. */
const LETTER = 6.4

/** A plot as an SVG file: with its title, the names of its series and its axis, on white. */
export function picture({ title, series, axis, svg }: Plot): string {
  const [, width, height] = /viewBox="0 0 (\S+) (\S+)"/.exec(svg)!.map(Number)
  const whole = width + 2 * MARGIN
  let [x, y] = [MARGIN, MARGIN + 12]
  const words = [`<text class="title" x="${x}" y="${y}">${escapeHtml(title)}</text>`]
  for (const [i, name] of (series.length > 1 ? series : []).entries()) {
    const takes = name.length * LETTER + 14
    if (i === 0 || x + takes > whole - MARGIN) [x, y] = [MARGIN, y + 16]
    words.push(`<text class="n${i % SERIES.length}" x="${x}" y="${y}">${escapeHtml(name)}</text>`)
    x += takes
  }
  const top = y + 10
  const below = axis === undefined ? MARGIN : MARGIN + 12
  if (axis !== undefined)
    words.push(`<text x="${whole / 2}" y="${top + height + 10}" text-anchor="middle">${escapeHtml(axis)}</text>`)
  const size = [whole, top + height + below].map(Math.ceil)
  const chart = svg.replace(/^<svg /, `<svg x="${MARGIN}" y="${top}" width="${width}" height="${height}" `)
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${size[0]}" height="${size[1]}" viewBox="0 0 ${size.join(' ')}">` +
    `<style>${PICTURE_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>${words.join('')}${chart}</svg>\n`
  )
}

/**
 * The pictures of plots, with distinct names.
 * @returns `note`: why there is no PNG among them
 */
export async function plotFiles(plots: readonly Plot[]): Promise<{ files: PlotFiles[]; note?: string }> {
  const painter = plots.length > 0 ? await openPainter() : undefined
  const taken = new Set<string>()
  const files = plots.map((plot) => {
    const stem = (plot.file ?? plot.title).toLowerCase().replace(/[^a-z0-9_.@]+/g, '-').replace(/^[-.]+|[-.]+$/g, '').slice(0, 60) || 'plot' // prettier-ignore
    let name = stem
    for (let n = 2; taken.has(name); n++) name = `${stem}-${n}`
    taken.add(name)
    const svg = picture(plot)
    return { name, svg, ...(painter && 'paint' in painter && { png: painter.paint(svg) }) }
  })
  return { files, ...(painter && 'missing' in painter && { note: painter.missing }) }
}

/** Writes the files into a folder, which is made if needed. */
export function writePlots(folder: string, files: readonly PlotFiles[]): void {
  makeFolder(folder)
  for (const { name, svg, png } of files) {
    writeFileSync(join(folder, `${name}.svg`), svg)
    if (png) writeFileSync(join(folder, `${name}.png`), png)
  }
}

/** A plot as a figure in the page, with links to save its files, if there are any. */
export function figure({ title, series, about, svg }: Plot, files?: PlotFiles): string {
  if (svg === '') return ''
  const names = series.length > 1 ? series.map((name, i) => `<span class="s${i % 6}">${escapeHtml(name)}</span>`).join(' ') : ''
  const below = about ? `<p>${escapeHtml(about)}</p>` : ''
  return `<figure><figcaption>${escapeHtml(title)} ${names}${files ? links(files) : ''}</figcaption>${svg}${below}</figure>`
}

function links({ name, svg, png }: PlotFiles): string {
  const link = (type: string, ending: string, data: Uint8Array | string) =>
    `<a download="${escapeHtml(`${name}.${ending}`)}" href="data:${type};base64,${Buffer.from(data).toString('base64')}">${ending.toUpperCase()}</a>`
  return `<span class="get">${link('image/svg+xml', 'svg', svg)}${png ? link('image/png', 'png', png) : ''}</span>`
}
