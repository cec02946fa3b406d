  // The row of a workgroup (softmax_slice.wgsl, softmax_part.wgsl, softmax_join.wgsl) and by what its logits are multiplied; a row that is left out ends here.
  let row = group.x + group.y * 65535u;
  if (row >= p.rows) { return; }
#if BY_ROW
  let inv = inv_temperatures[row];
  if (inv == 0.0) { return; }
#else
  let inv = p.inv_temperature;
#endif
