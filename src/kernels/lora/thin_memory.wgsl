// Workgroup memory of thin_sum.wgsl: with subgroups the values that a lane is left with, else all that it has.
#if SUBGROUP
var<workgroup> partial: array<f32, $(KEPT*THREADS)>;
#else
var<workgroup> partial: array<f32, $(ROWS*COLUMNS*THREADS)>;
#endif
