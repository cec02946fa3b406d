// After a pass, for each sequence in it: the slot's inputs become the last TAPS - 1 values that were convolved (inputs.wgsl), oldest first, including
// those of earlier passes if this one has fewer. inputs (slots, TAPS - 1, channels); runs as in forward.wgsl. An invocation moves four neighbouring
// channels, in order; `channels` counts groups of four.
struct Params { rows: u32, channels: u32 }
alias Value = vec4f;
#include "inputs.wgsl"
@group(0) @binding(1) var<storage, read> runs: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> inputs: array<vec4f>;
#include "flat.wgsl"

fn one(e: u32) {
  let t = e / p.channels;
  if (t >= p.rows) { return; }
  let run = runs[t];
  if (run.y != t) { return; }
  let c = e % p.channels;
  let slot = run.x * $(TAPS-1)u;
  for (var i = 0u; i < $(TAPS-1)u; i++) {
    // Index among the old inputs followed by those of this pass.
    let at = run.z + i;
    var value = vec4f();
    if (at >= $(TAPS-1)u) {
      value = input_of(t + at - $(TAPS-1)u, c);
    } else if (run.w == 1u) {
      value = inputs[(slot + at) * p.channels + c];
    }
    inputs[(slot + i) * p.channels + c] = value;
  }
}
