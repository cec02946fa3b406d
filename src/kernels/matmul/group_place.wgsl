// A workgroup's member s, the first column n0 that it has there, and the member's `width`.
#if GATED
  let s = 0u;
  let n0 = group.x * $(TN/2)u;
#else
  // Workgroups (columns) from g1 on are of member 1, from g2 on of member 2.
  let g1 = (width_of(0u) + $(TN-1)u) / $(TN)u;
  let g2 = g1 + (width_of(1u) + $(TN-1)u) / $(TN)u;
  let s = u32(group.x >= g1) + u32(group.x >= g2);
  let n0 = (group.x - pick(s, 0u, g1, g2)) * $(TN)u;
#endif
  let width = width_of(s);
