  // Opens the loop over the rows that are first (rows.wgsl), each with those that go with it: `keys_r` keys are seen by row r, `keys` by all of them at most, and WINDOW none before `low_r`, `low`.
  for (; leads != 0u; leads &= leads - 1u) {
    let f = firstTrailingBit(leads);
    let at = info[min(row0 + f, p.rows - 1u)];
    var keys = 0u;
#for r in 0..QR
    let keys_$(r) = select(0u, at_$(r).w + 1u, lead_$(r) == f);
    keys = max(keys, keys_$(r));
#end
#if WINDOW
    var low = keys;
#for r in 0..QR
    let low_$(r) = lowest(at_$(r).w);
    low = select(low, min(low, low_$(r)), lead_$(r) == f);
#end
#endif
