/** Server-sent events: one `data:` line each, ended by `data: [DONE]` where the API has that. */

import { jsonText } from './json.ts'

const encoder = new TextEncoder()

export interface SsePiece {
  /** The event's name, where the API names its events. */
  event?: string
  data: unknown
}

/**
 * A body that sends what `pieces` yields. It asks for the next piece when the client has taken the last ones, and ends the generator when the client goes.
 * @param done whether the stream ends in `data: [DONE]`
 * @param gone is called when the client goes
 * @param fault what to send for an error in the middle, when the status has long gone out
 */
export function sse(
  pieces: AsyncGenerator<SsePiece>,
  { done, fault, gone }: { done: boolean; fault: (error: unknown) => SsePiece; gone: () => void },
): ReadableStream<Uint8Array> {
  const write = (controller: ReadableStreamDefaultController<Uint8Array>, { event, data }: SsePiece) =>
    controller.enqueue(encoder.encode(`${event === undefined ? '' : `event: ${event}\n`}data: ${jsonText(data)}\n\n`))
  let cancelled = false
  const end = (controller: ReadableStreamDefaultController<Uint8Array>) => {
    if (done) controller.enqueue(encoder.encode('data: [DONE]\n\n'))
    controller.close()
  }
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const next = await pieces.next()
        if (cancelled) return
        if (next.done) end(controller)
        else write(controller, next.value)
      } catch (error) {
        if (cancelled) return
        write(controller, fault(error))
        end(controller)
      }
    },
    async cancel() {
      cancelled = true
      // A generator that waits is only ended by what it waits for.
      gone()
      await pieces.return(undefined)
    },
  })
  return stream
}

export const sseHeaders = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  // nginx would keep the events back.
  'x-accel-buffering': 'no',
}
