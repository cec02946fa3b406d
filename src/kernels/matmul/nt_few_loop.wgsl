  // The K loop for one or two rows: one load of x serves 4 / MT times 8 k (nt_few_cpu.wgsl), and what is left over is done 8 k at a time.
  let count = p.k / 8u;
  let whole = count - count % $(4/MT)u;
  for (var c = 0u; c < whole; c += $(4/MT)u) {
#if WIDE
    // The driver loads lane by lane, and only for lanes that take part.
    var xv = vec4f();
    if (lane < 8u) { xv = x[row * (p.k / 4u) + part + 2u * c]; }
#else
    let xv = x[row * (p.k / 4u) + part + 2u * c];
#endif
#for j in 0..NT
#for z in 0..4/MT
    let w$(j)_$(z) = w_load8(at$(j), c + $(z)u);
#end
#end
    // CHUNKS times 8 k.
#let CHUNKS = 4/MT
#include "nt_few_cpu_step.wgsl"
  }
  for (var c = whole; c < count; c++) {
    let xv = x[row * (p.k / 4u) + part % 2u + 2u * c];
#for j in 0..NT
    let w$(j)_0 = w_load8(at$(j), c);
#end
#let CHUNKS = 1
#include "nt_few_cpu_step.wgsl"
  }
