/**
 * The page's own files: those of page/ as they stand, and the libraries that it imports, from node_modules, under /vendor/. Names come from two lists
 * that are made at the start, so a path of a request is looked up and never put together.
 */
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** Under /vendor/: where Node finds the module, and the file beside it where that is not the one for browsers. */
const VENDOR: Readonly<Record<string, { module: string; file?: string }>> = {
  'preact.js': { module: 'preact' },
  'preact-hooks.js': { module: 'preact/hooks' },
  'htm.js': { module: 'htm' },
  'htm-preact.js': { module: 'htm/preact' },
  'signals.js': { module: '@preact/signals' },
  'signals-core.js': { module: '@preact/signals-core' },
  'uplot.js': { module: 'uplot', file: 'uPlot.esm.js' },
  'uplot.css': { module: 'uplot', file: 'uPlot.min.css' },
}

const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.woff2': 'font/woff2',
}

interface StaticFile {
  body: Uint8Array<ArrayBuffer>
  type: string
}

const pageFolder = fileURLToPath(new URL('page/', import.meta.url))

export class StaticFiles {
  /** Path of a request to the file's path. */
  readonly #paths = new Map<string, string>()

  constructor() {
    for (const entry of existsSync(pageFolder) ? readdirSync(pageFolder, { recursive: true, withFileTypes: true }) : []) {
      if (!entry.isFile() || !(extname(entry.name) in types)) continue
      const path = join(entry.parentPath, entry.name)
      this.#paths.set(`/${path.slice(pageFolder.length).replaceAll('\\', '/')}`, path)
    }
    for (const [name, { module, file }] of Object.entries(VENDOR)) {
      const found = new URL(import.meta.resolve(module))
      this.#paths.set(`/vendor/${name}`, fileURLToPath(file ? new URL(file, found) : found))
    }
  }

  /** The file at a path of a request ('/' is index.html), read anew each time; undefined where there is none. */
  get(path: string): StaticFile | undefined {
    const file = this.#paths.get(path === '/' ? '/index.html' : path)
    return file && existsSync(file)
      ? { body: new Uint8Array(readFileSync(file)), type: types[extname(path)] ?? types['.html'] }
      : undefined
  }
}

/**
 * What a page may load: files of this server, and of its inline scripts (the import map is one) those that stand in it now.
 * @param html the page
 */
export function contentSecurityPolicy(html: string): string {
  const inline = [...html.matchAll(/<script(?![^>]*\ssrc=)[^>]*>([\s\S]*?)<\/script>/g)].map(
    ([, script]) => `'sha256-${createHash('sha256').update(script).digest('base64')}'`,
  )
  return [
    "default-src 'none'",
    `script-src ${["'self'", ...inline].join(' ')}`,
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "font-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ')
}
