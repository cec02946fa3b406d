// Element number of an invocation in an elementwise kernel of 64-wide workgroups.
fn element(group: vec3u, lane: u32) -> u32 { return (group.x + group.y * 65535u) * 64u + lane; }
