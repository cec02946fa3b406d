/** SVG to PNG, with an optional package (@resvg/resvg-js) and a font of the system. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { home } from '../../common/cache.ts'

/** A painter, or what is missing for it. */
type Painter = { paint: (svg: string) => Uint8Array } | { missing: string }

/** Scale: sharp on paper at the width of a column. */
const SCALE = 2

/** Common fonts: using one of them avoids reading all system fonts for every picture. */
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
 * Prepares painting.
 * @param fonts files of which the first that exists is used; if none does, all system fonts are searched
 */
export async function openPainter(fonts: readonly string[] = FONTS, system = true): Promise<Painter> {
  const library = await import('@resvg/resvg-js').catch(() => undefined)
  if (!library)
    return { missing: 'no PNG files: the optional package @resvg/resvg-js is not installed (npm install @resvg/resvg-js)' }
  const { Resvg } = library
  const file = fonts.find((path) => existsSync(path))
  const font = file ? { fontFiles: [file], loadSystemFonts: false } : { loadSystemFonts: system }
  // Without a font the package silently leaves text out, and an axis must not lose its numbers.
  const probe = new Resvg('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9">0</text></svg>', { font })
  if (!probe.getBBox())
    return { missing: 'no PNG files: no font was found to write their text with (on Debian: apt-get install fonts-dejavu-core)' }
  return {
    paint: (svg) => new Resvg(svg, { font, fitTo: { mode: 'zoom', value: SCALE } }).render().asPng(),
  }
}
