/** The tiny model that ships, an engine over it, and servers over that on loopback. */
import { request as httpRequest } from 'node:http'
import { connect } from 'node:net'
import { join } from 'node:path'
import OpenAI from 'openai'
import { afterAll, expect, vi } from 'vitest'
import { Gpu } from '../../../src/gpu/gpu.ts'
import { Engine, type EngineOptions } from '../../../src/inference/engine.ts'
import type { ServerOptions, ServerParts } from '../../../src/inference/server/parts.ts'
import { startServer, type RunningServer } from '../../../src/inference/server/server.ts'
import { loadDecoder } from '../../../src/model/decoder/load.ts'
import type { Decoder } from '../../../src/model/decoder/decoder.ts'
import { openModel } from '../../../src/model/files/open.ts'
import type { Tokenizer } from '../../../src/model/tokenizer/tokenizer.ts'

export const tinyPath = join(import.meta.dirname, '../../../models/tiny')

/** A line of the log. */
export interface Line {
  level: string
  fields: Record<string, unknown>
  message: string
}

export class Tiny {
  readonly gpu: Gpu
  readonly decoder: Decoder
  readonly engine: Engine
  readonly tokenizer: Tokenizer
  readonly lines: Line[] = []
  readonly #servers: RunningServer[] = []

  constructor(gpu: Gpu, decoder: Decoder, engine: Engine, tokenizer: Tokenizer) {
    Object.assign(this, { gpu, decoder, engine, tokenizer })
    this.gpu = gpu
    this.decoder = decoder
    this.engine = engine
    this.tokenizer = tokenizer
  }

  static async open(options: Partial<EngineOptions> = {}): Promise<Tiny> {
    const gpu = await Gpu.open({ checks: true })
    const files = await openModel(tinyPath)
    const tokenizer = await files.tokenizer()
    const decoder = await loadDecoder(gpu, files)
    files.close()
    const engine = new Engine(decoder, {
      maxSequences: 8,
      maxLength: 512,
      eosTokenIds: files.config.eosTokenIds,
      decode: (ids, options) => tokenizer.decode(ids, options),
      ...options,
    })
    const tiny = new Tiny(gpu, decoder, engine, tokenizer)
    afterAll(() => tiny.close())
    return tiny
  }

  /** A server of its own. */
  async serve(options: ServerOptions = {}, more: Partial<ServerParts> = {}): Promise<RunningServer & { client: OpenAI }> {
    const note = (level: string) => (fields: object | string, message?: string) => {
      if (typeof fields === 'string') this.lines.push({ level, fields: {}, message: fields })
      else this.lines.push({ level, fields: fields as Record<string, unknown>, message: message ?? '' })
    }
    const log = { debug: note('debug'), info: note('info'), warn: note('warn'), error: note('error'), child: () => log }
    const { config } = this.decoder
    const parts: ServerParts = {
      names: ['tiny'],
      root: tinyPath,
      tokenizer: this.tokenizer,
      vocabulary: config.vocabSize,
      eosTokenIds: config.eosTokenIds,
      log,
      version: '0.0.0-test',
      reloadWeights: async (dir) => {
        const files = await openModel(dir ?? tinyPath)
        try {
          await this.engine.reloadWeights(files)
        } finally {
          files.close()
        }
      },
      ...more,
    }
    const server = await startServer(this.engine, parts, options)
    this.#servers.push(server)
    const client = new OpenAI({
      baseURL: `${server.url}/v1`,
      apiKey: options.apiKeys?.[0] ?? 'none',
      maxRetries: 0,
      logLevel: 'off',
    })
    return { ...server, client }
  }

  /** Nothing runs, waits or holds a page, now or in a moment. */
  async expectIdle(): Promise<void> {
    await vi.waitFor(() => expect(this.engine.stats()).toMatchObject({ running: 0, waiting: 0, kvRowsUsed: 0 }), {
      timeout: 20_000,
    })
  }

  async close(): Promise<void> {
    for (const server of this.#servers) await server.close()
    await this.engine.close()
    this.decoder.release()
    this.gpu.close()
  }
}

export interface Answer {
  status: number
  headers: Headers
  text: string
  // oxlint-disable-next-line no-explicit-any -- tests look into answers of all shapes
  json: any
}

/** A request as curl would send it; an object is sent as JSON. */
export async function ask(
  url: string,
  body?: unknown,
  init: Omit<RequestInit, 'headers'> & { headers?: Record<string, string> } = {},
): Promise<Answer> {
  const sent = body === undefined ? {} : { method: 'POST', body: typeof body === 'string' ? body : JSON.stringify(body) }
  const response = await fetch(url, {
    ...sent,
    ...init,
    headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...init.headers },
  })
  const text = await response.text()
  let json: unknown
  try {
    json = JSON.parse(text)
  } catch {
    // not every answer is JSON
  }
  return { status: response.status, headers: response.headers, text, json }
}

/** Expects OpenAI's shape of errors, and nothing of our insides in it. */
export function expectError(
  answer: Pick<Answer, 'status' | 'json' | 'text'>,
  status: number,
  words: RegExp,
  param: string | null = null,
): void {
  expect({ status: answer.status, text: answer.text }).toMatchObject({ status })
  expect(answer.json).toEqual({
    error: { message: expect.stringMatching(words), type: expect.stringMatching(/Error$/), param, code: status },
  })
  expect(answer.text).not.toMatch(/\.ts\b|node_modules|at Object|\n\s+at /)
}

/** GET with headers that fetch would not send. */
export async function rawGet(
  url: string,
  headers: Record<string, string>,
  method = 'GET',
): Promise<{ status: number; text: string; headers: Record<string, unknown> }> {
  return await new Promise((resolve, reject) => {
    const request = httpRequest(url, { method, headers }, (response) => {
      let text = ''
      response.on('data', (piece: Buffer) => (text += piece.toString()))
      response.on('end', () => resolve({ status: response.statusCode!, text, headers: response.headers }))
    })
    request.on('error', reject)
    request.end()
  })
}

/** Bytes over a bare connection; what came back until the other side closed it. */
export async function rawBytes(url: string, pieces: (string | Uint8Array)[], pauseMs = 0): Promise<string> {
  const { hostname, port } = new URL(url)
  return await new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname)
    let text = ''
    socket.on('data', (piece) => (text += piece.toString()))
    socket.on('close', () => resolve(text))
    socket.on('error', (error: NodeJS.ErrnoException) =>
      error.code === 'ECONNRESET' || error.code === 'EPIPE' ? resolve(text) : reject(error),
    )
    void (async () => {
      for (const piece of pieces) {
        if (!socket.writable) return
        socket.write(piece)
        await new Promise((done) => setTimeout(done, pauseMs))
      }
    })()
  })
}
