// Adds up v0_i (i < ROWS*COLUMNS) over the threads of a workgroup, and passes each sum to `finish`: neighbouring threads are added first, then pairs
// of them, and so on. The tree is the same for any number of values, and with and without subgroups, so neither changes a bit.
#if SUBGROUP
// In a subgroup of 2**STEPS lanes. As long as lanes have several sums each, one of two lanes continues with the lower half of the sums and the other
// with the upper half (recursive halving). So as many values are added and exchanged in all as there are sums, not as many in every step.
#for j in 0..STEPS
#let HALF = ROWS*COLUMNS / 2**(j+1)
#if HALF
  let upper$(j) = (id & $(2**j)u) != 0u;
#for i in 0..HALF
  let v$(j+1)_$(i) = select(v$(j)_$(i), v$(j)_$(i+HALF), upper$(j)) + subgroupShuffleXor(select(v$(j)_$(i+HALF), v$(j)_$(i), upper$(j)), $(2**j)u);
#end
#else
  let v$(j+1)_0 = v$(j)_0 + subgroupShuffleXor(v$(j)_0, $(2**j)u);
#endif
#end
#for i in 0..KEPT
  partial[$(i*THREADS)u + id] = v$(STEPS)_$(i);
#end
  workgroupBarrier();
  if (id < $(ROWS*COLUMNS)u) {
    // A lane's bits say which halves it has.
    var e = id / $(ROWS*COLUMNS/KEPT)u;
#for j in 0..STEPS
    e += ((id >> $(j)u) & 1u) * $(ROWS*COLUMNS/2**(j+1))u;
#end
    let first = id / $(ROWS*COLUMNS/KEPT)u * THREADS + id % $(ROWS*COLUMNS/KEPT)u;
#for w in 0..THREADS/2**STEPS
    let s0_$(w) = partial[first + $(w*2**STEPS)u];
#end
#for step in 0..OVER
#for w in 0..THREADS/2**STEPS/2**(step+1)
    let s$(step+1)_$(w) = s$(step)_$(2*w) + s$(step)_$(2*w+1);
#end
#end
    finish(at, e, s$(OVER)_0);
  }
#else
// Through workgroup memory: first each thread adds up what eight neighbours have of a value, then one thread adds up what is left of it.
#for v in 0..ROWS*COLUMNS
  partial[$(v*THREADS)u + id] = v0_$(v);
#end
  workgroupBarrier();
#for g in 0..(ROWS*COLUMNS+7)/8
  var eight$(g) = 0.0;
  if (id < $(ROWS*COLUMNS*THREADS/8-g*THREADS)u) {
    let first = $(8*g*THREADS)u + id * 8u;
#for w in 0..8
    let s0_$(w) = partial[first + $(w)u];
#end
#for step in 0..3
#for w in 0..8/2**(step+1)
    let s$(step+1)_$(w) = s$(step)_$(2*w) + s$(step)_$(2*w+1);
#end
#end
    eight$(g) = s3_0;
  }
#end
  workgroupBarrier();
#for g in 0..(ROWS*COLUMNS+7)/8
  if (id < $(ROWS*COLUMNS*THREADS/8-g*THREADS)u) { partial[$(g*THREADS)u + id] = eight$(g); }
#end
  workgroupBarrier();
  if (id < $(ROWS*COLUMNS)u) {
    let first = id * $(THREADS/8)u;
#for w in 0..THREADS/8
    let s0_$(w) = partial[first + $(w)u];
#end
#for step in 0..OVER
#for w in 0..THREADS/8/2**(step+1)
    let s$(step+1)_$(w) = s$(step)_$(2*w) + s$(step)_$(2*w+1);
#end
#end
    finish(at, id, s$(OVER)_0);
  }
#endif
