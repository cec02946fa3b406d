// The K loop of a register tile (tile.wgsl, group_tile.wgsl): steps begin .. end of the depth, one K-block of KT per iteration, into acc_r_v, which
// holds row r (of RM) and columns v (four of RN) of a thread. LORA: then the rank, in K-blocks of its own.
// VEC: software pipelining. A K-block is loaded into registers before the multiplications of the one before it, which hide the latency, and stored to
// workgroup memory after them, once all threads have read. A thread has A_ROUNDS + B_ROUNDS blocks of 4 x 4, and with MIXED one more: of a for the
// first A_REST threads, of b for the last B_REST. Without VEC, and for LoRA, whose depth is small, operands are loaded value by value without
// prefetch.
// row_from and column_from: where a thread's outputs begin in the tile. 32 neighbouring threads (a subgroup of most GPUs) are 4 (rows) x 8 (columns),
// which reads least. Even threads read the same of b as the odd ones beside them, and threads two apart read the same of a: so NVIDIA's GPUs serve
// half a subgroup at once.
  let tx = id / 2u % 8u + id / 32u % $(TN/RN/8)u * 8u;
  let ty = id % 2u + id / 16u % 2u * 2u + id / $(4*TN/RN)u * 4u;
#for r in 0..RM
#for v in 0..RN/4
  var acc$(r)_$(v) = vec4f();
#end
#end
#include "depth_ends.wgsl"
  for (var t0 = begin; ; t0 += $(KT)u) {
#if VEC
#for s in 0..A_ROUNDS
    let a_block$(s) = a_block(id + $(s*THREADS)u);
    let gain$(s) = gain_of(t0 + 4u * a_block$(s).y);
#for r in 0..4
    let a$(s)_$(r) = a_load(i0, t0, a_block$(s), $(r)u);
#end
#end
#for s in 0..B_ROUNDS
    let b_block$(s) = b_block(id + $(s*THREADS)u);
#for r in 0..4
    let b$(s)_$(r) = b_load(j0, t0, b_block$(s), $(r)u);
#end
#end
#if MIXED
    let a_rest = a_block(id + $(A_ROUNDS*THREADS)u);
    let b_rest = b_block(id + $(B_ROUNDS*THREADS)u - $(THREADS-B_REST)u);
    let gain_rest = gain_of(t0 + 4u * a_rest.y);
#for r in 0..4
    var rest$(r) = vec4u();
#if W_BLOCKS
    var words$(r) = Words();
#endif
#end
    if (id < A_REST) {
#for r in 0..4
      rest$(r) = a_load(i0, t0, a_rest, $(r)u);
#end
    } else if (id >= $(THREADS-B_REST)u) {
#for r in 0..4
#if W_BLOCKS
      words$(r) = b_load(j0, t0, b_rest, $(r)u);
#else
      rest$(r) = b_load(j0, t0, b_rest, $(r)u);
#endif
#end
    }
#endif
#endif
    if (t0 > begin) {
#if LORA
      let steps = min($(KT)u, last - (t0 - $(KT)u));
#else
      let steps = $(KT)u;
#endif
      for (var y = 0u; y < steps / 4u; y++) {
        let a_from = a_at(vec2u(ty, y));
        let b_from = b_at(vec2u(tx, y));
#for t in 0..4
        {
#for v in 0..RN/4
          let b_$(v) = b_tile[b_from + $(t*TN/4+v*TN/RN)u];
#end
#for g in 0..RM/4
          let a_$(g) = a_tile[a_from + $(t*TM/4+g*TM/RM)u];
#for r in 0..4
#for v in 0..RN/4
          acc$(4*g+r)_$(v) = fma(vec4f(a_$(g)[$(r)]), b_$(v), acc$(4*g+r)_$(v));
#end
#end
#end
        }
#end
      }
    }
    if (t0 >= last) { break; }
    workgroupBarrier();
    if (t0 < low_begin) {
#if VEC
#for s in 0..A_ROUNDS
    a_store(a_block$(s), gain$(s), a$(s)_0, a$(s)_1, a$(s)_2, a$(s)_3);
#end
#for s in 0..B_ROUNDS
    b_store(j0, t0, b_block$(s), b$(s)_0, b$(s)_1, b$(s)_2, b$(s)_3);
#end
#if MIXED
    if (id < A_REST) {
      a_store(a_rest, gain_rest, rest0, rest1, rest2, rest3);
    } else if (id >= $(THREADS-B_REST)u) {
#if W_BLOCKS
      b_store(j0, t0, b_rest, words0, words1, words2, words3);
#else
      b_store(j0, t0, b_rest, rest0, rest1, rest2, rest3);
#endif
    }
#endif
#else
      for (var e = id; e < $(KT*TM/4)u; e += THREADS) {
        let g = e % $(TM/4)u;
        let t = e / $(TM/4)u;
        a_tile[a_at(vec2u(g, t / 4u)) + t % 4u * $(TM/4)u] = a_four(i0 + 4u * g, t0 + t);
      }
      for (var e = id; e < $(KT*TN/4)u; e += THREADS) {
        let g = e % $(TN/4)u;
        let t = e / $(TN/4)u;
        b_tile[b_at(vec2u(g, t / 4u)) + t % 4u * $(TN/4)u] = b_four(j0 + 4u * g, t0 + t);
      }
#endif
    }
#if LORA
    if (t0 >= low_begin) {
      let steps = min($(KT)u, last - t0);
      for (var e = id; e < steps * $(TM/4)u; e += THREADS) {
        let g = e % $(TM/4)u;
        let t = e / $(TM/4)u;
        a_tile[a_at(vec2u(g, t / 4u)) + t % 4u * $(TM/4)u] = low_a_four(i0 + 4u * g, t0 - low_begin + t);
      }
      for (var e = id; e < steps * $(TN/4)u; e += THREADS) {
        let g = e % $(TN/4)u;
        let t = e / $(TN/4)u;
        b_tile[b_at(vec2u(g, t / 4u)) + t % 4u * $(TN/4)u] = low_b_four(j0 + 4u * g, t0 - low_begin + t);
      }
    }
#endif
    workgroupBarrier();
  }
  let row_from = 4u * ty;
  let column_from = 4u * tx;
