/**
 * Finds missing barriers. Between two barriers, software drivers run the invocations of a workgroup one after another, so a kernel that lacks a
 * barrier may still work: the other invocations find what invocation 0 wrote. In a shuffled kernel the last invocation runs first and neighbours are
 * far apart, workgroups run in reverse order, and workgroup memory starts as NaN. A correct kernel still gives the same bits.
 */

/**
 * Rewrites a kernel so that `local_invocation_index` and `workgroup_id` are permuted. If the kernel has subgroup operations, the invocations of a
 * subgroup stay together, in lane order.
 * @param source expanded WGSL
 * @param constants constants of the variant: the workgroup size may be one of them
 * @param subgroupSize of the adapter; 0 if it is not fixed, in which case kernels with subgroup operations keep the order of their invocations
 */
export function shuffled(source: string, constants: Record<string, number>, subgroupSize: number): string {
  const [head, sizeText, builtins] = /@workgroup_size\((\w+)\)\s*fn main\(([^{]*)\) \{/.exec(source) ?? []
  const [laneText, lane] = /@builtin\(local_invocation_index\) (\w+): u32/.exec(builtins ?? '') ?? []
  if (head === undefined || laneText === undefined) return source
  const size = constants[sizeText] ?? Number.parseInt(sizeText)
  const together = /\bsubgroup[A-Z_]/.test(source) ? subgroupSize || size : 1
  const units = size / together
  const [groupText, group] = /@builtin\(workgroup_id\) (\w+): vec3u/.exec(builtins) ?? []
  let parameters = builtins.replace(laneText, '@builtin(local_invocation_index) place_: u32')
  const lines = [
    `let ${lane} = (${units - 1}u - place_ / ${together}u) * ${strideOf(units)}u % ${units}u * ${together}u + place_ % ${together}u;`,
  ]
  if (groupText) {
    parameters = parameters.replace(groupText, '@builtin(workgroup_id) group_: vec3u, @builtin(num_workgroups) groups_: vec3u')
    lines.push(`let ${group} = groups_ - vec3u(1u) - group_;`)
  }
  for (const [, name, type, length] of source.matchAll(/var<workgroup> (\w+): array<(.+), ([^,]+)>;/g)) {
    const nan = /u(?:32)?$/.test(type) ? 'nan_' : 'bitcast<f32>(nan_)'
    lines.push(`for (var e_ = place_; e_ < ${length}; e_ += ${size}u) { ${name}[e_] = ${type}(${nan}); }`)
  }
  // The compiler rejects NaN constants, so this value depends on the invocation.
  if (lines.length > 1) lines.unshift('let nan_ = 0x7fc5a5a5u + place_ / 0x10000u;')
  lines.push('workgroupBarrier();')
  return source.replace(head, head.replace(builtins, parameters) + lines.join('\n'))
}

/** About three eighths of `n` and coprime to it, so that its multiples modulo `n` visit all of 0 .. n - 1. */
function strideOf(n: number): number {
  let stride = Math.floor((n * 3) / 8) + 1
  while (divisor(stride, n) > 1) stride++
  return stride
}

function divisor(a: number, b: number): number {
  return b === 0 ? a : divisor(b, a % b)
}
