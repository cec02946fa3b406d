// Selects from x (rows, rank), the product with stacked adapters: x[m,r] = scales[place] x[m,r] if places[m] is the place to which r belongs, else 0.
// In place. down_cpu.wgsl does the same itself (STACKED).
struct Params { rows: u32, rank: u32, own: u32, width: u32, scales: u32 }
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
#include "flat.wgsl"
#include "stack.wgsl"

fn one(e: u32) {
  if (e >= p.rows * p.rank) { return; }
  let place = place_of(e % p.rank);
  // A select, not a multiplication by 0: another adapter's value for this row may be NaN.
  x[e] = select(0.0, x[e] * scales[p.scales + place], places[e / p.rank] == place);
}
