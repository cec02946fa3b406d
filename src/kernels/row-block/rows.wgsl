// The rows m0 .. end of a workgroup, and the one of every four that a lane loads.
  let m0 = group.x * $(MT)u;
#for i in 0..2*MT/LANES
  let row$(i) = min(m0 + $(i*LANES/2)u + lane / 2u, p.rows - 1u);
#end
  let end = well_laid(min(m0 + $(MT)u, p.rows), lane);
