// The members of a group (group_tile.wgsl, group_units.wgsl): outputs, biases and LoRA, and which columns are whose. PART: neighbouring columns of a tile of one owner,
// a thread or a subgroup.
#for o in 0..OUTPUTS
@group(0) @binding($(2+o)) var<storage, read_write> y_$(o): array<f32>;
#end
#if LORA
@group(0) @binding(5) var<storage, read> bank: array<f32>;
@group(0) @binding(6) var<storage, read> xa: array<f32>;
#endif
#if BIAS
@group(0) @binding(7) var<storage, read> bias: array<f32>;
#endif
fn pick(s: u32, a: u32, b: u32, c: u32) -> u32 { return select(select(a, b, s == 1u), c, s == 2u); }
// Column j of a workgroup's tile: y is the column of the member, x is 1 where GATED it is of the second.
fn column_of(j: u32) -> vec2u {
#if GATED
  let q = j % $(PART)u;
  return vec2u(q / $(PART/2)u, j / $(PART)u * $(PART/2)u + q % $(PART/2)u);
#else
  return vec2u(0u, j);
#endif
}
