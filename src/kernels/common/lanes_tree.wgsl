// The sum over the LANES (8 or 16) invocations of a CPU driver's subgroup: an unrolled tree of broadcasts from constant lanes, which cost nothing.
fn lanes_tree(value: f32) -> f32 {
#for i in 0..LANES
  let v0_$(i) = subgroupBroadcast(value, $(i)u);
#end
#for step in 0..LANES/8+2
#for i in 0..LANES/2/2**step
  let v$(step+1)_$(i) = v$(step)_$(2*i) + v$(step)_$(2*i+1);
#end
#end
  return v$(LANES/8+2)_0;
}
