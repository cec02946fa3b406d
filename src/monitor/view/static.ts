/**
 * The page's files: those of page/, and the libraries that it imports from node_modules, under /vendor/. Paths of requests are looked up in two lists
 * made at the start, and never become file paths.
 */
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** Files under /vendor/: the module as Node resolves it, and another file beside it where browsers need that one. */
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

/** The files of the page by request path. */
export class StaticFiles {
  /** File paths by request path. */
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

  /** The file for a request path ('/' is index.html), read each time; undefined where there is none. */
  get(path: string): StaticFile | undefined {
    const file = this.#paths.get(path === '/' ? '/index.html' : path)
    return file && existsSync(file)
      ? { body: new Uint8Array(readFileSync(file)), type: types[extname(path)] ?? types['.html'] }
      : undefined
  }
}

/**
 * The content security policy of a page: files of this server, and the inline scripts that it contains (the import map is one).
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
