"""Types of the arrays that come in and go out.

Shape letters in this package, besides those of `model.config`: Q queries and K keys of a map (rows and columns; a whole
map has Q = K = n, the tokens of one text, without padding), W words. Weights come in and go out as float32; sums over
heads, queries and words are taken in float64.
"""

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Int32Array = NDArray[np.int32]
IntArray = NDArray[np.integer]
