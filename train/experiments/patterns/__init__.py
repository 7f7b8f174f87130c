"""What several heads do that one cannot: small networks on made-up tasks, over seeds, beside what theory predicts.

One place of a text has to answer from others. A head gives it one average of them, weighed by one softmax: one pattern.
Each task says how many patterns an answer needs at once. All seeds of a row are trained side by side, as one batch.

A head picks one of n places only if that place's key is an extreme point of all keys (the score is linear in it): with
d_k = 1 these are two, enough for a place that is always the same; with d_k = 2 all keys on a circle are. A head
averages any q of n places only if every q keys are a face of all, which a cyclic polytope has from d_k = 2 q on
(Sanford, Hsu and Telgarsky 2023, arXiv 2306.02896).
"""
