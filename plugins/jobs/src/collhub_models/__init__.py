"""Jobs from the numbers of a model: training steps of transformers and of recommendation models."""
