// Of row_lanes.wgsl: row_u, the rows of the KU keys of the turn behind that of key i of the tile. rows_here and rows_next have the tile's and the next one's, a key a lane.
#for u in 0..KU
          var row_$(u) = subgroupBroadcast(rows_next, $(u)u);
#for g in 1..LANES/KU
          row_$(u) = select(row_$(u), subgroupBroadcast(rows_here, $(g*KU+u)u), i == $(g*KU-KU)u);
#end
#end
