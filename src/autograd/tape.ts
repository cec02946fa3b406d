/**
 * The tape of reverse-mode differentiation: records what ran forward, so that it can be gone through backward.
 * - An operation is a function (tape, inputs) -> output; where the tape records and an input needs a gradient it leaves a node with
 *   its backward rule and keeps (`tensor.keep`) only what that rule reads.
 * - Nothing is differentiated twice: `backward` consumes the tape and frees everything as it goes.
 * - The tape only calls kernels; it never waits. So the commands of a whole step can be recorded once and replayed (gpu.record).
 */
import { add } from '../kernels/elementwise/elementwise.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { times, type Count } from '../gpu/size.ts'
import { makeTensor, Tensor } from './tensor.ts'

interface Node {
  /** The rule reads its gradient. Its values are not kept by this: a rule that needs them lists it in `kept`. */
  output: Tensor
  /** Tensors kept for the rule; dropped after it ran. */
  kept: Tensor[]
  /** The backward rule: adds to the gradients of the inputs, given that of the output. */
  backward: (dy: Tensor) => void
}

export class Tape {
  readonly gpu: Gpu
  /** False: a forward pass alone; operations keep nothing. */
  readonly recording: boolean
  /** Whether this is a checkpointed function's second run, which recomputes what its backward pass reads; its output is not needed again. */
  readonly recomputing: boolean
  /** Results of `once` in a checkpointed function that keeps them: its first run fills this, its second reads it. */
  readonly #kept: Tensor[][] | undefined
  #taken = 0
  #nodes: Node[] = []
  /** How many nodes there were at each cut. */
  #cuts: number[] = []

  /** @param run set by `checkpoint`: which of its two runs this is, and what the first one kept */
  constructor(gpu: Gpu, recording: boolean, run: { recomputing?: boolean; kept?: Tensor[][] } = {}) {
    this.gpu = gpu
    this.recording = recording
    this.recomputing = run.recomputing ?? false
    this.#kept = run.kept
  }

  /**
   * For tensors that are costly to compute and small to keep: where a checkpointed function `keeps` them, its second run gets those of the first
   * instead of calling `make`. Either way the caller has a reference to each. Both runs must make the same calls in the same order.
   */
  once(make: () => Tensor[]): Tensor[] {
    if (!this.#kept) return make()
    if (!this.recomputing) this.#kept.push(make())
    return this.#kept[this.#taken++].map((t) => t.keep())
  }

  /** A new tensor for an operation's output. */
  tensor(rows: Count, columns: number, label: string, needsGrad: boolean): Tensor {
    return makeTensor(this.gpu, rows, columns, label, needsGrad && this.recording)
  }

  /** Leaves a node. `kept` are the tensors that `backward` reads. */
  node(output: Tensor, kept: Tensor[], backward: (dy: Tensor) => void): Tensor {
    if (!this.recording || !output.needsGrad) return output
    for (const t of kept) t.keep()
    this.#nodes.push({ output, kept, backward })
    return output
  }

  /**
   * The node of an elementwise operation that can recompute its output on the way back, so that operations which read that output only in their
   * own backward rules need not keep it (`Tensor.whenRecomputed`).
   * @param backward with `again` it must also leave the output's values in the buffer of `dy`, which is then its own to overwrite
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

  /** For a backward rule that did not keep `t`: calls `use` with its values, now or when they are recomputed. `kept`: the other tensors that `use` reads. */
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

  /**
   * Where a kernel should put its part of dLoss/dt: a fresh buffer, or one that already holds a part and must be added to.
   */
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

  /** A gradient that may be overwritten: itself, or a copy where another reads it too (a residual path). The caller gets a reference. */
  ownGrad(grad: Tensor): Tensor {
    if (grad.references === 1) return grad.keep()
    const own = makeTensor(this.gpu, grad.rows, grad.columns, grad.buffer.label)
    this.gpu.copy(grad.buffer, 0, own.buffer, 0, times(grad.count, 4))
    return own
  }

  /** Hands over a whole gradient tensor: it becomes t's, or is added to t's. The caller keeps its own reference. */
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

  /** Ends a section of a plan (gpu.cut) here, and at the same place on the way back. */
  cut(): void {
    this.gpu.cut()
    if (this.recording) this.#cuts.push(this.#nodes.length)
  }

  /** Goes backward from the tensors that have a gradient by now (`giveGrad`). Parameters' gradients are added to their banks. */
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

  /** Forgets what was recorded (a forward pass that will have no backward). */
  discard(): void {
    for (const { kept } of this.#nodes) for (const t of kept) t.drop()
    this.#nodes = []
    this.#cuts = []
  }
}

/**
 * Gradient checkpointing (arXiv 1604.06174): runs `fn` keeping only its input, and runs it again when its gradient is asked for.
 * `fn` must be a pure function of its input and of parameters; it does not drop `x`. Its last product need not compute its values in the second
 * run (`Tape.recomputing`).
 * @param keeps whether what `fn` makes by `Tape.once` is kept as well instead of being recomputed
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
