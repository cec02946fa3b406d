/**
 * A client of verifiers' environment server, over ZMQ and msgpack. A request has two frames, its id and its payload, and so has its reply. Many
 * requests can be in flight at once. An empty payload cancels the request with that id.
 */
import type { Dealer } from 'zeromq'
import { messageOf, UserError } from '../../common/errors.ts'

/** Fields that all replies have. */
export interface Reply {
  success: boolean
  error: string | null
  output?: unknown
  outputs?: unknown
}

interface Libraries {
  Dealer: typeof Dealer
  encode: (value: unknown) => Uint8Array
  decode: (bytes: Uint8Array) => unknown
}

let loading: Promise<Libraries> | undefined

/** Loads the two libraries, which are optional. @throws UserError if one is not installed */
async function libraries(): Promise<Libraries> {
  loading ??= Promise.all([import('zeromq'), import('@msgpack/msgpack')]).then(([{ Dealer }, { encode, decode }]) => ({
    Dealer,
    encode: (value) => encode(value),
    decode: (bytes) => decode(bytes),
  }))
  return await loading.catch((error: unknown) => {
    loading = undefined
    throw new UserError(
      `Python environments need the npm packages zeromq and @msgpack/msgpack (${messageOf(error)}). Install them: npm install zeromq@6.8.0 @msgpack/msgpack@3.1.3.`,
    )
  })
}

/** A connection to an environment server. */
export class EnvWire {
  readonly #socket: Dealer
  readonly #libraries: Libraries
  /** Sends are queued, as the socket accepts one at a time. */
  #sending: Promise<unknown> = Promise.resolve()
  #closed = false

  /**
   * Connects. The server may start later. `onReply` gets each reply, or undefined for one that cannot be decoded.
   * @throws UserError if a library is missing
   */
  static async open(address: string, onReply: (id: string, reply: Reply | undefined) => void): Promise<EnvWire> {
    const found = await libraries()
    const socket = new found.Dealer({ linger: 0, sendHighWaterMark: 0, receiveHighWaterMark: 0 })
    socket.connect(address)
    const wire = new EnvWire(socket, found)
    void wire.#receive(onReply)
    return wire
  }

  private constructor(socket: Dealer, found: Libraries) {
    this.#socket = socket
    this.#libraries = found
  }

  /** Encodes fields as a msgpack map. Values in `raw` are msgpack already. */
  static async pack(fields: Record<string, unknown>, raw: Record<string, Uint8Array> = {}): Promise<Uint8Array> {
    const { encode } = await libraries()
    const packed = Object.entries(fields).map(([key, value]) => [key, encode(value)] as const)
    const all = [...packed, ...Object.entries(raw)]
    return Buffer.concat([Buffer.from([0x80 | all.length]), ...all.flatMap(([key, bytes]) => [encode(key), bytes])])
  }

  /** Encodes a msgpack array of values that are msgpack already. */
  static packArray(items: readonly Uint8Array[]): Uint8Array {
    const head = Buffer.alloc(3)
    head[0] = 0xdc
    head.writeUInt16BE(items.length, 1)
    return Buffer.concat([head, ...items])
  }

  send(id: string, payload: Uint8Array): void {
    const frames = [Buffer.from(id), Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength)]
    // What can no longer be sent is sent again after the server's next start.
    this.#sending = this.#sending.then(() => (this.#closed ? undefined : this.#socket.send(frames))).catch(() => {})
  }

  cancel(id: string): void {
    this.send(id, new Uint8Array(0))
  }

  close(): void {
    this.#closed = true
    this.#socket.close()
  }

  async #receive(onReply: (id: string, reply: Reply | undefined) => void): Promise<void> {
    try {
      for await (const [id, payload] of this.#socket) onReply(id.toString(), this.#read(payload))
    } catch (error) {
      if (!this.#closed) throw error
    }
  }

  #read(payload: Uint8Array): Reply | undefined {
    try {
      const reply = this.#libraries.decode(payload) as Partial<Reply> | null
      return typeof reply?.success === 'boolean' ? (reply as Reply) : undefined
    } catch {
      return undefined
    }
  }
}
