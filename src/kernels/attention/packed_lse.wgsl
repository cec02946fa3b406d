// The log-sum-exp of all rows and heads (PACKED in forward.wgsl).
#for v in 0..PACKED
  {
    let x = $(v*LANES)u + lane;
    let row = row0 + x / $(HG)u;
    if (x < $(QR*HG)u && takes(row)) { lse[row * HEADS + head0 + x % $(HG)u] = all_m_$(v) + log(all_l_$(v)); }
  }
#end
