// out[o, c] (+)= sum over i in [start[o], start[o+1]) of x[source[i], c], i in order: the transpose of a gather, without atomics.
// `outs` output rows of `width` elements: values, or VEC4: four of them. TARGET: output row o is written to row target[o] (an
// embedding's token), else to row o. ACCUMULATE adds to what is there. Target rows below `first_row` or from `limit` on belong to another slice and
// are not changed. SCALE: the sum is multiplied by `scale`.
#if SCALE
struct Params { outs: u32, width: u32, first_row: u32, limit: u32, scale: f32 }
#else
struct Params { outs: u32, width: u32, first_row: u32, limit: u32 }
#endif
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read> start: array<u32>;
@group(0) @binding(2) var<storage, read> source: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<E>;
#if TARGET
@group(0) @binding(4) var<storage, read> target_row: array<u32>;
#endif
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.outs * p.width) { return; }
  let o = e / p.width;
  let c = e % p.width;
#if TARGET
  let row = target_row[o];
#else
  let row = o;
#endif
  if (row < p.first_row || row >= p.limit) { return; }
  var sum = E();
  for (var i = start[o]; i < start[o + 1u]; i++) { sum += x[source[i] * p.width + c]; }
#if SCALE
  sum *= p.scale;
#endif
  let at = (row - p.first_row) * p.width + c;
#if ACCUMULATE
  out[at] += sum;
#else
  out[at] = sum;
#endif
}
