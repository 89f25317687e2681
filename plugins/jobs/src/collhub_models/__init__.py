"""Generate jobs from model sizes: training steps of transformers and recommendation models."""
