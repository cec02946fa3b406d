/**
 * The tape of reverse-mode differentiation: records the operations of a forward pass and runs their backward rules in reverse order.
 * - An operation is a function (tape, inputs) -> output. If the tape records and an input needs a gradient, it adds a node with its backward rule and
 *   keeps (`tensor.keep`) only what that rule reads.
 * - There are no second derivatives: `backward` consumes the tape and releases everything on the way.
 * - The tape only dispatches kernels and never waits, so the commands of a whole step can be recorded once and replayed (gpu.record).
 */
import { add } from '../kernels/elementwise/elementwise.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { times, type Count } from '../gpu/size.ts'
import { makeTensor, Tensor } from './tensor.ts'

interface Node {
  /** The tensor whose gradient the rule reads. Its values are not kept by this; a rule that needs them lists it in `kept`. */
  output: Tensor
  /** Tensors kept for the rule; dropped after it has run. */
  kept: Tensor[]
  /** The backward rule: adds to the gradients of the inputs, given that of the output. */
  backward: (dy: Tensor) => void
}

export class Tape {
  readonly gpu: Gpu
  /** False: a forward pass only, in which operations keep nothing. */
  readonly recording: boolean
  /** Whether this is the second run of a checkpointed function, which recomputes what its backward pass reads. Its output is not needed again. */
  readonly recomputing: boolean
  /** Results of `once` in a checkpointed function that keeps them: written by its first run, read by its second. */
  readonly #kept: Tensor[][] | undefined
  #taken = 0
  #nodes: Node[] = []
  /** The number of nodes at each cut. */
  #cuts: number[] = []

  /** @param run set by `checkpoint`: which of the two runs this is, and what the first one kept */
  constructor(gpu: Gpu, recording: boolean, run: { recomputing?: boolean; kept?: Tensor[][] } = {}) {
    this.gpu = gpu
    this.recording = recording
    this.recomputing = run.recomputing ?? false
    this.#kept = run.kept
  }

