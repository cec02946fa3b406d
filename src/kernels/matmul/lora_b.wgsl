// Loads LoRA's B for the NT columns of a lane and 8 of the rank: from vec4 b_at0, b_at1, .. of the bank on, into b0_0 and b0_1, .. of each column.
// A loop, as a load from a storage buffer is 2 KB of code on this driver (attention/across.wgsl), which each workgroup runs once: unrolled, the loads
// are as large as the instruction cache, and fetching them again took 5 us of a workgroup's 20 (bench/LOG.md). With < instead of !=, the compiler
// would know the number of iterations and unroll.
#for j in 0..NT
    var b$(j)_0 = vec4f();
    var b$(j)_1 = vec4f();
#end
    for (var j = 0u; j != min($(NT)u, p.k); j++) {
      var at = b_at0;
#for j in 1..NT
      at = select(at, b_at$(j), j == $(j)u);
#end
      let lo = bank[at];
      let hi = bank[at + 1u];
#for j in 0..NT
      b$(j)_0 = select(b$(j)_0, lo, j == $(j)u);
      b$(j)_1 = select(b$(j)_1, hi, j == $(j)u);
#end
    }
