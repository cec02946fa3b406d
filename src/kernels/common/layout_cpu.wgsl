// For CPU drivers (lavapipe): returns `value`, which is never the largest u32. What matters is what the driver's compiler makes of it (bench/LOG.md,
// "Where the code of a loop lies"), so it goes before a loop that fills the instruction cache:
// - An array on the stack, which makes the hundreds of vectors that such a loop keeps there begin at multiples of 32 bytes. Without it they may be
//   shifted by 16 bytes, so that every other one crosses two cache lines, and the loop takes 1.2 times as long.
// - 1.4 KB of code, which move the loop away from where it would leave no room in the cache for the driver's two functions that load texels. These
//   begin at a page boundary; the loop would take 1.3 times as long. If the code before a kernel's loop changes, measure it again.
fn well_laid(value: u32, lane: u32) -> u32 {
  var frame: array<vec4u, 2>;
  frame[lane % 2u] = vec4u(value);
  let held = frame[value % 2u];
  return select(value, held.x | held.y | held.z | held.w, value == 0xffffffffu);
}
