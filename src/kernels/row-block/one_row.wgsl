// Selects one row of the tile: unrolled for all rows, stores would be most of what the driver compiles (see matmul/nt_cpu.wgsl).
#for j in 0..NT
        var out_$(j) = acc_0_$(j);
#for r in 1..MT
        out_$(j) = select(out_$(j), acc_$(r)_$(j), row == m0 + $(r)u);
#end
#end
