// From the statistics (m, s, w, z_target) of a row over the whole vocabulary: logprob = z_target - lse, entropy = log s - w / s, lse = m + log s.
fn finished(s: vec4f) -> vec3f {
  let log_s = log(s.y);
  return vec3f((s.w - s.x) - log_s, log_s - s.z / s.y, s.x + log_s);
}
