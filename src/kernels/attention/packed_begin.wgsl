// Maxima and sums of all rows and heads, LANES to a vector (PACKED in forward.wgsl).
#for i in 1..LANES
  let is_$(i) = lane == $(i)u;
#end
#for v in 0..PACKED
  var m_$(v) = -3.0e38;
  var all_m_$(v) = -3.0e38;
  var all_l_$(v) = 0.0;
#end
