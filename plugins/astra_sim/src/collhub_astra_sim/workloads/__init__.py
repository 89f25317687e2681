"""Whole jobs on ASTRA-sim's model: its workload layer and native collectives, simulated exactly."""
