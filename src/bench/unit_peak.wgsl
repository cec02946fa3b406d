// A register-only loop on matrix units (f16 x f16 -> float32): LEFT x RIGHT fragments per subgroup, `rounds` times acc = left right + acc.
// left[i,k] = (i % 4) / 4 and right = 1, so every acc[i,j] ends as exactly rounds FK (i % 4) / 4. A subgroup adds up its LEFT RIGHT fragments into
// y[subgroup, i, j]. SUBGROUPS of LANES lanes per workgroup.
struct Params { rounds: u32 }
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
var<workgroup> left_tile: array<f16, $(FM*FK)>;
var<workgroup> right_tile: array<f16, $(FK*FN)>;
var<workgroup> scratch: array<f32, $(SUBGROUPS*FM*FN)>;

@compute @workgroup_size($(SUBGROUPS*LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let subgroup = id / $(LANES)u;
  let lane = id % $(LANES)u;
  for (var e = id; e < $(FM*FK)u; e += $(SUBGROUPS*LANES)u) { left_tile[e] = f16(f32((e / $(FK)u) % 4u) * 0.25); }
  for (var e = id; e < $(FK*FN)u; e += $(SUBGROUPS*LANES)u) { right_tile[e] = 1.0h; }
  workgroupBarrier();
#for i in 0..LEFT
  let left_$(i) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&left_tile, 0u, $(FK)u);
#end
#for j in 0..RIGHT
  let right_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, row_major>(&right_tile, 0u, $(FN)u);
#end
#for i in 0..LEFT
#for j in 0..RIGHT
  var acc_$(i)_$(j): subgroup_matrix_result<f32, $(FN), $(FM)>;
#end
#end
  for (var r = 0u; r < p.rounds; r++) {
#for i in 0..LEFT
#for j in 0..RIGHT
    acc_$(i)_$(j) = subgroupMatrixMultiplyAccumulate(left_$(i), right_$(j), acc_$(i)_$(j));
#end
#end
  }
  let first = (group.x * $(SUBGROUPS)u + subgroup) * $(FM*FN)u;
  for (var e = lane; e < $(FM*FN)u; e += $(LANES)u) { y[first + e] = 0.0; }
#for i in 0..LEFT
#for j in 0..RIGHT
  subgroupMatrixStore<row_major>(&scratch, subgroup * $(FM*FN)u, acc_$(i)_$(j), $(FN)u);
  workgroupBarrier();
  for (var e = lane; e < $(FM*FN)u; e += $(LANES)u) { y[first + e] += scratch[subgroup * $(FM*FN)u + e]; }
  workgroupBarrier();
#end
#end
}
