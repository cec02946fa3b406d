// The rows m0 .. end of a workgroup, and the one of every four that a lane loads.
// Loops begin at a 0 that the driver's compiler cannot know. It unrolls loops of up to 32 iterations if it knows their number, or guesses it from the
// length of an array that the counter indexes. Unrolled, blocks of 4 and 8 rows took 2 to 8 times as long to compile (bench/LOG.md, "Loops that the
// driver writes out").
  let zero = p.rows >> 31u;
  let m0 = group.x * $(MT)u;
#for i in 0..2*MT/LANES
  let row$(i) = min(m0 + $(i*LANES/2)u + lane / 2u, p.rows - 1u);
#end
  let end = well_laid(min(m0 + $(MT)u, p.rows), lane);
#let LOADS = 2*MT/LANES
#include "held_cpu.wgsl"
