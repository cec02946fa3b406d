// Part of row_lanes.wgsl: row_u, the rows of the KU keys of the iteration after the one of key i, in this tile or, after its last iteration, in the
// next. rows_here and rows_next hold the rows of both tiles, one key per lane.
#for u in 0..KU
          var row_$(u) = subgroupBroadcast(rows_next, $(u)u);
#for g in 1..LANES/KU
          row_$(u) = select(row_$(u), subgroupBroadcast(rows_here, $(g*KU+u)u), i == $(g*KU-KU)u);
#end
#end