  /**
   * For tensors that are expensive to compute and small to keep. If a checkpointed function `keeps` them, its second run gets those of the first
   * instead of calling `make`. The caller always gets a reference to each. Both runs must make the same calls in the same order.
   */
  once(make: () => Tensor[]): Tensor[] {
    if (!this.#kept) return make()
    if (!this.recomputing) this.#kept.push(make())
    return this.#kept[this.#taken++].map((t) => t.keep())
  }

  /** Creates a tensor for an operation's output. */
  tensor(rows: Count, columns: number, label: string, needsGrad: boolean): Tensor {
    return makeTensor(this.gpu, rows, columns, label, needsGrad && this.recording)
  }

  /** Adds a node, if the tape records and `output` needs a gradient. `kept`: the tensors that `backward` reads. Returns `output`. */
  node(output: Tensor, kept: Tensor[], backward: (dy: Tensor) => void): Tensor {
    if (!this.recording || !output.needsGrad) return output
    for (const t of kept) t.keep()
    this.#nodes.push({ output, kept, backward })
    return output
  }

  /**
   * Adds a node for an elementwise operation that can recompute its output in the backward pass. Operations that read the output only in their own
   * backward rules need not keep it then (`Tensor.whenRecomputed`).
   * @param backward if `again` is true, it must also write the output's values to the buffer of `dy`, which it may then overwrite
   */
  nodeRecomputed(output: Tensor, kept: Tensor[], backward: (dy: Tensor, again: boolean) => void): Tensor {
    if (!this.recording || !output.needsGrad) return output
    const uses: ((values: Tensor) => void)[] = (output.whenRecomputed = [])
    return this.node(output, kept, (dy) => {
      if (uses.length === 0) return backward(dy, false)
      const own = this.ownGrad(dy)
      backward(own, true)
      for (const use of uses) use(own)
      own.drop()
    })
  }

  /** For a backward rule that did not keep `t`: calls `use` with its values, now or once recomputed. `kept`: other tensors that `use` reads. */
  withValues(t: Tensor, kept: Tensor[], use: (values: Tensor) => void): void {
    if (!t.whenRecomputed) return use(t)
    for (const other of kept) other.keep()
    t.whenRecomputed.push((values) => {
      use(values)
      this.done(...kept)
    })
  }

  /** Drops the caller's references. */
  done(...tensors: Tensor[]): void {
    for (const t of tensors) t.drop()
  }

  /** Where a kernel should write its part of dLoss/dt: to a new buffer, or (`accumulate`) to one that already holds a part, by adding to it. */
  gradOf(t: Tensor): { grad: Tensor; accumulate: boolean } {
    if (!t.grad) {
      t.grad = makeTensor(this.gpu, t.rows, t.columns, `d ${t.buffer.label}`)
      return { grad: t.grad, accumulate: false }
    }
    const own = this.ownGrad(t.grad)
    t.grad.drop()
    t.grad = own
    return { grad: own, accumulate: true }
  }

  /** A gradient that may be overwritten: `grad` itself, or a copy if something else reads it too (a residual path). The caller gets a reference. */
  ownGrad(grad: Tensor): Tensor {
    if (grad.references === 1) return grad.keep()
    const own = makeTensor(this.gpu, grad.rows, grad.columns, grad.buffer.label)
    this.gpu.copy(grad.buffer, 0, own.buffer, 0, times(grad.count, 4))
    return own
  }

  /** Passes a complete gradient tensor on: it becomes the gradient of `t`, or is added to it. The caller keeps its own reference. */
  giveGrad(t: Tensor, grad: Tensor): void {
    if (!t.needsGrad) return
    if (!t.grad) {
      t.grad = grad.keep()
      return
    }
    const sum = makeTensor(this.gpu, t.rows, t.columns, `d ${t.buffer.label}`)
    add(this.gpu, t.grad.buffer, grad.buffer, sum.buffer, t.count, t.columns)
    t.grad.drop()
    t.grad = sum
  }

  /** Ends a section of a plan (gpu.cut) here, and at the same place in the backward pass. */
  cut(): void {
    this.gpu.cut()
    if (this.recording) this.#cuts.push(this.#nodes.length)
  }

  /** Runs the backward pass, from all tensors that have a gradient (`giveGrad`). Gradients of parameters are added to their banks. */
  backward(): void {
    for (let node = this.#nodes.pop(); node; node = this.#nodes.pop()) {
      for (; this.#cuts.at(-1)! > this.#nodes.length; this.#cuts.pop()) this.gpu.cut()
      const grad = node.output.grad
      if (grad) {
        node.backward(grad)
        node.output.grad = undefined
        grad.drop()
      }
      for (const t of node.kept) t.drop()
    }
  }

  /** Drops everything recorded, for a forward pass without a backward pass. */
  discard(): void {
    for (const { kept } of this.#nodes) for (const t of kept) t.drop()
    this.#nodes = []
    this.#cuts = []
  }
}

/**
 * Gradient checkpointing (arXiv 1604.06174): runs `fn` and keeps only its input, then runs it again when its gradient is needed. `fn` must be a pure
 * function of its input and of parameters, and must not drop `x`. In the second run, its last product need not compute its values
 * (`Tape.recomputing`).
 * @param keeps whether to keep the results of `Tape.once` in `fn` as well, instead of recomputing them
 */
export function checkpoint(tape: Tape, x: Tensor, fn: (tape: Tape, x: Tensor) => Tensor, keeps = false): Tensor {
  if (!tape.recording) return fn(tape, x)
  const kept: Tensor[][] | undefined = keeps ? [] : undefined
  const plain = fn(new Tape(tape.gpu, false, { kept }), x)
  const y = new Tensor(plain.buffer, plain.rows, plain.columns, true)
  const dear = kept?.flat() ?? []
  tape.node(y, [x, ...dear], (dy) => {
    const again = new Tape(tape.gpu, true, { recomputing: true, kept })
    const input = new Tensor(x.buffer, x.rows, x.columns, x.needsGrad)
    const output = fn(again, input)
    again.giveGrad(output, dy)
    again.backward()
    again.done(output)
    if (input.grad) {
      tape.giveGrad(x, input.grad)
      input.grad.drop()
    }
  })
  tape.done(...dear)
  return y
}
