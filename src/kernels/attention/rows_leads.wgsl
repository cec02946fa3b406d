  // Opens the loop over the groups (rows.wgsl): row r of the group sees the keys before `keys_r`, the group those before `keys`; with WINDOW from
  // `low_r` on, and the group from `low` on.
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
