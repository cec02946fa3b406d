// WINDOW: a token at position w sees only the last WINDOW of the keys 0 .. w, from key lowest(w) on. Keys before it are masked (weights of 0) where a neighbour sees them, and tiles that no
// row sees are skipped: neither changes a bit, since tiles and splits begin where they do without a window.
#if WINDOW
fn lowest(w: u32) -> u32 { return w - min(w, WINDOW - 1u); }
#endif
