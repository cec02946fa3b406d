/** Loads a model without holding its upload twice. */
import type { Gpu } from '../gpu/gpu.ts'
import { loadDecoder, type LoadOptions, type ModelTensors } from '../model/decoder-load.ts'
import type { Decoder } from '../model/decoder.ts'

/** Bytes that may wait to be copied into their places. */
const waiting = 64 * 2 ** 20

/**
 * `loadDecoder` with a wait now and then: what was written to the device and not copied yet stays in memory of the driver, three times a model's size
 * if nothing waits.
 */
export async function loadSteadily(gpu: Gpu, files: ModelTensors, options: LoadOptions): Promise<Decoder> {
  const { tensors } = files
  let bytes = 0
  const read: typeof tensors.read = async (name, how) => {
    if (bytes > waiting) {
      bytes = 0
      await gpu.sync('loading')
    }
    const data = await tensors.read(name, how)
    bytes += data.data.byteLength
    return data
  }
  const wrapped = { ...files, tensors: { names: () => tensors.names(), has: (name: string) => tensors.has(name), shape: (name: string) => tensors.shape(name), read, close: () => tensors.close() } } // prettier-ignore
  const decoder = await loadDecoder(gpu, wrapped, options)
  await gpu.sync('loading')
  return decoder
}
