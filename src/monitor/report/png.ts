/** SVG to PNG, by an optional package (@resvg/resvg-js) and a font of the machine. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { home } from '../../common/cache.ts'

/** Paints, or says what is missing for it. */
type Painter = { paint: (svg: string) => Uint8Array } | { missing: string }

/** Pixels for one of the SVG: sharp on paper at the size of a column. */
const SCALE = 2

/** A font that is there saves reading all fonts of the machine for every picture. */
const FONTS = [
  '/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf',
  '/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf',
  '/usr/share/fonts/TTF/DejaVuSans.ttf',
  '/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf',
  '/System/Library/Fonts/Supplemental/Arial.ttf',
  join(process.env.WINDIR ?? 'C:\\Windows', 'Fonts', 'arial.ttf'),
  join(home(), '.fonts', 'DejaVuSans.ttf'),
]

/**
 * Gets ready to paint.
 * @param fonts files to take the first of that is there; where none is, all fonts of the system are looked through
 */
export async function openPainter(fonts: readonly string[] = FONTS, system = true): Promise<Painter> {
  const library = await import('@resvg/resvg-js').catch(() => undefined)
  if (!library)
    return { missing: 'no PNG files: the optional package @resvg/resvg-js is not installed (npm install @resvg/resvg-js)' }
  const { Resvg } = library
  const file = fonts.find((path) => existsSync(path))
  const font = file ? { fontFiles: [file], loadSystemFonts: false } : { loadSystemFonts: system }
  // Text without a font is left out without a word: numbers must not vanish from an axis.
  const probe = new Resvg('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9">0</text></svg>', { font })
  if (!probe.getBBox())
    return { missing: 'no PNG files: no font was found to write their text with (on Debian: apt-get install fonts-dejavu-core)' }
  return {
    paint: (svg) => new Resvg(svg, { font, fitTo: { mode: 'zoom', value: SCALE } }).render().asPng(),
  }
}
