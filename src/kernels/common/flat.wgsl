// The frame of an elementwise kernel, which defines fn one(e: u32) for element e (and returns at once past the end). A workgroup has FLAT
// invocations, each of which does PER elements, FLAT apart: a CPU driver takes half a microsecond for a workgroup, however little it does, and a GPU
// starts one every nanosecond (PER 1).
// With PER above 1, the loop begins at a 0 that the compiler cannot know. Otherwise such a driver's compiler unrolls it, and takes ten times as long
// (row-block/rows.wgsl).
@compute @workgroup_size(FLAT)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let first = (group.x + group.y * 65535u) * (FLAT * PER) + lane;
  for (var n = select(group.x >> 31u, 0u, PER == 1u); n < PER; n++) { one(first + n * FLAT); }
}
