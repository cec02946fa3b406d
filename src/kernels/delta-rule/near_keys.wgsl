// q and k of a key head for the invocations of a workgroup, each of which has one column of the state (scan.wgsl, scan_back.wgsl): those of TOKENS
// tokens are staged in workgroup memory.
// LANES (CPU drivers): not staged; each invocation loads its part of a token's q and k, and the subgroup broadcasts it (near_key.wgsl).
#if LANES
fn bring_keys(first: u32, some: u32, head: u32, lane: u32) {}
#else
var<workgroup> q_near: array<vec4f, $(TOKENS*KEY/4)>;
var<workgroup> k_near: array<vec4f, $(TOKENS*KEY/4)>;

// Stages tokens first .. first + some - 1 of the key head that `head` reads, after every invocation has finished with the tokens before.
fn bring_keys(first: u32, some: u32, head: u32, lane: u32) {
  workgroupBarrier();
  for (var e = lane; e < some * $(KEY/4)u; e += WIDTH) {
    let source = ((first + e / $(KEY/4)u) * (p.heads / p.ratio) + head / p.ratio) * $(KEY/4)u + e % $(KEY/4)u;
    q_near[e] = q[source];
    k_near[e] = k[source];
  }
  workgroupBarrier();
}
#endif
