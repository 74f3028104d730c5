"""Steelrail: Parquet and a Slurm cluster in, a trained model and an exact bill out."""
