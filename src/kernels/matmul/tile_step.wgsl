// One turn of a register tile (tile.wgsl, group_tile.wgsl): 16 steps of the depth from workgroup memory, in order.
    for (var d = 0u; d < 16u; d++) {
      let b_at = d * $(TN)u + tj;
#for v in 0..TN/64
      let bv$(v) = vec4f(b_tile[b_at + $(4*v)u], b_tile[b_at + $(4*v+1)u], b_tile[b_at + $(4*v+2)u], b_tile[b_at + $(4*v+3)u]);
#end
#for r in 0..TM/16
      let av$(r) = vec4f(a_tile[d * $(TM)u + ti + $(r)u]);
#for v in 0..TN/64
      acc$(r)_$(v) = fma(av$(r), bv$(v), acc$(r)_$(v));
#end
#end
    }
