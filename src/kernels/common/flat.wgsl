// The frame of an elementwise kernel, which defines fn one(e: u32) for element e (and returns at once past the end). An invocation does PER
// elements, 64 apart: a CPU driver takes half a microsecond for a workgroup, however little it does.
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let first = (group.x + group.y * 65535u) * (64u * PER) + lane;
  for (var n = 0u; n < PER; n++) { one(first + n * 64u); }
}
