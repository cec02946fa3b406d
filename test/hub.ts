/** A local server that answers as the Hugging Face hub does, with a single repository: owner/tiny. */
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, afterEach, beforeAll } from 'vitest'

/** Controls of the hub for tests. */
export interface TinyHub {
  /** The requests since the test began. */
  asked: { path: string; token: string | undefined }[]
  /** After this many requests of a test, connections break. */
  failAfter: number
  /** Whether files are sent by another host, as those of the hub are by its CDN. */
  cdn: boolean
  /** Whether byte ranges are answered, as by the hub. Some mirrors send the whole file. */
  ranges: boolean
  /** The status of the answer for a file, where it is not sent. */
  status: (path: string) => number | undefined
  /** What is sent for a file: its own bytes, unless a test says otherwise. */
  send: (path: string, data: Buffer) => Buffer
  /** The second half of a large file is sent when this resolves. */
  rest: Promise<void>
  /** Makes this process use the hub and the given cache until the test is over. */
  use(cache: string): void
}

/** Opens a hub that runs during the tests of the file or `describe` that calls this. */
export function openHub(kind: 'models' | 'datasets', sha: string, files: ReadonlyMap<string, Buffer>): TinyHub {
  const oid = (path: string) => createHash('sha1').update(path).digest('hex')
  const isLarge = (path: string) => /\.(?:safetensors|parquet)$/.test(path)
  const entry = (path: string) => ({
    type: 'file',
    path,
    size: files.get(path)?.length,
    oid: oid(path),
    ...(isLarge(path) && {
      lfs: { oid: createHash('sha256').update(files.get(path)!).digest('hex'), size: files.get(path)!.length, pointerSize: 1 },
    }),
    lastCommit: { id: sha, title: '', date: '' },
  })
  const api = `/api/${kind}/owner/tiny`
  /** The entries of a folder: files and folders. */
  const listed = (folder: string) => {
    const inside = [...files.keys()].filter((path) => path.startsWith(folder)).map((path) => path.slice(folder.length))
    const folders = new Set(inside.filter((path) => path.includes('/')).map((path) => folder + path.split('/')[0]))
    return [
      ...inside.filter((path) => !path.includes('/')).map((path) => entry(folder + path)),
      ...[...folders].map((path) => ({ type: 'directory', path, size: 0, oid: oid(path) })),
    ]
  }
  const server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://localhost')
    hub.asked.push({ path: pathname, token: request.headers.authorization })
    if (hub.asked.length > hub.failAfter) return void response.destroy()
    const send = (value: unknown) => response.setHeader('content-type', 'application/json').end(JSON.stringify(value))
    if ([`${api}/revision/main`, `${api}/revision/${sha}`].includes(pathname))
      return void send({ _id: '1', id: 'owner/tiny', sha, siblings: [], lastModified: new Date(0) })
    const tree = `${api}/tree/${sha}`
    if (pathname === tree && searchParams.get('recursive') === 'true') return void send([...files.keys()].map(entry))
    if (pathname.startsWith(tree)) return void send(listed(pathname === tree ? '' : `${pathname.slice(tree.length + 1)}/`))
    if (pathname === `${api}/paths-info/${sha}`) {
      let body = ''
      request.on('data', (chunk) => (body += String(chunk)))
      request.on('end', () => send((JSON.parse(body) as { paths: string[] }).paths.map(entry)))
      return
    }
    if (hub.cdn && !pathname.startsWith('/cdn/'))
      return void response.writeHead(302, { location: `http://localhost:${request.socket.localPort}/cdn${pathname}` }).end()
    if (hub.cdn) response.setHeader('x-cache', 'Hit from cloudfront')
    const path = decodeURIComponent(pathname)
      .replace(/^\/cdn(?=\/)/, '')
      .replace(`${kind === 'datasets' ? '/datasets' : ''}/owner/tiny/resolve/${sha}/`, '')
    const data = files.get(path)
    if (!data) return void response.writeHead(404, { 'X-Error-Code': 'RepoNotFound' }).end('{}')
    const status = hub.status(path)
    if (status !== undefined) return void response.writeHead(status).end()
    const [, from, to] = (hub.ranges && /bytes=(\d+)-(\d*)/.exec(request.headers.range ?? '')) || []
    response.setHeader('etag', `"${oid(pathname)}"`)
    if (from === undefined) {
      const sent = hub.send(path, data)
      response.write(sent.subarray(0, sent.length / 2))
      const rest = isLarge(path) ? hub.rest : Promise.resolve()
      return void rest.then(() => response.end(sent.subarray(sent.length / 2)))
    }
    if (Number(from) >= data.length) return void response.writeHead(416, { 'content-range': `bytes */${data.length}` }).end()
    const last = to ? Math.min(Number(to), data.length - 1) : data.length - 1
    response
      .writeHead(206, { 'content-range': `bytes ${from}-${last}/${data.length}` })
      .end(data.subarray(Number(from), last + 1))
  })
  const environment = { ...process.env }
  const hub: TinyHub = {
    asked: [],
    failAfter: Infinity,
    cdn: false,
    ranges: true,
    status: () => undefined,
    send: (_, data) => data,
    rest: Promise.resolve(),
    use(cache) {
      for (const name of [
        'HF_HOME',
        'HUGGINGFACE_HUB_CACHE',
        'HF_TOKEN',
        'HF_HUB_OFFLINE',
        'HF_DATASETS_OFFLINE',
        'TRANSFORMERS_OFFLINE',
      ])
        delete process.env[name]
      const HF_ENDPOINT = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
      Object.assign(process.env, { HF_HUB_CACHE: cache, HF_TOKEN_PATH: '/dev/null', HF_ENDPOINT })
    },
  }
  beforeAll(() => new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready)))
  afterEach(() => {
    process.env = { ...environment }
    hub.asked.length = 0
    hub.failAfter = Infinity
    hub.cdn = false
    hub.ranges = true
    hub.status = () => undefined
    hub.send = (_, data) => data
    hub.rest = Promise.resolve()
  })
  afterAll(() => void server.close())
  return hub
}
