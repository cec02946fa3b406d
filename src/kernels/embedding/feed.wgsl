// Token ids of a generation step: ids[i] = given[i], or if its highest bit is set, the token that the step before drew at index given[i] - 2^31. So a
// step need not wait until the host knows those tokens.
struct Params { rows: u32 }
@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read> drawn: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.rows) { return; }
  let word = given[i];
  if (word >= 0x80000000u) { ids[i] = drawn[word - 0x80000000u]; } else { ids[i] = word; }
}
