// dO, w = -dv and moved of a head for the invocations of a workgroup, each of which has one row of the state (read_gradients.wgsl,
// write_gradients.wgsl), in the way of near_keys.wgsl.
#if LANES
fn bring_values(first: u32, some: u32, head: u32, lane: u32) {}
#else
var<workgroup> o_near: array<vec4f, $(TOKENS*VALUE/4)>;
var<workgroup> w_near: array<vec4f, $(TOKENS*VALUE/4)>;
var<workgroup> d_near: array<vec4f, $(TOKENS*VALUE/4)>;

// Stages tokens first .. first + some - 1 of a head, after every invocation has finished with the tokens before.
fn bring_values(first: u32, some: u32, head: u32, lane: u32) {
  workgroupBarrier();
  for (var e = lane; e < some * $(VALUE/4)u; e += WIDTH) {
    let source = ((first + e / $(VALUE/4)u) * p.heads + head) * $(VALUE/4)u + e % $(VALUE/4)u;
    o_near[e] = d_o[source];
    w_near[e] = -dv[source];
    d_near[e] = moved[source];
  }
  workgroupBarrier();
}
#endif
