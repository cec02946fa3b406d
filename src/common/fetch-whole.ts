/**
 * `fetch` that is over when the body is there. A client's time limit and retries end where the promise of its `fetch` does, which is at the headers:
 * so they hold for a body that never ends or breaks off, too.
 */
export async function fetchWhole(...asked: Parameters<typeof fetch>): Promise<Response> {
  const response = await fetch(...asked)
  const body = await response.arrayBuffer()
  // Where a status has no body, an empty one is refused.
  return new Response(body.byteLength > 0 ? body : null, response)
}
