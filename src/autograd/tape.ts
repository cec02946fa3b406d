/**
 * The tape: what ran forward, so that it can be gone through backward.
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
  /** Its gradient is read here; its values are kept by those alone who need them. */
  output: Tensor
  /** Tensors kept for the rule; dropped after it ran. */
  kept: Tensor[]
  /** Hands gradients to the inputs, given that of the output. */
  backward: (dy: Tensor) => void
}

export class Tape {
  readonly gpu: Gpu
  /** False: a forward pass alone; operations keep nothing. */
  readonly recording: boolean
  /** Whether this is the second run of what is checkpointed: for its backward pass alone, as its output is there already. */
  readonly again: boolean
  /** What a checkpointed run keeps: its first run puts it here, its second takes it (`once`). */
  readonly #kept: Tensor[][] | undefined
  #taken = 0
  #nodes: Node[] = []
  /** How many nodes there were at each cut. */
  #cuts: number[] = []

  /** @param run which run of what is checkpointed, and what it keeps */
  constructor(gpu: Gpu, recording: boolean, run: { again?: boolean; kept?: Tensor[][] } = {}) {
    this.gpu = gpu
    this.recording = recording
    this.again = run.again ?? false
    this.#kept = run.kept
  }

  /**
   * Tensors that are dear to make and small to keep: of a checkpointed run that keeps such, the second run has those of the first. As if `make` had just made them, with a
   * reference of the caller's to each; always the same calls, in the same order.
   */
  once(make: () => Tensor[]): Tensor[] {
    if (!this.#kept) return make()
    if (!this.again) this.#kept.push(make())
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
   * Leaves the node of an elementwise operation that makes its output again as it goes back (`Tensor.whenMadeAgain`), so that those who read the values only
   * to go back need not keep them.
   * @param backward gets dLoss/doutput, and whether it is to leave the values there; a buffer of its own where it is
   */
  nodeMadeAgain(output: Tensor, kept: Tensor[], backward: (dy: Tensor, again: boolean) => void): Tensor {
    if (!this.recording || !output.needsGrad) return output
    const uses: ((values: Tensor) => void)[] = (output.whenMadeAgain = [])
    return this.node(output, kept, (dy) => {
      if (uses.length === 0) return backward(dy, false)
      const own = this.ownGrad(dy)
      backward(own, true)
      for (const use of uses) use(own)
      own.drop()
    })
  }

  /** Calls `use` with the values of `t`: now, or once they are made again; `kept` are the other tensors that it reads. A rule calls it that did not keep `t`. */
  withValues(t: Tensor, kept: Tensor[], use: (values: Tensor) => void): void {
    if (!t.whenMadeAgain) return use(t)
    for (const other of kept) other.keep()
    t.whenMadeAgain.push((values) => {
      use(values)
      this.done(...kept)
    })
  }

  /** The forward code needs these no longer. */
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

  /** A gradient that may be written to: itself, or a copy where somebody else reads it too (a residual path). A reference of the caller's. */
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

  /** Others' commands may come in here (gpu.cut), and at the same place on the way back. */
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
 * `fn` must be a pure function of its input and of parameters; it does not drop `x`. Its last product may leave its values out of the second run (`Tape.again`).
 * @param keeps what `fn` makes by `once` is kept, too, and not made again
 */
export function checkpoint(tape: Tape, x: Tensor, fn: (tape: Tape, x: Tensor) => Tensor, keeps = false): Tensor {
  if (!tape.recording) return fn(tape, x)
  const kept: Tensor[][] | undefined = keeps ? [] : undefined
  const plain = fn(new Tape(tape.gpu, false, { kept }), x)
  const y = new Tensor(plain.buffer, plain.rows, plain.columns, true)
  const dear = kept?.flat() ?? []
  tape.node(y, [x, ...dear], (dy) => {
    const again = new Tape(tape.gpu, true, { again: true, kept })
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
