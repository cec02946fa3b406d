/**
 * Holds an operation's gradients against central differences of the operation itself.
 * - The scalar is L = sum of w * y over all outputs, w random normals, summed on the host in float64; its gradient by y is w.
 * - An input is moved along a random direction u (normals): D(h) = (L(x + h u) - L(x - h u)) / 2h must be <dL/dx, u>, whose size is
 *   about ||dL/dx||. Three directions an input. A term that is missing, doubled or in the wrong place moves it by about ||dL/dx|| / sqrt(n)
 *   for each value it touches: over 1e-2 at the sizes of these tests.
 * - h: y is float32, so L is off by about 1e-7 sqrt(n) and D by 1e-7 / h of ||dL/dx||; the cubic term of L adds h^2 / 6, which
 *   Richardson's (4 D(h/2) - D(h)) / 3 takes away, leaving h^4. At h = 0.03 both are below 1e-5 for smooth operations; the bound of 1e-3
 *   leaves room for the softmaxes, whose higher derivatives are larger.
 */
import { expect } from 'vitest'
import { Random, hashSeed } from '../../src/common/random.ts'
import type { Parameter, ParameterStore } from '../../src/autograd/parameters.ts'
import { Tape } from '../../src/autograd/tape.ts'
import { Tensor } from '../../src/autograd/tensor.ts'
import type { Gpu } from '../../src/gpu/gpu.ts'
import { capacityOf } from '../../src/gpu/size.ts'
import { seed } from '../seed.ts'

const bound = 1e-3
const h = 0.03

export interface Operation {
  /** Rows and columns of the inputs that are tensors. */
  tensors: Record<string, [number, number]>
  /** Inputs that are parameters of `store`. */
  parameters?: { store: ParameterStore; byName: Record<string, Parameter> }
  /**
   * The operation. Leaves are kept by the test: it does not drop them, except those it `consumes` (operations in place).
   * A tensor that it makes for itself must be given back with tape.done.
   */
  forward: (tape: Tape, inputs: Record<string, Tensor>) => Tensor
  consumes?: string[]
  /** Called after a recording forward pass in place of giving y its gradient: for operations that do so themselves. */
  backward?: (dy: Tensor) => void
  /** The w to use, where the operation was given it already and has put its gradients where they belong. */
  projection?: Float32Array
  /** Called after every forward and backward pass. */
  after?: () => void
}

export class FiniteDifferences {
  readonly #gpu: Gpu
  readonly #random: Random
  readonly #name: string
  constructor(gpu: Gpu, name: string) {
    this.#gpu = gpu
    this.#name = name
    this.#random = new Random(hashSeed(seed, name))
  }

  normals(length: number, scale = 1): Float32Array {
    return Float32Array.from({ length }, () => this.#random.normal() * scale)
  }

  /** Random normals for every input, then the comparison; also that all memory is given back. */
  async check(operation: Operation): Promise<void> {
    const { tensors, parameters } = operation
    const values: Record<string, Float32Array> = {}
    for (const [name, [rows, columns]] of Object.entries(tensors)) values[name] = this.normals(rows * columns)
    for (const [name, p] of Object.entries(parameters?.byName ?? {})) {
      // As weights are: so that what comes out is of size 1.
      values[name] = this.normals(
        p.shape.reduce((a, b) => a * b, 1),
        p.shape.length === 2 ? 1 / Math.sqrt(p.shape[1]) : 1,
      )
    }
    const before = this.#gpu.pool.bytesInUse
    const y = await this.#output(operation, values)
    const w = operation.projection ?? this.normals(y.length)
    const gradients = await this.#gradients(operation, values, w)
    expect(this.#gpu.pool.bytesInUse, `bytes in use after '${this.#name}'`).toBe(before)
    for (const [name, gradient] of Object.entries(gradients)) {
      const norm = Math.sqrt(gradient.reduce((sum, g) => sum + g * g, 0))
      expect(Number.isFinite(norm) && norm > 0, `${name} has a gradient (DAWN_RL_TEST_SEED=${seed})`).toBe(true)
      for (let n = 0; n < 3; n++) {
        const u = this.normals(gradient.length)
        const along = async (step: number) => {
          const moved = async (t: number) => {
            const at = Float32Array.from(values[name], (x, i) => x + t * u[i])
            return dot(await this.#output(operation, { ...values, [name]: at }), w)
          }
          const [plus, minus] = [await moved(step), await moved(-step)]
          return (plus - minus) / (2 * step)
        }
        const slope = (4 * (await along(h / 2)) - (await along(h))) / 3
        const error = Math.abs(slope - dot(gradient, u)) / norm
        const words = `${this.#name}, ${name}: slope ${slope}, <gradient, u> ${dot(gradient, u)} (DAWN_RL_TEST_SEED=${seed})`
        expect(error, words).toBeLessThan(bound)
      }
    }
  }

  #leaves(operation: Operation, values: Record<string, Float32Array>): Record<string, Tensor> {
    const { tensors, parameters } = operation
    for (const [name, p] of Object.entries(parameters?.byName ?? {})) parameters!.store.write(p, padded(values[name], p))
    const leaf = ([name, [rows, columns]]: [string, [number, number]]) => {
      return [name, new Tensor(this.#gpu.upload(values[name], name), rows, columns, true)] as const
    }
    return Object.fromEntries(Object.entries(tensors).map(leaf))
  }

  #dropLeaves(operation: Operation, leaves: Record<string, Tensor>): void {
    for (const [name, leaf] of Object.entries(leaves)) {
      if (!operation.consumes?.includes(name)) leaf.drop()
      leaf.grad?.drop()
    }
  }

  async #output(operation: Operation, values: Record<string, Float32Array>): Promise<Float32Array> {
    const leaves = this.#leaves(operation, values)
    const y = operation.forward(new Tape(this.#gpu, false), leaves)
    const out = await this.#gpu.readF32(y.buffer, capacityOf(y.count))
    y.drop()
    this.#dropLeaves(operation, leaves)
    operation.after?.()
    return out
  }

  async #gradients(
    operation: Operation,
    values: Record<string, Float32Array>,
    w: Float32Array,
  ): Promise<Record<string, Float32Array>> {
    const { parameters } = operation
    const leaves = this.#leaves(operation, values)
    parameters?.store.zeroGradients()
    const tape = new Tape(this.#gpu, true)
    const y = operation.forward(tape, leaves)
    const dy = new Tensor(this.#gpu.upload(w, 'dy'), y.rows, y.columns, false)
    if (operation.backward) operation.backward(dy)
    else if (!operation.projection) tape.giveGrad(y, dy)
    tape.done(y, dy)
    tape.backward()
    const found: Record<string, Float32Array> = {}
    for (const [name, leaf] of Object.entries(leaves))
      found[name] = await this.#gpu.readF32(leaf.grad!.buffer, capacityOf(leaf.count))
    for (const [name, p] of Object.entries(parameters?.byName ?? {})) found[name] = await parameters!.store.read(p, 'gradients')
    this.#dropLeaves(operation, leaves)
    operation.after?.()
    return found
  }
}

function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i]
  return sum
}

/** A parameter's values with its padding (rank) as zeros. */
function padded(values: Float32Array, p: Parameter): Float32Array {
  const columns = p.shape.at(-1)!
  const out = new Float32Array(p.rows * p.columns)
  for (let r = 0; r * columns < values.length; r++) out.set(values.subarray(r * columns, (r + 1) * columns), r * p.columns)
  return out
}
