/** The worker's side of pool.ts, for both threads and child processes. */
import { parentPort } from 'node:worker_threads'

/** Messages from a worker: 'ready' once, then one for each call. */
export type WorkerReply = { ready: true } | { result: unknown } | { error: string }

/** Runs the methods that the pool calls, one at a time. Exits when the pool is gone. */
export function serve(methods: Record<string, (...args: never[]) => unknown>): void {
  const reply = (message: WorkerReply) => (parentPort ? parentPort.postMessage(message) : process.send?.(message))
  const run = async ({ method, args }: { method: string; args: never[] }) => {
    try {
      reply({ result: await methods[method](...args) })
    } catch (error) {
      reply({ error: error instanceof Error ? error.message : String(error) })
    }
  }
  if (parentPort) parentPort.on('message', (call) => void run(call))
  else {
    process.on('message', (call) => void run(call as never))
    process.on('disconnect', () => process.exit())
  }
  reply({ ready: true })
}
