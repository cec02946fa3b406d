/** The worker's side of pool.ts, the same in a thread and in a child process. */
import { parentPort } from 'node:worker_threads'

/** Messages of a worker: 'ready' once, then one for each call. */
export type WorkerReply = { ready: true } | { result: unknown } | { error: string }

/** Runs the methods that the pool asks for, one at a time. A worker whose pool is gone ends. */
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
