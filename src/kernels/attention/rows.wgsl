  // The QR rows of a workgroup in groups that see the same keys, each up to its position: lead_r is the first row of the group of row r, or QR if
  // this kernel does not compute the row.
#for r in 0..QR
  let at_$(r) = info[min(row0 + $(r)u, p.rows - 1u)];
  var lead_$(r) = select($(QR)u, $(r)u, takes(row0 + $(r)u));
#for s in 0..r
  lead_$(r) = select(lead_$(r), lead_$(s), all(at_$(r).xyz == at_$(s).xyz) && lead_$(s) == $(s)u && lead_$(r) == $(r)u);
#end
#end
  // The groups, as bits of their first rows, so that a loop visits them alone: an iteration for each other row, masked off, would cost a blend of all
  // accumulators.
  var leads = 0u;
#for r in 0..QR
  leads |= select(0u, $(2**r)u, lead_$(r) == $(r)u);
#end
