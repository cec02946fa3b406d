// Epilogue: the sums, one fragment at a time through `scratch`, times scale_u, into out_u (rows, LEFT_HEADS, D).
#for u in 0..SUMS
#for i in 0..RT/SM/FM
#for c in 0..D/SN/FN
  subgroupMatrixStore<row_major>(&scratch, own, sum_$(u)_$(i)_$(c), $(FN)u);
  workgroupBarrier();
#for q in 0..FM*FN/4/LANES
  {
    let row = row0 + si + $(i*FM)u + down_$(q);
    if (row < p.rows) { out_$(u)[(row * LEFT_HEADS + left_head) * $(D/4)u + (sc + $(c*FN)u + across) / 4u] = four(own + (lane + $(q*LANES)u) * 4u) * scale_$(u); }
  }
#end
  workgroupBarrier();
#end
#end
#end
