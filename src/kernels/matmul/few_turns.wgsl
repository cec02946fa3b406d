// The K loop of a register tile of few rows (tile.wgsl, group_tile.wgsl), FORM_NT and VEC: like tile_turns.wgsl and with its order of the sum, but
// for products with few workgroups, which wait for their weights.
// A thread accumulates RR rows x RC columns. Both operands lie in workgroup memory along K, with rows padded by a vector so that neighbouring columns
// have no bank conflicts. The limit is what workgroup memory delivers to registers: 128 bytes per cycle, even if threads read the same (bench/LOG.md,
// "On an H200"). RR x RC multiply-adds read 4 (RR + RC) bytes, so a thread has several rows and columns as long as there are enough threads.
// At the end threads exchange their sums, and each has four columns of RM rows: acc_r_0, at row_from and column_from of the tile.
// VECTORS: number of vectors along K that a thread reads of its rows and columns before it multiplies them, so that it waits only once for workgroup
// memory's latency.
  let tx = id % $(TN/RC)u;
  let ty = id / $(TN/RC)u;
#for r in 0..RR
#for c in 0..RC
  var sum$(r)_$(c) = 0.0;
#end
#end
#include "depth_ends.wgsl"
  // All vectors that a thread stages of a K-block belong to the same four steps. Past the last step, x is zero and W is what the clamped index finds.
  let own_step = id % $(KT/4)u;
  let last_step = end / 4u - 1u;
#for s in 0..A_ROUNDS
  let a_from$(s) = a_begin(i0 + (id + $(s*THREADS)u) / $(KT/4)u);
#end
#if !W_BLOCKS
#for s in 0..B_ROUNDS
  let b_from$(s) = b_begin(j0 + (id + $(s*THREADS)u) / $(KT/4)u);
#end
#endif
  var gain = vec4f();
#for s in 0..A_ROUNDS
  var a$(s) = vec4u();
#end
#for s in 0..B_ROUNDS
  var b$(s) = Loaded();
#end
  let next = begin;
#include "few_loads.wgsl"
  // The next K-block is prefetched before the multiplications of this one, which hide the latency. It is kept in variables of the loop: if a loaded
  // value has only one use, a driver may move the load down to that use, behind the multiplications.
  for (var t0 = begin; t0 < last; t0 += $(KT)u) {
    var quads = whole_quads(end - min(t0, end));
    if (t0 < low_begin) {
      let step = t0 / 4u + own_step;
#for s in 0..A_ROUNDS
      a_tile[(id + $(s*THREADS)u) / $(KT/4)u * $(KT/4+1)u + own_step] = select(vec4f(), a_wide(a$(s), (id + $(s*THREADS)u) / $(KT/4)u, gain), step <= last_step);
#end
#for s in 0..B_ROUNDS
      b_tile[(id + $(s*THREADS)u) / $(KT/4)u * $(KT/4+1)u + own_step] = b_wide(b$(s), 4u * min(step, last_step));
#end
    }
#if LORA
    if (t0 >= low_begin) {
      quads = whole_quads(last - t0); // past the rank: zeros
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
    let next = t0 + $(KT)u;
#include "few_loads.wgsl"
    for (var y = 0u; y < quads; y += $(VECTORS)u) {
#for u in 0..VECTORS
#for c in 0..RC
      let w_$(u)_$(c) = b_tile[(tx + $(c*TN/RC)u) * $(KT/4+1)u + y + $(u)u];
#end
#for r in 0..RR
      let x_$(u)_$(r) = a_tile[($(RR)u * ty + $(r)u) * $(KT/4+1)u + y + $(u)u];
#end
#end
#for u in 0..VECTORS
#for t in 0..4
#for r in 0..RR
#for c in 0..RC
      sum$(r)_$(c) = fma(x_$(u)_$(r)[$(t)], w_$(u)_$(c)[$(t)], sum$(r)_$(c));
#end
#end
#end
#end
    }
    workgroupBarrier();
  }
#for r in 0..RR
#for c in 0..RC
  sums_tile[($(RR)u * ty + $(r)u) * $(TN)u + tx + $(c*TN/RC)u] = sum$(r)_$(c);
#end
#end
  workgroupBarrier();
#let ITEMS = TM*TN/4/RM
#let IDLE = THREADS-ITEMS
#if IDLE
  // Surplus threads have rows past the end, which are not stored.
  let item = min(id, $(ITEMS-1)u);
  let row_from = item / $(TN/4)u * $(RM)u + select(0u, 0x40000000u, id > item);
#else
  let item = id;
  let row_from = item / $(TN/4)u * $(RM)u;
#endif
  let column_from = item % $(TN/4)u * 4u;
#for r in 0..RM
  let from$(r) = (item / $(TN/4)u * $(RM)u + $(r)u) * $(TN)u + column_from;
  let acc$(r)_0 = vec4f(sums_tile[from$(r)], sums_tile[from$(r) + 1u], sums_tile[from$(r) + 2u], sums_tile[from$(r) + 3u]);
#end
