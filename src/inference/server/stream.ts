/** Server-sent events: one `data:` line each, with a final `data: [DONE]` if the API has that. */

import { jsonText } from './json.ts'

const encoder = new TextEncoder()

export interface SsePiece {
  /** The event's name, if the API names its events. */
  event?: string
  data: unknown
}

/**
 * A response body that sends what `pieces` yields. The next piece is requested when the client has read the earlier ones, and the generator is ended
 * when the client disconnects.
 * @param done whether the stream ends with `data: [DONE]`
 * @param gone called when the client disconnects
 * @param fault the event for an error in the middle of the stream, when the status was already sent
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
      // A waiting generator can be ended only through what it waits for.
      gone()
      await pieces.return(undefined)
    },
  })
  return stream
}

export const sseHeaders = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  // Otherwise nginx would buffer the events.
  'x-accel-buffering': 'no',
}
