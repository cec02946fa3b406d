/**
 * TensorBoard event files: `tensorboard/events.out.tfevents.*` in the run folder, so that `tensorboard --logdir outputs` shows all runs.
 * A file is a sequence of records: length (uint64), its masked CRC-32C, the bytes of an Event (a protocol buffer), their masked CRC-32C.
 */
import { mkdirSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { appendWhole } from '../files.ts'
import type { MetricsRow } from '../metrics-writer.ts'
import type { OpenSink, Sink, SinkState } from './types.ts'

export const openTensorboard: OpenSink = (run, state, rewound) => new TensorboardSink(run.path, state, rewound)

class TensorboardSink implements Sink {
  readonly #state: SinkState
  readonly #file: string
  #head: 'new' | 'after a rewind' | undefined

  constructor(path: string, state: SinkState, rewound: boolean) {
    const folder = join(path, 'tensorboard')
    mkdirSync(folder, { recursive: true })
    // A new file for each start, as the end of the last one may be cut off. Readers take files in the order of their names.
    const files = (Number(state.files) || 0) + 1
    this.#state = { files }
    const now = String(Math.floor(Date.now() / 1000)).padStart(10, '0')
    this.#file = join(folder, `events.out.tfevents.${now}.${hostname()}.${process.pid}.${files}`)
    this.#head = rewound ? 'after a rewind' : 'new'
  }

  send(rows: readonly MetricsRow[]): Promise<SinkState> {
    const records: Buffer[] = []
    if (this.#head) {
      const { time, step } = rows[0]
      records.push(record([wallTime(time), text(3, 'brain.Event:2')]))
      // SessionLog START: readers drop this step and later ones from earlier files.
      if (this.#head === 'after a rewind') records.push(record([wallTime(time), varint(2, step), bytes(7, varint(1, 1))]))
    }
    for (const { step, time, ...metrics } of rows) {
      const values = Object.entries(metrics).flatMap(([tag, value]) =>
        value === null ? [] : [bytes(1, Buffer.concat([text(1, tag), float(2, value)]))],
      )
      records.push(record([wallTime(time), varint(2, step), bytes(5, Buffer.concat(values))]))
    }
    // Readers stop at an incomplete record.
    appendWhole(this.#file, Buffer.concat(records))
    this.#head = undefined
    return Promise.resolve(this.#state)
  }

  finish(): Promise<void> {
    return Promise.resolve()
  }
}

/** Fields of a protocol buffer: field number and type, then the value. */
const key = (field: number, kind: number) => Buffer.from([(field << 3) | kind])
const varint = (field: number, value: number) => Buffer.concat([key(field, 0), leb(value)])
const bytes = (field: number, value: Buffer) => Buffer.concat([key(field, 2), leb(value.length), value])
const text = (field: number, value: string) => bytes(field, Buffer.from(value))

function float(field: number, value: number): Buffer {
  const out = Buffer.alloc(4)
  out.writeFloatLE(value)
  return Buffer.concat([key(field, 5), out])
}

function wallTime(seconds: number): Buffer {
  const out = Buffer.alloc(8)
  out.writeDoubleLE(seconds)
  return Buffer.concat([key(1, 1), out])
}

/** A varint: seven bits in each byte, lowest first; the top bit says that more follow. */
function leb(value: number): Buffer {
  const out: number[] = []
  let left = value
  while (left > 127) {
    out.push((left % 128) | 128)
    left = Math.floor(left / 128)
  }
  return Buffer.from([...out, left])
}

function record(fields: Buffer[]): Buffer {
  const data = Buffer.concat(fields)
  const [head, foot] = [Buffer.alloc(12), Buffer.alloc(4)]
  head.writeBigUInt64LE(BigInt(data.length))
  head.writeUInt32LE(masked(crc32c(head.subarray(0, 8))), 8)
  foot.writeUInt32LE(masked(crc32c(data)))
  return Buffer.concat([head, data, foot])
}

const masked = (crc: number): number => (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0

/** Table of the Castagnoli CRC of each byte. */
const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte
  for (let i = 0; i < 8; i++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1
  return crc
})

/** CRC-32C of bytes. */
export function crc32c(data: Uint8Array): number {
  let crc = 0xffffffff
  for (const byte of data) crc = table[(crc ^ byte) & 255] ^ (crc >>> 8)
  return (crc ^ 0xffffffff) >>> 0
}
