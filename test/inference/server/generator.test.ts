/**
 * `node cli.js serve` as the server that a run samples from ([inference] backend = "vllm", base_url): the suite of generators, with adapters
 * that are pushed by name and with full weights that are reloaded in place.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { UserError } from '../../../src/common/errors.ts'
import { Gpu } from '../../../src/gpu/gpu.ts'
import { VllmApi } from '../../../src/inference/vllm/api.ts'
import { VllmSampler } from '../../../src/inference/vllm/sampler.ts'
import { writeSamplerWeights } from '../../../src/trainer/sampler-weights.ts'
import { maxLength, openTrainer, rank, root, samplerOptions, scratch, tiny, underTest } from '../../vllm/helpers.ts'
import { moveAdapter, sampling } from '../helpers.ts'
import { testGenerator, type GeneratorUnderTest } from '../generator.suite.ts'

const gpu = await Gpu.open({ checks: true })
const folder = scratch()
const children: ChildProcess[] = []
afterAll(async () => {
  for (const child of children) {
    child.kill('SIGTERM')
    await new Promise((resolve) => child.once('exit', resolve))
  }
  gpu.close()
  folder.remove()
})

/** Starts a server over a folder's model; its URL. */
async function serve(model: string): Promise<string> {
  const flags = {
    model, 'served-model-name': 'base', port: 0, 'adapter-root': folder.path, 'max-loras': 2, 'max-lora-rank': rank, 'max-model-len': maxLength,
    'max-num-seqs': 16, 'logprobs-mode': 'processed_logprobs', 'generation-config': 'vllm',
  } // prettier-ignore
  const words = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)])
  const child = spawn(process.execPath, ['cli.js', 'serve', ...words], { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
  children.push(child)
  let said = ''
  child.stderr!.on('data', (piece: Buffer) => (said = (said + piece.toString()).slice(-4000)))
  for await (const line of createInterface({ input: child.stdout! })) {
    const url = /http:\/\/[\d.:]+/.exec(line)?.[0]
    if (url) return url
  }
  throw new Error(`the server ended: ${said}`)
}

/** A server in front of another one. What `first` answers, or ends, does not get there. */
async function inFrontOf(
  url: string,
  first: (request: IncomingMessage, response: ServerResponse) => Promise<void> | void,
): Promise<{ url: string; close: () => void }> {
  const front = createServer(async (request, response) => {
    await first(request, response)
    if (response.writableEnded || response.destroyed) return
    const { method, headers } = request
    const onward = httpRequest(`${url}${request.url}`, { method, headers }, (answer) => {
      response.writeHead(answer.statusCode!, answer.headers)
      answer.pipe(response)
    })
    request.pipe(onward.on('error', () => response.destroy()))
    response.on('close', () => onward.destroy())
  })
  await once(front.listen(0, '127.0.0.1'), 'listening')
  return { url: `http://127.0.0.1:${(front.address() as AddressInfo).port}`, close: () => void front.close() }
}

let opened: { sampler: VllmSampler; url: string }

async function open(kind: 'lora' | 'full'): Promise<GeneratorUnderTest> {
  const trainer = await openTrainer(gpu, kind)
  const url = await serve(tiny)
  const sampler = await VllmSampler.open(samplerOptions(trainer, { url }, join(folder.path, kind)), 0)
  opened = { sampler, url }
  // The same kernels answer that train, whatever else is in the batch: not a bit is different, over HTTP too.
  return { ...underTest(trainer, sampler), batchInvariant: true, bound: 0, close: async () => {} }
}

describe('adapters by name', () => {
  testGenerator('our server with adapters', () => open('lora'))

  it('that the server was not started for are refused with what to start it with', async () => {
    const { url } = opened
    const wide = await openTrainer(gpu, 'lora', 2 * rank)
    const ranks = VllmSampler.open(samplerOptions(wide, { url }, join(folder.path, 'wide'), { runName: 'wide' }), 0)
    await expect(ranks).rejects.toThrow(/rank 16.*--max-lora-rank 16/)
    wide.decoder.release()
    const elsewhere = scratch()
    const trainer = await openTrainer(gpu, 'lora')
    const outside = VllmSampler.open(samplerOptions(trainer, { url }, elsewhere.path, { runName: 'outside' }), 0)
    await expect(outside).rejects.toThrow(UserError)
    await expect(outside).rejects.toThrow(/refuses to open the weights.*--adapter-root/)
    trainer.decoder.release()
    elsewhere.remove()
  })

  it('leave with the sampler, which ends the requests that run', async () => {
    const { sampler, url } = opened
    const begun = Promise.withResolvers<void>()
    const promptIds = [5, 6, 7]
    const long = sampler.generate({ promptIds, sampling: sampling({ max_tokens: 400 }), onToken: () => begun.resolve() })
    const ended = expect(long).rejects.toThrow('the sampler was closed')
    await begun.promise
    const names = async () => (await new VllmApi(url).models()).filter((card) => card.parent).map((card) => card.id)
    expect(await names()).toHaveLength(1)
    await sampler.close()
    await ended
    await expect(sampler.generate({ promptIds, sampling: sampling() })).rejects.toThrow('the sampler was closed')
    expect(await names()).toEqual([])
    expect(await new VllmApi(url).healthy()).toBe(true)
  })

  it("that a killed run left under a run's names are not taken for its own, nor keep their places", async () => {
    const { url } = opened
    const api = new VllmApi(url)
    const trainer = await openTrainer(gpu, 'lora')
    const write = async (name: string) => {
      await writeSamplerWeights(join(folder.path, name), trainer.decoder, trainer.weights)
      return join(folder.path, name)
    }
    await moveAdapter(trainer.decoder, 7)
    for (const name of ['again-v000001', 'again-v000002']) await api.loadAdapter(name, await write(name), 60_000)
    await moveAdapter(trainer.decoder, 0)
    const again = await VllmSampler.open(samplerOptions(trainer, { url }, join(folder.path, 'again'), { runName: 'again' }), 0)
    await moveAdapter(trainer.decoder, 1)
    await again.push(1)
    await again.close()
    expect((await api.models()).filter((card) => card.parent)).toEqual([])
    trainer.decoder.release()
  })

  it('go to a server that lost them while others are pushed: one after the other, and never from a folder that is gone', async () => {
    const { url } = opened
    const direct = new VllmApi(url)
    const trainer = await openTrainer(gpu, 'lora')
    // One answer is held back: the last that is waited for before the lost weights are loaded anew.
    let lists = NaN
    const held = Promise.withResolvers<void>()
    const release = Promise.withResolvers<void>()
    const where = await inFrontOf(url, async (request) => {
      if (request.url !== '/v1/models' || ++lists !== 3) return
      held.resolve()
      await release.promise
    })
    const sampler = await VllmSampler.open(samplerOptions(trainer, where, join(folder.path, 'lost'), { runName: 'lost' }), 0)
    const ask = () =>
      sampler.generate({ promptIds: trainer.encode('Reverse the text: lost'), sampling: sampling({ max_tokens: 2 }) })
    try {
      await direct.unloadAdapter('lost-v000000')
      lists = 0
      const asked = ask()
      await held.promise
      await moveAdapter(trainer.decoder, 1)
      const pushed = sampler.push(1)
      // Time enough for the push, if it did not wait.
      await Promise.race([pushed, sleep(3000)])
      release.resolve()
      await Promise.all([asked, pushed])
      expect((await ask()).versions).toEqual([1, 1])
      expect(sampler.gone).toBe(false)
    } finally {
      release.resolve()
      await sampler.close()
      where.close()
      trainer.decoder.release()
    }
  })

  it('are where they were after a server that had no time for a moment, and a run that gave it up finds it again', async () => {
    const trainer = await openTrainer(gpu, 'lora')
    let [lost, busy] = [0, 0]
    const where = await inFrontOf(opened.url, (request, response) => {
      if (request.url === '/v1/completions' && lost-- > 0) response.destroy()
      if (request.url === '/v1/models' && busy-- > 0) response.writeHead(503).end()
    })
    const sampler = await VllmSampler.open(samplerOptions(trainer, where, join(folder.path, 'busy'), { runName: 'busy' }), 0)
    const ask = () =>
      sampler.generate({ promptIds: trainer.encode('Reverse the text: busy'), sampling: sampling({ max_tokens: 2 }) })
    try {
      const first = await ask()
      ;[lost, busy] = [1, 1]
      expect(await ask()).toEqual(first)
      expect(sampler).toMatchObject({ gone: false, stats: { retried: 1, restarts: 0 } })
      ;[lost, busy] = [1, 100]
      await expect(ask()).rejects.toThrow(/v1\/models.* answered 503/)
      // A step whose rollouts all failed is played again, but only if its sampler is not gone for good.
      expect(sampler.gone).toBe(false)
      busy = 0
      expect(await ask()).toEqual(first)
      expect(sampler.gone).toBe(false)
      // It knows of its adapter all the same.
      await sampler.close()
      expect((await new VllmApi(opened.url).models()).filter((card) => card.parent)).toEqual([])
    } finally {
      await sampler.close()
      where.close()
      trainer.decoder.release()
    }
  })

  it('are pushed again to a server that came back without them before they were probed, with pauses where it stays ill', async () => {
    const trainer = await openTrainer(gpu, 'lora')
    const direct = new VllmApi(opened.url)
    let [ill, probes, forgets, pages] = [false, 0, false, 0]
    const where = await inFrontOf(opened.url, async (request, response) => {
      if (request.url !== '/v1/completions') return
      probes++
      if (ill) response.writeHead(500).end()
      if (pages-- > 0) response.writeHead(200, { 'content-type': 'text/html' }).end('<html>back soon</html>')
      if (forgets) for (const version of [0, 1]) await direct.unloadAdapter(`ill-v00000${version}`)
      forgets = false
    })
    const options = { ...samplerOptions(trainer, where, join(folder.path, 'ill'), { runName: 'ill' }), pushMs: 3000 }
    const sampler = await VllmSampler.open(options, 0)
    try {
      await moveAdapter(trainer.decoder, 1)
      forgets = true
      await sampler.push(1)
      expect(sampler.version).toBe(1)
      expect((await direct.models()).map(({ id }) => id)).toContain('ill-v000001')
      await moveAdapter(trainer.decoder, 2)
      pages = 1
      await sampler.push(2)
      ;[ill, probes] = [true, 0]
      await expect(sampler.push(3)).rejects.toThrow(/v1\/completions.* answered 500/)
      expect(probes).toBeGreaterThan(1)
      expect(probes).toBeLessThan(10)
    } finally {
      await sampler.close()
      where.close()
      trainer.decoder.release()
    }
  })

  it('are pushed until the push has no time left, also while the server has none for a revival', async () => {
    const trainer = await openTrainer(gpu, 'lora')
    let [lost, busy] = [0, 0]
    const where = await inFrontOf(opened.url, (request, response) => {
      if (request.url === '/v1/completions' && lost-- > 0) response.writeHead(503).end()
      if (request.url === '/v1/models' && busy-- > 0) response.writeHead(503).end()
    })
    const options = { ...samplerOptions(trainer, where, join(folder.path, 'late'), { runName: 'late' }), pushMs: 4000 }
    const sampler = await VllmSampler.open(options, 0)
    const ask = () =>
      sampler.generate({ promptIds: trainer.encode('Reverse the text: late'), sampling: sampling({ max_tokens: 2 }) })
    try {
      await moveAdapter(trainer.decoder, 1)
      // A revival gives up after four times.
      ;[lost, busy] = [1, 4]
      await sampler.push(1)
      expect({ version: sampler.version, busy }).toEqual({ version: 1, busy: 0 })
      expect((await ask()).versions).toEqual([1, 1])
      expect(sampler.gone).toBe(false)
      ;[lost, busy] = [Infinity, Infinity]
      const begin = performance.now()
      await expect(sampler.push(2)).rejects.toThrow(/v1\/completions.* answered 503/)
      expect(performance.now() - begin).toBeGreaterThan(4000)
      ;[lost, busy] = [0, 0]
      expect((await ask()).versions).toEqual([1, 1])
    } finally {
      ;[lost, busy] = [0, 0]
      await sampler.close()
      where.close()
      trainer.decoder.release()
    }
  })

  it('are not waited for between two tries by a request that is aborted', async () => {
    const trainer = await openTrainer(gpu, 'lora')
    let [ill, failed] = [false, 0]
    const third = Promise.withResolvers<void>()
    const where = await inFrontOf(opened.url, (request, response) => {
      if (request.url !== '/v1/completions' || !ill) return
      response.writeHead(500).end()
      if (++failed === 3) third.resolve()
    })
    const sampler = await VllmSampler.open(samplerOptions(trainer, where, join(folder.path, 'given'), { runName: 'given' }), 0)
    ill = true
    const giveUp = new AbortController()
    const asked = sampler.generate({ promptIds: [5, 6, 7], sampling: sampling({ max_tokens: 2 }), signal: giveUp.signal })
    try {
      await third.promise
      // Into the pause before the fourth try, which is of 2 s.
      await sleep(500)
      giveUp.abort()
      expect(await Promise.race([asked, sleep(1000)])).toMatchObject({ ids: [], finishReason: 'abort' })
      expect(failed).toBe(3)
    } finally {
      await sampler.close()
      where.close()
      trainer.decoder.release()
    }
  })

  it('go to a server that fails each thing once while the run starts, which is told and asked again', async () => {
    const trainer = await openTrainer(gpu, 'lora')
    const asked = new Set<string>()
    const where = await inFrontOf(opened.url, (request, response) => {
      if (asked.has(request.url!) || /health|unload/.test(request.url!)) return
      asked.add(request.url!)
      response.writeHead(500).end()
    })
    const told: string[] = []
    const options = samplerOptions(trainer, where, join(folder.path, 'first'), {
      runName: 'first',
      log: (line) => told.push(line),
    })
    const sampler = await VllmSampler.open(options, 0)
    expect(sampler.stats.server).toMatch(/^dawn-rl \d/)
    const paths = ['version', 'v1/models', 'v1/completions', 'v1/load_lora_adapter', 'metrics']
    expect([...asked]).toEqual(paths.map((path) => `/${path}`))
    expect(told.join()).toMatch(/\/version of http.* answered 500.*; asking again for up to 30 s.*load_lora_adapter/)
    await sampler.close()
    where.close()
    trainer.decoder.release()
  })

  it('that a server stops answering for in the midst of an answer are told with the status that stands there', async () => {
    const trainer = await openTrainer(gpu, 'lora')
    let ill = false
    const said =
      'data: {"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}'
    const where = await inFrontOf(opened.url, (request, response) => {
      if (request.url === '/v1/completions' && ill)
        response.writeHead(200, { 'content-type': 'text/event-stream' }).end(`${said}\n\ndata: [DONE]\n\n`)
    })
    const sampler = await VllmSampler.open(samplerOptions(trainer, where, join(folder.path, 'midst'), { runName: 'midst' }), 0)
    ill = true
    const asked = sampler.generate({ promptIds: [5, 6, 7], sampling: sampling({ max_tokens: 2 }) })
    await expect(asked).rejects.toThrow(/completions of .* answered 500: EngineCore encountered an issue\./)
    ill = false
    await sampler.close()
    where.close()
    trainer.decoder.release()
  })

  it('give their places back to a server that did not hear it at first, or for which another one answered', async () => {
    const trainer = await openTrainer(gpu, 'lora')
    const failing = [(to: ServerResponse) => to.destroy(), (to: ServerResponse) => to.writeHead(429).end()]
    let [lost, page] = [0, 0]
    const where = await inFrontOf(opened.url, (request, response) => {
      if (request.url === '/v1/unload_lora_adapter') failing.pop()?.(response)
      if (request.url === '/v1/completions' && lost-- > 0) response.destroy()
      if (request.url === '/v1/models' && page-- > 0)
        response.writeHead(200, { 'content-type': 'text/html' }).end('<html>back soon</html>')
    })
    const sampler = await VllmSampler.open(samplerOptions(trainer, where, join(folder.path, 'deaf'), { runName: 'deaf' }), 0)
    const names = async () =>
      (await new VllmApi(opened.url).models()).filter((card) => card.parent).map((card) => card.id.slice('deaf-v'.length))
    try {
      for (const version of [1, 2]) {
        await moveAdapter(trainer.decoder, version)
        // At once after the one before: the first has left its place by then, or is waited for.
        await sampler.push(version)
      }
      await vi.waitFor(async () => expect(await names()).toEqual(['000002']), { timeout: 20_000 })
      expect(failing).toEqual([])
      ;[lost, page] = [1, 2]
      const { versions } = await sampler.generate({
        promptIds: trainer.encode('Reverse the text: deaf'),
        sampling: sampling({ max_tokens: 2 }),
      })
      expect(versions).toEqual([2, 2])
      // Nor at the end.
      page = 1
      failing.push((to) => to.destroy())
      await sampler.close()
      expect({ left: await names(), failing }).toEqual({ left: [], failing: [] })
    } finally {
      await sampler.close()
      where.close()
      trainer.decoder.release()
    }
  })
})

describe('full weights', () => {
  testGenerator('our server with full weights', () => open('full'))

  it('go to a server that an earlier run left with its own, and paused in the midst of a push', { timeout: 60_000 }, async () => {
    const { url, sampler } = opened
    expect(sampler.version).toBeGreaterThan(0)
    await sampler.close()
    const trainer = await openTrainer(gpu, 'full')
    await new VllmApi(url).pause(5000)
    const next = await VllmSampler.open(samplerOptions(trainer, { url }, join(folder.path, 'next')), 0)
    const { prompts, score } = underTest(trainer, next)
    const { ids, logprobs } = await next.generate({
      promptIds: prompts[0],
      sampling: sampling({ max_tokens: 8, temperature: 1 }),
    })
    expect(logprobs).toEqual([...(await score(prompts[0], ids, 1))])
    await next.close()
    trainer.decoder.release()
  })

  it('sample nothing before they have their name, nor with keys and values of other weights', async () => {
    const { url } = opened
    const trainer = await openTrainer(gpu, 'full')
    const salts: string[] = []
    let [unnamed, hold] = [0, false]
    const [probed, release] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const where = await inFrontOf(url, async (request, response) => {
      if (request.url === '/inference/v1/generate')
        request.on('data', (body: Buffer) => salts.push(/"cache_salt":"(.*?)"/.exec(body.toString())![1])).pause()
      if (request.url === '/update_weight_version' && unnamed-- > 0) response.destroy()
      if (request.url !== '/v1/completions' || !hold) return
      probed.resolve()
      await release.promise
    })
    const open = (name: string) => VllmSampler.open(samplerOptions(trainer, where, join(folder.path, name)), 0)
    const sampler = await open('named')
    const ask = (max_tokens: number) =>
      sampler.generate({ promptIds: trainer.encode('Reverse: named'), sampling: sampling({ max_tokens, ignore_eos: true }) })
    try {
      salts.length = 0
      await ask(2)
      ;[unnamed, hold] = [1, true]
      await moveAdapter(trainer.decoder, 1)
      const long = ask(400)
      await vi.waitFor(() => expect(salts).toHaveLength(2))
      const pushed = sampler.push(1)
      await probed.promise
      expect((await ask(2)).versions).toEqual([1, 1])
      release.resolve()
      await pushed
      expect([...new Set((await long).versions)]).toEqual([0, 1])
      await sampler.close()
      await moveAdapter(trainer.decoder, 0)
      const again = await open('again')
      await again.generate({ promptIds: [5, 6], sampling: sampling({ max_tokens: 1 }) })
      await again.close()
      // Both of version 0; one after the push, of version 1; of another run.
      expect(salts[1]).toBe(salts[0])
      expect(new Set([salts[0], salts[2], salts.at(-1)]).size).toBe(3)
    } finally {
      release.resolve()
      await sampler.close()
      where.close()
      trainer.decoder.release()
    }
  })

  it('are sampled from again after a revival that could not let generation go on', async () => {
    const { url } = opened
    const trainer = await openTrainer(gpu, 'full')
    let [lost, busy, named] = [0, 0, false]
    const where = await inFrontOf(url, (request, response) => {
      if (request.url === '/inference/v1/generate' && lost-- > 0) response.destroy()
      // Resuming is also how a run finds out what a server can do, before weights are loaded.
      if (request.url === '/resume' && named && busy-- > 0) response.writeHead(503).end()
      named = request.url === '/update_weight_version'
    })
    const sampler = await VllmSampler.open(samplerOptions(trainer, where, join(folder.path, 'frozen')), 0)
    const ask = (signal?: AbortSignal) =>
      sampler.generate({ promptIds: trainer.encode('Reverse: frozen'), sampling: sampling({ max_tokens: 4 }), signal })
    try {
      const first = await ask()
      await new VllmApi(url).nameWeights("another server's")
      // A revival gives up after four times.
      ;[lost, busy] = [1, 4]
      await expect(ask()).rejects.toThrow(/resume.* answered 503/)
      expect(busy).toBe(0)
      expect(await ask(AbortSignal.timeout(5000))).toEqual(first)
      expect(sampler.gone).toBe(false)
    } finally {
      await sampler.close()
      await new VllmApi(url).resume()
      where.close()
      trainer.decoder.release()
    }
  })
})
