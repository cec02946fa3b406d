  // The row of a workgroup (softmax_slice.wgsl, softmax_part.wgsl, softmax_join.wgsl) and the factor of its logits. Returns if the row is skipped.
  let row = group.x + group.y * 65535u;
  if (row >= p.rows) { return; }
#if BY_ROW
  let inv = inv_temperatures[row];
  if (inv == 0.0) { return; }
#else
  let inv = p.inv_temperature;
#endif
