// Where element e (four values) of row `row` of a KV cache lies in its texture (kv-texture.ts): KV_FOLD pages of KV_PAGE rows of KV_WIDTH elements
// stand side by side, and within a page the rows of a head, of KV_HEAD elements, follow each other.
fn kv_place(row: u32, e: u32) -> vec2u {
  let page = row / KV_PAGE;
  let of_head = (e / KV_HEAD * KV_PAGE + row % KV_PAGE) * KV_HEAD + e % KV_HEAD;
  return vec2u(page % KV_FOLD * (KV_PAGE * KV_WIDTH) + of_head, page / KV_FOLD);
}
