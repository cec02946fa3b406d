/** Numbers as people read them. Pure functions; a missing or non-finite value is always 'n/a'. */
import { chop, textWidth } from './terminal/text-width.ts'

const blocks = '▁▂▃▄▅▆▇█'

/** Seconds as '0.4s', '12.3s', '1m50s', '2h05m' or '3d04h'. */
export function formatDuration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return 'n/a'
  if (seconds < 0) return `-${formatDuration(-seconds)}`
  if (seconds < 59.95) return `${seconds.toFixed(1)}s`
  const whole = Math.round(seconds)
  if (whole < 3600) return pair(Math.floor(whole / 60), 'm', whole % 60, 's')
  const minutes = Math.round(seconds / 60)
  if (minutes < 24 * 60) return pair(Math.floor(minutes / 60), 'h', minutes % 60, 'm')
  const hours = Math.round(seconds / 3600)
  return pair(Math.floor(hours / 24), 'd', hours % 24, 'h')
}

function pair(big: number, bigUnit: string, small: number, smallUnit: string): string {
  return `${big}${bigUnit}${String(small).padStart(2, '0')}${smallUnit}`
}

/** Bytes in powers of 1024: '512 B', '1.50 KiB', '97.8 MiB', '12.0 GiB'. */
export function formatBytes(bytes: number | null | undefined): string {
  if (bytes == null || !Number.isFinite(bytes)) return 'n/a'
  if (bytes < 0) return `-${formatBytes(-bytes)}`
  if (bytes < 1024) return `${Math.round(bytes)} B`
  return scaled(bytes, 1024, [' KiB', ' MiB', ' GiB', ' TiB', ' PiB'])
}

/** A count in powers of 1000: '950', '1.20k', '45.3k', '1.35M'. */
export function formatCount(count: number | null | undefined): string {
  if (count == null || !Number.isFinite(count)) return 'n/a'
  if (count < 0) return `-${formatCount(-count)}`
  if (count < 999.5) return String(Math.round(count))
  return scaled(count, 1000, ['k', 'M', 'B', 'T'])
}

/** '1 step', '2 steps'. */
export const counted = (count: number, one: string): string => `${count} ${one}${count === 1 ? '' : 's'}`

/** `value / base^n` with three significant digits and the n-th unit; the last unit has no upper limit. */
function scaled(value: number, base: number, units: string[]): string {
  let unit = 0
  let x = value / base
  while (Math.round(x) >= base && unit < units.length - 1) {
    x /= base
    unit++
  }
  const digits = x < 9.995 ? 2 : x < 99.95 ? 1 : 0
  return `${x.toFixed(digits)}${units[unit]}`
}

/** A measured value with three significant digits: '0.0123', '4.57', '123', '1.2e-7'. */
export function formatNumber(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return 'n/a'
  if (value === 0) return '0'
  const size = Math.abs(value)
  if (size < 1e-4 || size >= 1e6) return value.toExponential(1)
  if (size >= 999.5) return String(Math.round(value))
  return String(Number(value.toPrecision(3)))
}

/** A fraction as '0%', '3%', '100%'; 0% and 100% are only shown for exactly 0 and 1. */
export function formatPercent(fraction: number | null | undefined): string {
  if (fraction == null || !Number.isFinite(fraction)) return 'n/a'
  const percent = fraction * 100
  if (percent > 0 && percent < 0.5) return '<1%'
  if (percent < 100 && percent >= 99.5) return '>99%'
  return `${Math.round(percent)}%`
}

/**
 * The last `width` values as block characters, lowest value to the bottom block and highest to the top one. A constant series
 * is drawn in the middle; a missing value is a blank.
 */
export function sparkline(values: readonly (number | null)[], width = 12): string {
  const shown = values.slice(-width)
  const finite = shown.filter((v): v is number => v != null && Number.isFinite(v))
  // Halved, so that the span stays finite even for the largest numbers.
  const low = Math.min(...finite) / 2
  const span = Math.max(...finite) / 2 - low
  return shown
    .map((v) => {
      if (v == null || !Number.isFinite(v)) return ' '
      return span > 0 ? blocks[Math.min(7, Math.floor(((v / 2 - low) / span) * 8))] : blocks[3]
    })
    .join('')
}

/** Text of a model or a user made safe to print: control characters become visible pictures, line breaks and tabs stay. */
export function printable(text: string): string {
  let out = ''
  for (const char of text.replace(/\r\n?/g, '\n')) {
    const code = char.codePointAt(0)!
    if (code < 32 && char !== '\n' && char !== '\t') out += String.fromCodePoint(0x2400 + code)
    else if (code === 127) out += '\u2421'
    else if (code > 127 && code < 160) out += '\ufffd'
    else out += char
  }
  return out
}

/** On one line, at most `width` characters; what is cut off is shown by an ellipsis. */
export function oneLine(text: string, width: number): string {
  const chars = Array.from(printable(text).replace(/\s+/g, ' ').trim())
  return chars.length <= width ? chars.join('') : `${chars.slice(0, Math.max(0, width - 1)).join('')}…`
}

/** Lines of at most `width` columns of a terminal, broken at spaces where there are any; keeps the text's own line breaks. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = []
  for (const paragraph of printable(text).split('\n')) {
    let line = ''
    for (const word of paragraph.split(/\s+/).filter(Boolean)) {
      if (line !== '' && textWidth(line) + 1 + textWidth(word) > width) {
        lines.push(line)
        line = ''
      }
      const pieces = chop(word, width)
      const last = pieces.pop()!
      lines.push(...pieces)
      line = line === '' ? last : `${line} ${last}`
    }
    lines.push(line)
  }
  return lines
}

/**
 * Quotes a word for the shell if needed: users copy printed commands, and names may contain spaces. On Windows in double quotes, which cmd, PowerShell
 * and bash all understand (cmd takes single quotes literally). PowerShell splits words at commas and expands @name (splatting), so these are quoted too.
 */
export function shellWord(text: string, platform: NodeJS.Platform = process.platform): string {
  if ((platform === 'win32' ? /^[\w%+=:./-]+$/ : /^[\w@%+=:,./-]+$/).test(text)) return text
  return platform === 'win32' ? `"${text.replaceAll('"', '\\"')}"` : `'${text.replaceAll("'", "'\\''")}'`
}
