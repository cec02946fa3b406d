// What a layer computes after attention, for MT rows per workgroup, on CPU drivers with subgroups of LANES, 8:
//   m = residual + o(attended), n[t,c] = m[t,c] / sqrt(mean over c of m^2 + eps) * gain[c], y = m + down(act(gate(n)) * up(n)), act SiLU or (GELU)
//     GELU as in gelu.wgsl
// attended (rows, A), residual and y (rows, H), gated (rows, I): scratch. W_0 (H, A): o; W_1 (2 I, H): gate, with up below it; W_2 (H, I): down; all
// bf16, in unfolded textures with panels of 8 rows (weight.wgsl). H is a multiple of 64, A of 8, I of 32.
// LORA: rank / 8 of the four adapters 0: o, 1: gate, 2: up, 3: down, with A_g (rank, K) and B_g (N, rank) from vec4 a_g and b_g of the bank on: adds
// scale_g B_g A_g x.
// Such a driver shares the workgroups of a dispatch among all its threads, and takes some 25 us to begin and end one, as long as a product of a
// narrow model. Here a thread computes all products for its own rows and waits for no other. Sums are in the order of rms_norm.wgsl, down_cpu.wgsl,
// nt_cpu.wgsl and group_cpu.wgsl, so with their bits. m and the gated product are read by other lanes than wrote them, so they go through memory
// (storageBarrier); n stays in the lanes that read it.
struct Params { rows: u32, k: u32, eps: f32, a_0: u32, a_1: u32, a_2: u32, a_3: u32, b_0: u32, b_1: u32, b_2: u32, b_3: u32, scale_0: f32, scale_1: f32, scale_2: f32, scale_3: f32 }
@group(0) @binding(0) var<storage, read> attended: array<vec4f>;
@group(0) @binding(1) var<storage, read> residual: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> gated: array<vec4f>;
@group(0) @binding(4) var<storage, read> gain: array<vec4f>;
@group(0) @binding(5) var w_0: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(6) var w_1: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(7) var w_2: texture_storage_2d<rgba32uint, read>;
#if LORA
@group(0) @binding(8) var<storage, read> bank: array<vec4f>;
#endif
alias E = f32;
#include "gelu.wgsl"
#include "block.wgsl"

// The input of product s, four values of a row: of rows i, four at a time, lane l of 8 loads row l / 2, and l % 2 says which of two vec4.
fn x_0(i: u32, row: u32, four: u32) -> vec4f { return attended[row * $(A/4)u + four]; }
fn x_1(i: u32, row: u32, four: u32) -> vec4f { return normed[i * $(H/8)u + four / 2u]; }
fn x_2(i: u32, row: u32, four: u32) -> vec4f { return gated[row * $(I/4)u + four]; }
// The value to which a product is added.
fn before_0(at: u32) -> f32 { return residual[at]; }
fn before_2(at: u32) -> f32 { return y[at]; }
fn to_norm(at: u32) -> f32 { return y[at]; }

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#include "rows.wgsl"
#if LORA
#for g in 0..4
  let b_$(g) = p.b_$(g);
#end
#endif
  {
#let S = 0
#let K = A
#let G = 0
#include "to_hidden.wgsl"
  }
  storageBarrier();
#include "norm.wgsl"
  {
#let S = 1
#let K = H
#let G = 1
#let G_END = 3
#let SPAN = 4
#include "lora_down.wgsl"
    for (var n0 = zero; n0 < $(I)u; n0 += $(4*LANES)u) {
#for j in 0..SPAN
      let col$(j) = n0 + 4u * lane + $(j)u;
      let col$(j+SPAN) = col$(j);
      let at$(j) = w_at(col$(j));
      let at$(j+SPAN) = w_at($(I)u + col$(j));
#end
#include "product.wgsl"
#include "lora_up.wgsl"
      for (var row = m0; row < end; row++) {
#include "one_row.wgsl"
#for j in 0..SPAN
        let gated$(j) = out_$(j) / (1.0 + exp(-steep(out_$(j)))) * out_$(j+SPAN);
#end
        gated[(row * $(I)u + col0) / 4u] = vec4f(gated0, gated1, gated2, gated3);
      }
    }
  }
  storageBarrier();
  {
#let S = 2
#let K = I
#let G = 3
#include "to_hidden.wgsl"
  }
}
