// AdamW (arXiv 1711.05101) in PyTorch's order of operations, over elements first .. first + count of flat banks (an element is one value, or with
// VEC4 four); norm = (norm, clip, finite) from norm.wgsl:
//   g = clip * grad;  w <- w (1 - lr decay);  m <- m + (1 - beta1)(g - m);  v <- beta2 v + (1 - beta2) g^2
//   w <- w - step_size * m / (sqrt(v) / root_correction2 + eps), step_size = lr / (1 - beta1^t), root_correction2 = sqrt(1 - beta2^t)
// If the norm is not finite, nothing changes. With beta1 up to 1/2 (FROM_G), m <- g + beta1 (m - g), as in torch.lerp: the other form loses a g that
// is far smaller than m was.
struct Params { first: u32, count: u32, decay: f32, m_weight: f32, beta2: f32, one_minus_beta2: f32, step_size: f32, root_correction2: f32, eps: f32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read_write> w: array<E>;
@group(0) @binding(1) var<storage, read> grad: array<E>;
@group(0) @binding(2) var<storage, read_write> m: array<E>;
@group(0) @binding(3) var<storage, read_write> v: array<E>;
@group(0) @binding(4) var<storage, read> norm: array<f32>;

// Like flat.wgsl, but reads once what is the same for all elements.
@compute @workgroup_size(FLAT)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (norm[2] == 0.0) { return; }
  let clip = norm[1];
  let first = (group.x + group.y * 65535u) * (FLAT * PER) + lane;
  for (var e = first; e < min(first + FLAT * PER, p.count); e += FLAT) {
    let i = p.first + e;
    let g = grad[i] * clip;
#if FROM_G
    let m_new = fma(E(p.m_weight), m[i] - g, g);
#else
    let m_new = fma(E(p.m_weight), g - m[i], m[i]);
#endif
    let v_new = fma(p.one_minus_beta2 * g, g, p.beta2 * v[i]);
    m[i] = m_new;
    v[i] = v_new;
    let denominator = sqrt(v_new) / p.root_correction2 + p.eps;
    w[i] = fma(E(-p.step_size), m_new / denominator, w[i] * p.decay);
  }
}
