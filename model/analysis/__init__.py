"""The mathematics of attention answers, over one text's weights: numpy and the standard library only."""
