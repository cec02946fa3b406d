// RMSNorm of the block's rows of to_norm (rows, H), with the order of the sum of norm/rms_norm.wgsl.
#for i in 0..2*MT/LANES
  var rstd$(i) = 0.0;
#end
  for (var row = m0; row < end; row++) {
    var sum = 0.0;
    for (var c = lane; c < $(H)u; c += LANES) { let v = to_norm(row * $(H)u + c); sum = fma(v, v, sum); }
    let one = 1.0 / sqrt(lanes_sum(lane, sum) / f32($(H)u) + p.eps);
#for i in 0..2*MT/LANES
    rstd$(i) = select(rstd$(i), one, row == row$(i));
#end
  }
  for (var c = zero; c < $(H/8)u; c++) {
    let of_gain = gain[2u * c + lane % 2u];
#for i in 0..2*MT/LANES
    {
      let at = row$(i) * $(H)u + 8u * c + lane % 2u * 4u;
      normed[$(i*H/8)u + c] = vec4f(to_norm(at), to_norm(at + 1u), to_norm(at + 2u), to_norm(at + 3u)) * rstd$(i) * of_gain;
    }
#end
  }
