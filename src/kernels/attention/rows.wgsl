  // The QR rows of a workgroup and which of them go together: lead_r is the first row that sees the same keys as row r, up to its position; QR where the row
  // is not this kernel's.
#for r in 0..QR
  let at_$(r) = info[min(row0 + $(r)u, p.rows - 1u)];
  var lead_$(r) = select($(QR)u, $(r)u, takes(row0 + $(r)u));
#for s in 0..r
  lead_$(r) = select(lead_$(r), lead_$(s), all(at_$(r).xyz == at_$(s).xyz) && lead_$(s) == $(s)u && lead_$(r) == $(r)u);
#end
#end
  // Those that are first, a bit each: a turn of a loop for rows that are not would cost a blend of all sums.
  var leads = 0u;
#for r in 0..QR
  leads |= select(0u, $(2**r)u, lead_$(r) == $(r)u);
#end
