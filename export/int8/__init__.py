"""Eight-bit integer arithmetic for the matrix products of an encoder; everything else stays float32."""
