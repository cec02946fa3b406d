// Workgroup memory of thin_sum.wgsl: with subgroups, what each lane has left after the subgroup's sums; else all of its partial sums.
#if SUBGROUP
var<workgroup> partial: array<f32, $(KEPT*THREADS)>;
#else
var<workgroup> partial: array<f32, $(ROWS*COLUMNS*THREADS)>;
#endif
