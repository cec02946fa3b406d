// Converts bf16 to f16 in place, two values per word: words first .. first + count. A bf16 value is exact in f16 from 6.1e-5 to 65504, and right to
// within 3e-8 below that. The range was checked when the weight was loaded (matrix-units.ts).
struct Params { first: u32, count: u32 }
@group(0) @binding(0) var<storage, read_write> w_data: array<u32>;
#include "flat.wgsl"
fn one(e: u32) {
  if (e >= p.count) { return; }
  let pair = w_data[p.first + e];
  w_data[p.first + e] = bitcast<u32>(vec2<f16>(bitcast<vec2f>(vec2u(pair << 16u, pair & 0xffff0000u))));
}
