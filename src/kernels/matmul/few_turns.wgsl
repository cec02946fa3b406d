// The sums of a register tile of few rows (tile.wgsl, group_tile.wgsl), FORM_NT and in fours: as tile_turns.wgsl, with its order of the sum, for the few workgroups of a product
// that waits for its weights. A thread sums four rows of one column, so that there are as many threads as the order of a sum leaves; both operands lie in workgroup
// memory along the depth, rows a vector longer than they need be, so that neither neighbouring columns nor rows meet in a memory bank. At the end threads exchange what they
// have, and each has four columns of one row: acc0_0, whose place in the tile row_from and column_from say.
// VECTORS: of the depth, that a thread has read of W's row and of each of the four of x before it multiplies them: what a read of workgroup memory takes is waited for once.
  let tx = id % $(TN)u;
  let ty = id / $(TN)u;
  var four = vec4f();
#include "depth_ends.wgsl"
  for (var t0 = begin; ; t0 += $(KT)u) {
#for s in 0..A_ROUNDS
    let gain$(s) = gain_of(t0 + (id + $(s*THREADS)u) % $(KT/4)u * 4u);
    let a$(s) = a_quad(i0 + (id + $(s*THREADS)u) / $(KT/4)u, t0 + (id + $(s*THREADS)u) % $(KT/4)u * 4u);
#end
#for s in 0..B_ROUNDS
    let b$(s) = b_quad(j0 + (id + $(s*THREADS)u) / $(KT/4)u, t0 + (id + $(s*THREADS)u) % $(KT/4)u * 4u);
#end
    if (t0 > begin) {
#if LORA
      let quads = whole_quads(last - (t0 - $(KT)u));
#else
      let quads = $(KT/4)u;
#endif
      for (var y = 0u; y < quads; y += $(VECTORS)u) {
#for u in 0..VECTORS
        let w_$(u) = b_tile[tx * $(KT/4+1)u + y + $(u)u];
#for r in 0..4
        let x_$(u)_$(r) = a_tile[(4u * ty + $(r)u) * $(KT/4+1)u + y + $(u)u];
#end
#end
#for u in 0..VECTORS
#for t in 0..4
        four = fma(vec4f(x_$(u)_0[$(t)], x_$(u)_1[$(t)], x_$(u)_2[$(t)], x_$(u)_3[$(t)]), vec4f(w_$(u)[$(t)]), four);
#end
#end
      }
    }
    if (t0 >= last) { break; }
    workgroupBarrier();
    if (t0 < low_begin) {
#for s in 0..A_ROUNDS
      a_tile[(id + $(s*THREADS)u) / $(KT/4)u * $(KT/4+1)u + (id + $(s*THREADS)u) % $(KT/4)u] = a_wide(a$(s), (id + $(s*THREADS)u) / $(KT/4)u, gain$(s));
#end
#for s in 0..B_ROUNDS
      b_tile[(id + $(s*THREADS)u) / $(KT/4)u * $(KT/4+1)u + (id + $(s*THREADS)u) % $(KT/4)u] = b_wide(b$(s), t0 + (id + $(s*THREADS)u) % $(KT/4)u * 4u);
#end
    }
#if LORA
    if (t0 >= low_begin) {
      let quads = whole_quads(last - t0); // behind the rank, zeros
      for (var e = id; e < quads * $(TM)u; e += THREADS) {
        let r = t0 - low_begin + e % quads * 4u;
        let i = i0 + e / quads;
        a_tile[e / quads * $(KT/4+1)u + e % quads] = vec4f(low_a(i, r), low_a(i, r + 1u), low_a(i, r + 2u), low_a(i, r + 3u));
      }
      for (var e = id; e < quads * $(TN)u; e += THREADS) {
        let r = t0 - low_begin + e % quads * 4u;
        let j = j0 + e / quads;
        b_tile[e / quads * $(KT/4+1)u + e % quads] = vec4f(low_b(j, r), low_b(j, r + 1u), low_b(j, r + 2u), low_b(j, r + 3u));
      }
    }
#endif
    workgroupBarrier();
  }
  workgroupBarrier();
  a_tile[tx * $(TM/4)u + ty] = four;
  workgroupBarrier();
  let row_from = id / $(TN/4)u;
  let column_from = id % $(TN/4)u * 4u;
  let exchanged = column_from * $(TM/4)u + row_from / 4u;
  let acc0_0 = vec4f(a_tile[exchanged][row_from % 4u], a_tile[exchanged + $(TM/4)u][row_from % 4u], a_tile[exchanged + $(2*TM/4)u][row_from % 4u], a_tile[exchanged + $(3*TM/4)u][row_from % 4u]);
